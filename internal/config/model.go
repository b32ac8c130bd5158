package config

import (
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Model is a model that clients request by name.
type Model struct {
	// Name is the name that clients request. It is unique among the names and aliases of all models
	// and pools.
	Name string `yaml:"name" required:"true" form:"name"`
	// Aliases are further names of the same model.
	Aliases []string `yaml:"aliases" form:"name"`
	// Adapters are the LoRA adapters that the model's engine serves, by the names that the engine
	// knows. Clients request an adapter like a model; the model's replicas serve it within the
	// model's limits. The engine must be configured for its adapters: vllm by the variable
	// lora_modules, sglang by lora_paths. SGLang knows an adapter in requests as MODEL:ADAPTER, so
	// that is the name here.
	Adapters []string `yaml:"adapters" form:"name"`
	// Task is the task of the model. Default: the first task that its engine serves; unknown for
	// launcher upstream.
	Task engines.Task `yaml:"task" oneof:"text-generation,embedding,rerank,transcription,speech,image-generation"`
	// Engine is the name of the engine of a launched model: a built-in one or one from engines.
	Engine string `yaml:"engine"`
	// Version is the release of the engine, such as 0.11.2. It has the variables of the newest
	// version of the catalogue at or below it, here 0.11. Default: the last version.
	Version string `yaml:"version"`
	// Source says where a launched model comes from. It is required when the engine's command uses
	// {{.Model}}.
	Source *Source `yaml:"source"`
	// ServedModel is the name under which the replicas of a launched model know it, for an engine
	// to whose command no name can be given. Requests to the replicas have it in their bodies.
	// Default: the model's own name.
	ServedModel string `yaml:"served_model"`
	// Launcher says how replicas are started. local starts processes on this node and on those that
	// joined. kubernetes starts pods. ray starts jobs of a Ray cluster. upstream uses servers that
	// someone else runs. none has no replicas: /schedule admits tasks for the model, which are done
	// elsewhere. Default local; in a custom resource kubernetes.
	Launcher engines.Launcher `yaml:"launcher" default:"local" oneof:"local,kubernetes,ray,upstream,none"`
	// Cluster says where replicas are launched. For launcher local it is a label that the node must
	// have, one of those in nodes. For launcher kubernetes it is context/namespace, context or
	// /namespace. For launcher ray it is a custom resource that the node must have. Default: any
	// node; the context and namespace of the section kubernetes.
	Cluster string `yaml:"cluster"`
	// Protocol is the protocol of the replicas: http (OpenAI's API) or grpc (llm.v1.Inference, see
	// examples/grpc). Default: the engine's; http for launcher upstream.
	Protocol Protocol `yaml:"protocol" oneof:"http,grpc"`
	// RerankAPI is the rerank API of the replicas: openai (POST /v1/rerank) or tei (POST /rerank of
	// text-embeddings-inference). Default: the engine's; openai for launcher upstream.
	RerankAPI RerankAPI `yaml:"rerank_api" oneof:"openai,tei"`
	// Usage is which counts of tokens the replicas tell, by the catalogue.
	Usage engines.UsageReports `yaml:"-"`
	// Routes lists which routes the replicas have of those that only some engines have: /tokenize,
	// /detokenize, /v1/messages, /v1/messages/count_tokens. Requests to the last two are translated
	// into chat completions if the replicas have not got them. A request to another route that they
	// have not got is refused. Default: the engine's; for launcher upstream not known, as with
	// /tokenize and /detokenize.
	Routes []Route `yaml:"routes"`
	// Upstreams are the servers of a model with launcher upstream, each by its base URL
	// (http://host:port, with or without /v1) or as a mapping.
	Upstreams []Upstream `yaml:"upstreams"`
	// Replicas says how many replicas a launched model has. It is zero for launcher upstream, where
	// each server is one replica, and for launcher none.
	Replicas Replicas `yaml:"replicas"`
	// Scale says when a launched model gets more replicas than replicas.min. Default: when requests
	// wait in the gateway.
	Scale Scale `yaml:"scale"`
	// Resources are the resources of the node that each replica of a launched model uses. A replica
	// that does not fit waits. With resources, a replica sees only the GPUs that were assigned to
	// it. Default: absent, resources are not counted and replicas see all GPUs that Sluice sees.
	Resources *Resources `yaml:"resources"`
	// GPUResource is the name of the GPU resource on Kubernetes. A share of a GPU needs the name of
	// a shared resource, and the replica gets one unit of it. Default nvidia.com/gpu.
	GPUResource string `yaml:"gpu_resource"`
	// Hosts is the number of pods that one replica with launcher kubernetes spreads over. Each gets
	// an equal part of resources, which are those of the whole replica. Above 1 the model is a
	// LeaderWorkerSet, which the cluster must have. resources.gpu must be divisible by it, and the
	// engine must be able to spread (multi_host), as vllm is. Default 1.
	Hosts int `yaml:"hosts" default:"1" min:"1" max:"64"`
	// Prices are what tokens cost, for the cost in the ledger of usage. Default: nothing.
	Prices Prices `yaml:"prices"`
	// Placement says which node and GPU a replica gets. spread prefers those without this model,
	// then the least used. pack prefers those in use, as long as they have room. Default spread.
	Placement Placement `yaml:"placement" default:"spread" oneof:"spread,pack"`
	// Evict says what a replica with launcher local does when it fits nowhere. never: it waits for
	// room. idle: it evicts replicas above replicas.min of models that have no request at all.
	// Default never.
	Evict Evict `yaml:"evict" default:"never" oneof:"never,idle"`
	// Variables are the variables of the engine, checked against its schema.
	Variables map[string]any `yaml:"variables"`
	// Args are arguments of a launched model's engine. They are passed on as they are, each as one
	// argument and after the flags of variables, and are not checked. Arguments that decide how
	// Sluice reaches a replica are refused. Default: none.
	Args []string `yaml:"args"`
	// Env is added to the environment of a launched model's replicas. Of the environment of Sluice
	// they get only what docs/secrets.md lists.
	Env map[string]string `yaml:"env"`
	// EnvFrom names variables with secrets that are added to the environment of replicas with
	// launcher local. Their values are hidden wherever Sluice shows a line of the engine's log. The
	// field env overrides them. Default: none.
	EnvFrom EnvFrom `yaml:"env_from"`
	// Secrets are entries of the environment that come from Secrets of the replica's namespace on
	// Kubernetes, each as secret/key.
	Secrets map[string]string `yaml:"secrets"`
	// Profiles are the names of profiles for Kubernetes. The model gets their resources and patches
	// of the pod. A later one overrides an earlier one. Default: none.
	Profiles []string `yaml:"profiles"`
	// Pod is a strategic merge patch over the template of the pods on Kubernetes: {metadata:
	// {labels, annotations}, spec: {…}}. It comes after the patches of the engine version and of
	// the profiles. The container of the engine is called engine. Fields that Sluice sets are
	// refused. Default: empty.
	Pod map[string]any `yaml:"pod"`
	// Cooldown is how long a launched model must have needed fewer replicas before one is stopped.
	// It is also how long a model must have had no request before its last replica is stopped.
	// Default 5m.
	Cooldown time.Duration `yaml:"cooldown" default:"5m" min:"100ms"`
	// ColdStart says how long requests wait for the first replica, and how long an engine may load.
	ColdStart ColdStart `yaml:"cold_start"`
	// ColdStartTimeout is another name of cold_start.wait. Default: not set.
	ColdStartTimeout time.Duration `yaml:"cold_start_timeout" min:"0s"`
	// UnhealthyOn lists the failures that take a replica out of rotation until a probe succeeds.
	// connect: it accepts no connection. reset: it breaks a connection that carries a request. 5xx:
	// a status from 500 to 599 except 503. 503: the status that engines answer when they are busy.
	// The last replica of a model always stays in rotation. Default: all of them for launcher
	// upstream, [connect, 5xx] for a launched model.
	UnhealthyOn []Failure `yaml:"unhealthy_on" oneof:"connect,reset,5xx,503"`
	// FailOverOn lists the statuses of a replica after which the request is sent to another replica
	// of the model. A request whose client has received a part of an answer is not sent again. 429:
	// too many requests. 503: the status that engines answer when they are busy. 5xx: a status from
	// 500 to 599 except
	// 503. Without any, the client receives each status. A broken connection always counts.
	// Default: all.
	FailOverOn []StatusClass `yaml:"fail_over_on" oneof:"429,503,5xx"`
	// PermitFields are fields of requests that clients may use although they are refused for what
	// they make the engine do, see docs/bodies.md. Default: none.
	PermitFields []GuardedField `yaml:"permit_fields"`
	// MediaHosts lists from which hosts clients may have the model's servers fetch images, sounds,
	// videos and documents. An entry is public (the hosts of the internet), * (every URL), a host,
	// *.domain, an address or a range of addresses. A host, a domain and an address may have a
	// port. An empty list permits data URLs alone. See docs/bodies.md. Default: [public].
	MediaHosts []string `yaml:"media_hosts"`
	// Routing says which replica gets a request.
	Routing Routing `yaml:"routing"`
	// Admission says when a request may start.
	Admission Admission `yaml:"admission"`
	// Stream says how responses are delivered.
	Stream Stream `yaml:"stream"`

	// Table is the version of the catalogue that Version resolves to. It is empty for a model that
	// is not launched.
	Table string `yaml:"-"`
	// PodPatches are the patches of the profiles and of Pod, in the order in which they apply.
	PodPatches []map[string]any `yaml:"-"`
	// SecretEnv holds the variables that EnvFrom of the model and of its engine version name, with
	// their values. They are secrets. nil: none.
	SecretEnv map[string]string `yaml:"-"`
}

// Replicas says how many replicas a launched model has.
type Replicas struct {
	// Min is the smallest number of replicas. With 0, the model has no replica while nobody
	// requests it. Default 1.
	Min int `yaml:"min" default:"1" min:"0" max:"10000"`
	// Max is the largest number of replicas. Replicas above min are started when requests wait, and
	// stopped after cooldown without need. Default: min, and at least 1.
	Max int `yaml:"max" min:"1" max:"10000"`
}

// Resources are the resources that one replica uses. Placement counts them. Replicas are also
// limited to cpu and memory where that is permitted: on Linux with a control group (version 2) that
// is delegated to Sluice, and on Kubernetes.
type Resources struct {
	// CPU is a number of processors. Default 0: not counted.
	CPU float64 `yaml:"cpu" min:"0"`
	// Memory is an amount of the node's memory, without GPU memory. Default 0: not counted.
	Memory Size `yaml:"memory"`
	// GPU is a number of GPUs. A whole number reserves GPUs for the replica alone; a replica with
	// several GPUs works on all of them (tensor parallelism). A number below 1 is a share of one
	// GPU. Replicas that share a GPU each see its whole memory. vllm and sglang are told their
	// share of it; other engines must be told by variables. At most 64. Default 0: none.
	GPU float64 `yaml:"gpu" min:"0"`
}

// Placement says which of several GPUs with room a replica gets.
type Placement string

// The placements.
const (
	// Spread chooses the GPU with the fewest replicas of the model, then the least used.
	Spread Placement = "spread"
	// Pack chooses the most used GPU.
	Pack Placement = "pack"
)

// Evict says whether a replica that fits nowhere may evict idle replicas.
type Evict string

// The values of Evict.
const (
	// EvictNever makes the replica wait for room.
	EvictNever Evict = "never"
	// EvictIdle evicts replicas of models that have no request.
	EvictIdle Evict = "idle"
)

// Failure is an event that makes a replica unhealthy.
type Failure string

// The failures of UnhealthyOn.
const (
	// FailConnect is a connection that the replica does not accept.
	FailConnect Failure = "connect"
	// FailReset is a connection that breaks while it carries a request.
	FailReset Failure = "reset"
	// Fail5xx is a response with a status from 500 to 599 except 503.
	Fail5xx Failure = "5xx"
	// Fail503 is a response with status 503.
	Fail503 Failure = "503"
)

// StatusClass is a kind of HTTP statuses.
type StatusClass string

// The kinds of FailOverOn.
const (
	// Status429 is status 429.
	Status429 StatusClass = "429"
	// Status503 is status 503.
	Status503 StatusClass = "503"
	// Status5xx is a status from 500 to 599 except 503.
	Status5xx StatusClass = "5xx"
)

// PerReplica is a number of requests, or 0 for "auto".
type PerReplica int

// Admission says when a request may start.
type Admission struct {
	// Weight is the model's share of the tokens of its pools, relative to the other models of a
	// pool. Default 1.
	Weight int `yaml:"weight" default:"1" min:"1" max:"1000000"`
	// MaxConcurrentRequests is the largest number of running requests over all replicas. Default 0:
	// no limit.
	MaxConcurrentRequests int `yaml:"max_concurrent_requests" min:"0" max:"1000000000"`
	// MaxTokensPerMinute is the largest number of tokens per minute, of prompts and answers
	// together. Default 0: no limit.
	MaxTokensPerMinute int `yaml:"max_tokens_per_minute" min:"0" max:"1000000000000"`
	// MaxPerReplica is the largest number of running requests of one replica. It is a number, or
	// auto for the number that the engine works on at the same time (for launcher upstream see
	// slots of the server). Default auto.
	MaxPerReplica PerReplica `yaml:"max_per_replica" default:"auto"`
	// MaxPrefillPerReplica is the largest number of requests of one replica that have no token yet.
	// A request above it waits. Default 0: no limit.
	MaxPrefillPerReplica int `yaml:"max_prefill_per_replica" min:"0"`
	// MaxPrefillTokensPerReplica is the largest number of uncached prompt tokens that one replica
	// may have to compute. A request above it waits. A longer prompt goes to a replica that has
	// nothing to compute. Default 0: no limit.
	MaxPrefillTokensPerReplica int `yaml:"max_prefill_tokens_per_replica" min:"0"`
	// MaxQueue is the largest number of waiting requests. A request above it is rejected with
	// queue_full. Default 1000.
	MaxQueue int `yaml:"max_queue" default:"1000" min:"1"`
	// QueueTimeout is how long a request may wait before it is rejected with queue_timeout. At most
	// 55m. Default 60s.
	QueueTimeout time.Duration `yaml:"queue_timeout" default:"60s" min:"1ms"`
}

// StreamMode says how the responses of a model are delivered.
type StreamMode string

// The modes of Stream.
const (
	// StreamAuto lets Sluice choose for each request.
	StreamAuto StreamMode = "auto"
	// StreamNative streams pass through Envoy alone.
	StreamNative StreamMode = "native"
	// StreamManaged streams pass through Envoy and Sluice.
	StreamManaged StreamMode = "managed"
)

// HeartbeatForm says what a heartbeat looks like to the client.
type HeartbeatForm string

// The forms of heartbeats.
const (
	// HeartbeatComment is a comment of server-sent events, which clients ignore.
	HeartbeatComment HeartbeatForm = "comment"
	// HeartbeatChunk is a chunk without content.
	HeartbeatChunk HeartbeatForm = "chunk"
)

// Stream says how responses are delivered.
type Stream struct {
	// Mode is native (through Envoy alone, from the replica to the client), managed (through
	// Sluice, which reads every event) or auto. With auto a request is native, unless it asks for
	// something that Envoy cannot do, or is expected to wait longer than a third of heartbeat.
	// Default auto.
	Mode StreamMode `yaml:"mode" default:"auto" oneof:"auto,native,managed"`
	// Heartbeat is the longest time that the client of a managed stream receives nothing. Default
	// 15s.
	Heartbeat time.Duration `yaml:"heartbeat" default:"15s" min:"100ms"`
	// HeartbeatAs is comment, or chunk (a chunk without content) for clients that cannot read
	// comments. Default comment.
	HeartbeatAs HeartbeatForm `yaml:"heartbeat_as" default:"comment" oneof:"comment,chunk"`
	// MaxDuration is how long a whole response may take. Default 30m.
	MaxDuration time.Duration `yaml:"max_duration" default:"30m" min:"1s" max:"8760h"`
	// Resume is how long a request with a request_id continues after its client disconnected. It is
	// also how long its events are kept after its end. Default 5s.
	Resume time.Duration `yaml:"resume" default:"5s" min:"0s"`
	// TTFTTimeout is how long a replica may take to the first token of a stream. After it, another
	// replica is tried. Default 0: no limit.
	TTFTTimeout time.Duration `yaml:"ttft_timeout" min:"0s"`
	// StallTimeout is the longest time between two events of an engine after the first token. After
	// it, the stream ends with an error. Default 0: no limit.
	StallTimeout time.Duration `yaml:"stall_timeout" min:"0s"`
	// InjectUsage makes every stream managed and asks its engine for the token usage. Engines of
	// which the catalogue says that they tell it are asked in every managed stream anyway. A client
	// that did not ask for usage does not receive it. Default false.
	InjectUsage bool `yaml:"inject_usage"`
	// Sample is the share of the streams, from 0 to 1, that mode auto makes managed only to measure
	// the times between their tokens. Default 0.
	Sample float64 `yaml:"sample" min:"0" form:"share"`
}

// GuardedField is a field of requests that clients may not use unless the file permits it, see
// openai.Guarded.
type GuardedField string

// allowedValues implements enumerated.
func (GuardedField) allowedValues() []string {
	var all []string
	for _, g := range openai.GuardedFields() {
		all = append(all, g.Name)
	}
	return all
}
