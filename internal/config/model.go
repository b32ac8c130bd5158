package config

import (
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// Model is what clients ask for by name.
type Model struct {
	// Name that clients ask for; unique among the names and aliases of all models and pools.
	Name string `yaml:"name" required:"true"`
	// Aliases are further names of the same model.
	Aliases []string `yaml:"aliases"`
	// Adapters are LoRA adapters that the model's engine serves beside it, by the names that it knows them by. They can be asked for as models,
	// on the model's replicas and within its limits. The engine must be told of them: for vllm by the variable lora_modules.
	Adapters []string `yaml:"adapters"`
	// Task of the model. Default: the first task that its engine serves; for an upstream it is unknown.
	Task engines.Task `yaml:"task" oneof:"text-generation,embedding,rerank,transcription"`
	// Engine that serves a launched model, from the built-in ones or engines.
	Engine string `yaml:"engine"`
	// Version of the engine. Default: the last one.
	Version string `yaml:"version"`
	// Source of a launched model. Needed when the engine's command cannot do without {{.Model}}.
	Source *Source `yaml:"source"`
	// Launcher says how replicas come to be: local (processes on this host and those that have joined), kubernetes (pods), upstream (servers
	// that someone else runs) or none (there are none: tasks for the model are admitted by /schedule and done elsewhere). Default local; in a
	// custom resource kubernetes.
	Launcher engines.Launcher `yaml:"launcher" default:"local" oneof:"local,kubernetes,upstream,none"`
	// Cluster says where replicas are launched. Local: a label that the host must have, of those in nodes. Kubernetes: context/namespace, or
	// one of them as context or /namespace. Default: any host; the context and namespace of the section kubernetes.
	Cluster string `yaml:"cluster"`
	// Protocol that replicas speak: http (OpenAI's API) or grpc (llm.v1.Inference, see examples/grpc). Default: the engine's, http for an upstream.
	Protocol Protocol `yaml:"protocol" oneof:"http,grpc"`
	// RerankAPI is how replicas rerank: openai (POST /v1/rerank) or tei (POST /rerank of text-embeddings-inference). Default: the engine's, openai
	// for an upstream.
	RerankAPI RerankAPI `yaml:"rerank_api" oneof:"openai,tei"`
	// Upstreams are an upstream model's servers, each by its base URL (http://host:port, with or without /v1) or as a mapping.
	Upstreams []Upstream `yaml:"upstreams"`
	// Replicas of a launched model. Zero for an upstream one, which has as many as it has servers, and for one with launcher none.
	Replicas Replicas `yaml:"replicas"`
	// Resources are what each replica of a launched model takes of its host. A replica that does not fit waits. With resources a replica sees
	// the GPUs that it was given and no others. Default: none are counted, and replicas see what Sluice sees.
	Resources *Resources `yaml:"resources"`
	// GPUResource is what a GPU is called on Kubernetes. A share of a GPU can only be had under the name of a resource that is shared; such a
	// replica gets one of it. Default nvidia.com/gpu.
	GPUResource string `yaml:"gpu_resource"`
	// Placement says which host and GPU a replica gets: spread (one that has none of this model and the least of others) or pack (one that is
	// in use already, as far as it has room). Default spread.
	Placement Placement `yaml:"placement" default:"spread" oneof:"spread,pack"`
	// Evict says what a replica of a local model that fits nowhere may do: wait (never) or take the place of replicas above the replicas.min of
	// models that have no request at all (idle). Default never.
	Evict Evict `yaml:"evict" default:"never" oneof:"never,idle"`
	// Variables of the engine, held against its schema.
	Variables map[string]any `yaml:"variables"`
	// Env is added to the environment of a launched model's replicas.
	Env map[string]string `yaml:"env"`
	// Secrets are entries of the environment that come from Secrets of the replica's namespace on Kubernetes, each as secret/key.
	Secrets map[string]string `yaml:"secrets"`
	// Cooldown is how long fewer replicas of a launched model must have been enough before one is ended, and how long nobody must have
	// asked before the last one is. Default 5m.
	Cooldown time.Duration `yaml:"cooldown" default:"5m" least:"100ms"`
	// ColdStartTimeout is how long a replica may take until it is ready, and how long a request waits for the first one. Default 10m.
	ColdStartTimeout time.Duration `yaml:"cold_start_timeout" default:"10m" least:"1s"`
	// UnhealthyOn says what takes a replica out of rotation until it is found well again: connect (it takes no connection), reset (it breaks one
	// off that has a request on it), 5xx (an answer from 500 to 599 but 503) and 503 (which engines say when they have enough to do). The last
	// replica of a model always stays. Default: all of them for an upstream, [connect, 5xx] for a model that is launched.
	UnhealthyOn []Failure `yaml:"unhealthy_on" oneof:"connect,reset,5xx,503"`
	// Routing says which replica gets a request.
	Routing Routing `yaml:"routing"`
	// Admission says when a request may go on.
	Admission Admission `yaml:"admission"`
	// Stream says how responses are carried.
	Stream Stream `yaml:"stream"`
}

// Replicas says how many replicas there are.
type Replicas struct {
	// Min is the smallest number of replicas; 0 is none while nobody asks. Default 1.
	Min int `yaml:"min" default:"1" least:"0"`
	// Max is the largest number of replicas: more than min come when requests wait, and go when fewer have been enough for cooldown.
	// Default: as min, and at least 1.
	Max int `yaml:"max" least:"1"`
}

// Resources are what one replica takes. Placement counts with them, and replicas are held to cpu and memory where that is permitted: on Linux
// with a control group (version 2) that has been delegated to Sluice, and on Kubernetes.
type Resources struct {
	// CPU is a number of processors. Default 0: not counted.
	CPU float64 `yaml:"cpu" least:"0"`
	// Memory of the host, not of its GPUs. Default 0: not counted.
	Memory Size `yaml:"memory"`
	// GPU is a whole number of GPUs that nobody else gets, several of them for one replica that works on all (tensor parallel); or less
	// than 1, a share of one GPU: replicas that share a GPU all see all of it, and their engines must be told how much of its memory is
	// theirs. Default 0: none.
	GPU float64 `yaml:"gpu" least:"0"`
}

// Placement says which of several GPUs with room a replica gets.
type Placement string

// The placements.
const (
	// Spread takes the GPU with the fewest replicas of the model, then the least used.
	Spread Placement = "spread"
	// Pack takes the most used one.
	Pack Placement = "pack"
)

// Evict says whether a replica may take the place of idle ones.
type Evict string

// The values of Evict.
const (
	// EvictNever waits for room.
	EvictNever Evict = "never"
	// EvictIdle takes the place of replicas that nobody uses.
	EvictIdle Evict = "idle"
)

// Failure is something that makes a replica unhealthy.
type Failure string

// The failures of UnhealthyOn.
const (
	// FailConnect is a connection that is not taken.
	FailConnect Failure = "connect"
	// FailReset is a connection that is broken off with a request on it.
	FailReset Failure = "reset"
	// Fail5xx is an answer from 500 to 599, but for 503.
	Fail5xx Failure = "5xx"
	// Fail503 is 503.
	Fail503 Failure = "503"
)

// Strategy says how a replica is chosen.
type Strategy string

// The strategies of Routing.
const (
	// CHWBL is consistent hashing with bounded loads.
	CHWBL Strategy = "chwbl"
	// Prefix is CHWBL with a load under which no replica counts as busy.
	Prefix Strategy = "prefix"
	// RoundRobin takes the replicas in turn.
	RoundRobin Strategy = "round_robin"
	// LeastConnections takes the replica with the fewest requests, among equals the one that has served fewest.
	LeastConnections Strategy = "least_connections"
)

// Routing says which replica gets a request.
type Routing struct {
	// Strategy is prefix (consistent hashing with bounded loads that lets a replica have load_floor requests before it counts as
	// busy), chwbl (the same with load_floor 0), round_robin or least_connections. Default prefix.
	Strategy Strategy `yaml:"strategy" default:"prefix" oneof:"chwbl,prefix,round_robin,least_connections"`
	// VirtualNodesPerReplica is how often each replica stands on the hash ring. Default 100.
	VirtualNodesPerReplica int `yaml:"virtual_nodes_per_replica" default:"100" least:"1"`
	// LoadFactor is how many times the average load a replica may have before the next one on the ring is tried. Default 1.25.
	LoadFactor float64 `yaml:"load_factor" default:"1.25" least:"1"`
	// LoadFloor is how many requests a replica may always have, whatever the average. Default 8 for prefix, 0 for chwbl.
	LoadFloor int `yaml:"load_floor" least:"0"`
	// SlowStart is how long a replica that joins others of its model gets less than its share, rising from little to all. 0 is at once. Default
	// 10s, and 0 for chwbl.
	SlowStart time.Duration `yaml:"slow_start" least:"0s"`
	// MaxUserMessagesForCache is how many user messages of a chat, from the first, make its key on the ring. Default 2.
	MaxUserMessagesForCache int `yaml:"max_user_messages_for_cache" default:"2" least:"0"`
}

// PerReplica is a number of requests, or 0 for "auto".
type PerReplica int

// Admission says when a request may go on.
type Admission struct {
	// Weight is the model's share of its pools' requests beside the other models of a pool. Default 1.
	Weight int `yaml:"weight" default:"1" least:"1" most:"1000000"`
	// MaxConcurrentRequests bounds the model's running requests over all replicas. Default 0: no limit.
	MaxConcurrentRequests int `yaml:"max_concurrent_requests" least:"0" most:"1000000000"`
	// MaxTokensPerMinute bounds the model's tokens. Default 0: no limit.
	MaxTokensPerMinute int `yaml:"max_tokens_per_minute" least:"0" most:"1000000000000"`
	// MaxPerReplica bounds the running requests of one replica: a number, or auto for what the engine works on at once (1 for an
	// upstream). Default auto, which is 0.
	MaxPerReplica PerReplica `yaml:"max_per_replica" default:"auto"`
	// MaxPrefillPerReplica bounds the requests of one replica that have no token yet; more of them wait. Default 0: no limit.
	MaxPrefillPerReplica int `yaml:"max_prefill_per_replica" least:"0"`
	// MaxQueue is how many requests may wait; one more gets queue_full. Default 1000.
	MaxQueue int `yaml:"max_queue" default:"1000" least:"1"`
	// QueueTimeout is how long a request may wait; then it gets queue_timeout. Default 60s.
	QueueTimeout time.Duration `yaml:"queue_timeout" default:"60s" least:"1ms"`
}

// StreamMode says how the responses of a model are carried.
type StreamMode string

// The modes of Stream.
const (
	// StreamAuto leaves the choice to Sluice.
	StreamAuto StreamMode = "auto"
	// StreamNative streams go through Envoy alone.
	StreamNative StreamMode = "native"
	// StreamManaged streams go through Sluice.
	StreamManaged StreamMode = "managed"
)

// HeartbeatForm is what a heartbeat looks like.
type HeartbeatForm string

// The forms of heartbeats.
const (
	// HeartbeatComment is a comment of server-sent events, which clients ignore.
	HeartbeatComment HeartbeatForm = "comment"
	// HeartbeatChunk is a chunk without content.
	HeartbeatChunk HeartbeatForm = "chunk"
)

// Stream says how responses are carried.
type Stream struct {
	// Mode is native (through Envoy alone, from the replica to the client), managed (through Sluice, which reads every event) or auto:
	// native, but managed where a request asks for what Envoy cannot do, or will have to wait for longer than a third of heartbeat. Default
	// auto.
	Mode StreamMode `yaml:"mode" default:"auto" oneof:"auto,native,managed"`
	// Heartbeat is the longest silence that the client of a managed stream hears. Default 15s.
	Heartbeat time.Duration `yaml:"heartbeat" default:"15s" least:"100ms"`
	// HeartbeatAs is comment, or chunk for clients that cannot read comments: a chunk without content. Default comment.
	HeartbeatAs HeartbeatForm `yaml:"heartbeat_as" default:"comment" oneof:"comment,chunk"`
	// MaxDuration is how long a response may take in all. Default 30m.
	MaxDuration time.Duration `yaml:"max_duration" default:"30m" least:"1s"`
	// Resume is how long a request with a request_id goes on without its client, and how long its events are kept after its end. Default 5s.
	Resume time.Duration `yaml:"resume" default:"5s" least:"0s"`
	// TTFTTimeout is how long a replica has for the first token of a stream; then another is tried. Default 0: as long as it takes.
	TTFTTimeout time.Duration `yaml:"ttft_timeout" least:"0s"`
	// StallTimeout is the longest time between two events of an engine after the first token; then the stream ends with an error. Default 0: no
	// limit.
	StallTimeout time.Duration `yaml:"stall_timeout" least:"0s"`
	// InjectUsage asks the engine for the token usage of every stream, and keeps that event from clients that did not ask. Default false.
	InjectUsage bool `yaml:"inject_usage"`
	// Sample is the share of the streams, from 0 to 1, that mode auto makes managed only to see the times between their tokens. Default 0.
	Sample float64 `yaml:"sample" least:"0"`
}
