// Package config is the file that Sluice is run by: what may stand in it, what a field that is absent means, and what is wrong
// with it.
//
// A file is read in one go: Load returns a Config that is complete, with every default filled in and every reference resolved, or
// all Faults of the file at once, each with its line. A Config is plain data and is not changed after that; a Watcher replaces it by a
// new one when the file changes.
//
// The data is in this file. The tags of a field say all that is said of one field alone, and both the reader and the JSON Schema
// for editors (examples/sluice.schema.json) are made from them:
//
//	yaml      its name in the file
//	default   its value when absent, written as in the file; without the tag it is the zero value
//	required  the field must be there
//	least     the smallest value it may have, written as in the file
//	most      the largest whole number it may have
//	oneof     the only values it may have
//	restart   a change takes effect only when Sluice is started again
package config

import (
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

//go:generate go test -run TestSchemaIsCurrent -update .

// Config is a whole file.
type Config struct {
	// Listen is the host:port on which clients are served, by Envoy. The host is an IP address, localhost, or nothing for all
	// addresses. Default 0.0.0.0:8080.
	Listen string `yaml:"listen" default:"0.0.0.0:8080" restart:"true"`
	// Admin is the host:port of the operator's page and API, /metrics, /healthz and /readyz. Default 127.0.0.1:9090.
	Admin string `yaml:"admin" default:"127.0.0.1:9090" restart:"true"`
	// MaxBody is the largest request body that is accepted. Default 32MiB.
	MaxBody Size `yaml:"max_body" default:"32MiB" least:"1KiB" restart:"true"`
	// MaxQueueBytes bounds the bodies of all waiting requests together; beyond it a request gets queue_full. Default 1GiB.
	MaxQueueBytes Size `yaml:"max_queue_bytes" default:"1GiB" least:"1KiB" restart:"true"`
	// DrainTimeout is how long a clean stop waits for running requests. Default 30s.
	DrainTimeout time.Duration `yaml:"drain_timeout" default:"30s" least:"0s" restart:"true"`
	// StateDir holds what outlives a crash: records of the processes that were started, their logs, sockets. A path that is not
	// absolute counts from the file's folder, ~/ is the user's home. Default $XDG_STATE_HOME/sluice, else ~/.local/state/sluice, and
	// /var/lib/sluice for a user without a home.
	StateDir string `yaml:"state_dir" restart:"true"`
	// Control is the host:port on which further hosts join (sluice node --join), by TLS with certificates that Sluice makes itself. The token
	// that lets them in is printed by sluice node token. Default: none can join.
	Control string `yaml:"control" restart:"true"`
	// OrphanGrace is how long Envoy and the replicas live on when Sluice died and nobody took them over. Default 60s.
	OrphanGrace time.Duration `yaml:"orphan_grace" default:"60s" least:"1s" restart:"true"`
	// ReplicaHeader puts x-sluice-replica, the id of the replica that served, on every response of an engine. Default true.
	ReplicaHeader bool `yaml:"replica_header" default:"true"`
	// LogRequests writes a line to the log for every request that has ended: who, what, how long, never what was said. Default true.
	LogRequests bool `yaml:"log_requests" default:"true" restart:"true"`
	// Redis is where several gateways share their limits, leases and tasks: redis://user:password@host:6379/0, or rediss:// for TLS.
	// Several hosts, as in redis://a:6379,b:6379,c:6379, are a cluster, which has no database number. Default: none; this gateway
	// shares with nobody.
	Redis string `yaml:"redis" restart:"true"`
	// Peers is the host:port on which gateways that share redis reach each other, by TLS with certificates that they make themselves: a client
	// that comes back to another gateway than the one which has its stream is passed on. Default: they do not, and request ids are each
	// gateway's own.
	Peers string `yaml:"peers" restart:"true"`
	// TaskLease is how long a task from /schedule holds its place without a call of /renew or /complete. Default 15m.
	TaskLease time.Duration `yaml:"task_lease" default:"15m" least:"1s"`
	// Auth says who may call.
	Auth Auth `yaml:"auth"`
	// Tenants are the callers. With auth.mode keys and no tenant nobody is let in.
	Tenants []Tenant `yaml:"tenants"`
	// Engines are added to the built-in ones. A version of the same engine and name takes the place of the built-in version.
	Engines []Engine `yaml:"engines"`
	// Registries are where models come from. The registry huggingface is always there.
	Registries []Registry `yaml:"registries"`
	// Nodes says more about hosts that replicas run on: this one and those that have joined.
	Nodes []Node `yaml:"nodes"`
	// Kubernetes says where Deployments are made, and whether engines and models are read from custom resources too. Default: custom resources
	// are not read, and models with launcher kubernetes go where kubectl would put them.
	Kubernetes *Kubernetes `yaml:"kubernetes" restart:"true"`
	// Models are what clients may ask for.
	Models []Model `yaml:"models"`
	// Upstreams are servers whose models are asked for and appear by themselves, such as http://10.0.0.7:8000.
	Upstreams []Upstream `yaml:"upstreams"`
	// Moderation ends answers that say what they may not.
	Moderation []Moderation `yaml:"moderation"`
	// Tracing sends spans of requests to a collector. Default: no spans.
	Tracing *Tracing `yaml:"tracing" restart:"true"`
	// Pools are names for several models, any of which will do. The first one is what /schedule takes when it is asked for none.
	Pools []Pool `yaml:"pools"`

	// File is the path of the file that was read; empty when the configuration did not come from one.
	File string `yaml:"-"`
	// Hash is the SHA-256 of the file's content, in hex.
	Hash string `yaml:"-"`

	// source is the file's content, and name what it was read under: With reads it again, together with more.
	source []byte `yaml:"-"`
	name   string `yaml:"-"`
	// catalogue is what objects' models pick from: all engines. ownCatalogue is what the file's do, without those of objects. The check makes both,
	// once: a launch looks them up for every model.
	catalogue, ownCatalogue []engines.Engine `yaml:"-"`
	// guestEngines and guestModels are how many of Engines and Models, the last ones, come from objects.
	guestEngines, guestModels int `yaml:"-"`
}

// AuthMode says how callers prove who they are.
type AuthMode string

// The modes of Auth.
const (
	// AuthKeys lets in who shows the key of a tenant.
	AuthKeys AuthMode = "keys"
	// AuthNone lets everybody in; only when all listeners are on loopback.
	AuthNone AuthMode = "none"
)

// Auth says who may call.
type Auth struct {
	// Mode is keys (callers need the key of a tenant) or none (everybody may call; refused unless every listener is on loopback).
	// Default keys.
	Mode AuthMode `yaml:"mode" default:"keys" oneof:"keys,none"`
}

// Tenant is one caller, with its keys.
type Tenant struct {
	// Name of the tenant, unique.
	Name string `yaml:"name" required:"true"`
	// Keys of the tenant, several of which are good at once. Each is a hash as `sluice keys new` prints it, or {hash, priority}.
	Keys []Key `yaml:"keys"`
	// Models that the tenant may use, by name or alias; "*" is every model and every pool. The name of a pool only lets the tenant ask
	// for the pool: it gets those of the pool's models that it may use. Default ["*"].
	Models []string `yaml:"models" default:"[\"*\"]"`
	// Weight is the tenant's share of a full model beside other tenants of its priority. Default 1.
	Weight int `yaml:"weight" default:"1" least:"1" most:"1000000"`
	// Priority of the tenant's requests while they wait: interactive goes before default, and default before batch. Default default.
	Priority Priority `yaml:"priority" default:"default" oneof:"interactive,default,batch"`
	// Limits of the tenant over all models.
	Limits TenantLimits `yaml:"limits"`
}

// Key is one key of a tenant. In the file it is a mapping, or its hash alone.
type Key struct {
	// Hash of the key: sha256: and 64 hex digits, as `sluice keys new` prints it.
	Hash string `yaml:"hash" required:"true"`
	// Priority of requests with this key: the tenant's or a lower one. Default: the tenant's.
	Priority Priority `yaml:"priority" oneof:"interactive,default,batch"`
}

// Priority says which requests go before others while they wait.
type Priority string

// The priorities, highest first.
const (
	// Interactive goes before all others.
	Interactive Priority = "interactive"
	// DefaultPriority is what nothing is said about.
	DefaultPriority Priority = "default"
	// Batch can wait.
	Batch Priority = "batch"
)

// TenantLimits bound what one tenant takes over all models. 0 is no limit.
type TenantLimits struct {
	// RequestsPerMinute that are let in; one more gets 429. Default 0: no limit.
	RequestsPerMinute int `yaml:"requests_per_minute" least:"0" most:"1000000000000"`
	// TokensPerMinute of prompts and answers together; a request for more gets 429. Default 0: no limit.
	TokensPerMinute int `yaml:"tokens_per_minute" least:"0" most:"1000000000000"`
	// MaxConcurrentStreams bounds the requests that run or wait; one more gets 429. Default 0: no limit.
	MaxConcurrentStreams int `yaml:"max_concurrent_streams" least:"0" most:"1000000000"`
	// MaxPrefill bounds the requests that are at a replica and have no token yet; more of them wait. Default 0: no limit.
	MaxPrefill int `yaml:"max_prefill" least:"0" most:"1000000000"`
	// MaxQueueBytes bounds the bodies of the tenant's waiting requests; beyond it a request gets 429. Default 0: no limit but that of
	// all.
	MaxQueueBytes Size `yaml:"max_queue_bytes"`
}

// Node is a host that replicas run on.
type Node struct {
	// Name that the host joined by, or this host's own name.
	Name string `yaml:"name" required:"true"`
	// Labels that models may ask for in cluster.
	Labels []string `yaml:"labels"`
}

// Kubernetes says how a cluster is used.
type Kubernetes struct {
	// Kubeconfig is the path of a file in kubectl's format. One that is not absolute counts from the file's folder. Default: $KUBECONFIG, else
	// ~/.kube/config, else the service account of the pod that Sluice runs in.
	Kubeconfig string `yaml:"kubeconfig"`
	// Context of that file. Default: its current one.
	Context string `yaml:"context"`
	// Namespace of the custom resources, and of the Deployments of models that name none. Default: the context's, or the pod's own.
	Namespace string `yaml:"namespace"`
	// Name of this installation. All its gateways have the same; installations that share a namespace have different ones. Default sluice.
	Name string `yaml:"name" default:"sluice"`
	// CustomResources reads engines and models from the custom resources Engine and InferenceModel beside the file. Default true.
	CustomResources bool `yaml:"custom_resources" default:"true"`
}

// Pool is a name for several models, any of which will do.
type Pool struct {
	// Name that clients ask for; unique among the names and aliases of all models and pools.
	Name string `yaml:"name" required:"true"`
	// Models of the pool, by name or alias.
	Models []string `yaml:"models" required:"true"`
}

// Engine is an inference server program, by versions.
type Engine struct {
	// Name is what models say in engine.
	Name string `yaml:"name" required:"true"`
	// Versions, oldest first. A model that names none gets the last.
	Versions []EngineVersion `yaml:"versions" required:"true"`
}

// EngineVersion is one version of an engine: what it can do and how one replica of it is started.
type EngineVersion struct {
	// Version is what models say in version.
	Version string `yaml:"version" required:"true"`
	// Tasks that it can serve.
	Tasks []engines.Task `yaml:"tasks" required:"true" oneof:"text-generation,embedding,rerank,transcription"`
	// Schema is the JSON Schema of the variables, whose defaults are filled in. Without it any variable is allowed.
	Schema map[string]any `yaml:"schema"`
	// TaskVariables are variables that serving a task implies; a model's own win.
	TaskVariables map[engines.Task]map[string]any `yaml:"task_variables"`
	// Command is the program and its arguments, each a Go template that may use .Name .Model .Registry .Task .Host .Port .GPUs .Sluice
	// and .Variables.x. The argument {{.Flags}} becomes all variables as --flags.
	Command []string `yaml:"command" required:"true"`
	// Flags says how {{.Flags}} writes the variables. Default: --name with dashes for underscores, the value as the next argument, the
	// items of a list joined by commas, true as the flag alone.
	Flags FlagStyle `yaml:"flags"`
	// Env is added to the environment of the replicas, each value a Go template as in command. An entry that names a variable which
	// nothing gives a value is left out. The env of a model wins.
	Env map[string]string `yaml:"env"`
	// Image is the container image that holds the program; a local launch does not need it.
	Image string `yaml:"image"`
	// Kubernetes is what a Deployment of this engine has beyond, or otherwise than, the usual one: a Go template as in command that makes YAML
	// of a Deployment, whole or in part, which is merged over the usual one (a strategic merge patch). The engine's container is called engine.
	Kubernetes string `yaml:"kubernetes"`
	// Ready tells when a starting replica may serve: the first 2xx answer.
	Ready ReadyProbe `yaml:"ready"`
	// Health tells whether a ready replica still serves.
	Health HealthProbe `yaml:"health"`
	// Slots says how many requests a replica works on at once.
	Slots Slots `yaml:"slots"`
	// Metrics says where a replica tells how busy it is.
	Metrics Metrics `yaml:"metrics"`
	// Protocol that replicas speak: http (OpenAI's API) or grpc (llm.v1.Inference, see examples/grpc). Probes are HTTP in any case. Default http.
	Protocol Protocol `yaml:"protocol" oneof:"http,grpc"`
	// RerankAPI is how replicas rerank: openai (POST /v1/rerank) or tei (POST /rerank of text-embeddings-inference). Default openai.
	RerankAPI RerankAPI `yaml:"rerank_api" oneof:"openai,tei"`
}

// Protocol is what replicas speak.
type Protocol string

// The protocols.
const (
	// ProtocolHTTP is OpenAI's API.
	ProtocolHTTP Protocol = "http"
	// ProtocolGRPC is llm.v1.Inference.
	ProtocolGRPC Protocol = "grpc"
)

// RerankAPI is how replicas rerank.
type RerankAPI string

// The ways of reranking.
const (
	// RerankOpenAI is POST /v1/rerank, as vLLM and llama-server have it.
	RerankOpenAI RerankAPI = "openai"
	// RerankTEI is POST /rerank of text-embeddings-inference.
	RerankTEI RerankAPI = "tei"
)

// FlagStyle says how {{.Flags}} writes the variables.
type FlagStyle struct {
	// Underscores leaves names as they are: --n_ctx instead of --n-ctx. Default false.
	Underscores bool `yaml:"underscores"`
	// BooleanValues writes --cache true and --cache false instead of --cache and nothing. Default false.
	BooleanValues bool `yaml:"boolean_values"`
	// Lists is commas (--device a,b) or arguments (--device a b). Default commas.
	Lists engines.ListStyle `yaml:"lists" oneof:"commas,arguments"`
}

// Metrics names the gauges of a replica that tell how busy it is, in the text format of Prometheus.
type Metrics struct {
	// Path on the replica's own port. Default: the gauges are not read.
	Path string `yaml:"path"`
	// Running is the name of the gauge of requests that are worked on.
	Running string `yaml:"running"`
	// Waiting is the name of the gauge of requests that wait inside the engine.
	Waiting string `yaml:"waiting"`
	// KVUsage is the name of the gauge of the share of the key and value cache that is in use, from 0 to 1.
	KVUsage string `yaml:"kv_usage"`
}

// ReadyProbe is the HTTP GET that tells when a replica may serve.
type ReadyProbe struct {
	// Path on the replica's own port. Default /health.
	Path string `yaml:"path" default:"/health"`
	// Every is the pause between two probes. Default 500ms.
	Every time.Duration `yaml:"every" default:"500ms" least:"10ms"`
}

// HealthProbe is the HTTP GET that tells whether a ready replica still serves.
type HealthProbe struct {
	// Path on the replica's own port. Default /health.
	Path string `yaml:"path" default:"/health"`
	// Every is the pause between two probes. Default 10s.
	Every time.Duration `yaml:"every" default:"10s" least:"10ms"`
}

// Slots says how many requests a replica works on at once.
type Slots struct {
	// Variable is the name of the variable that sets it. Default: none does.
	Variable string `yaml:"variable"`
	// Default holds when that variable is not given. Default 0: unknown, and treated as 1.
	Default int `yaml:"default" least:"0"`
}

// RegistryKind says what the names of a registry's models are.
type RegistryKind string

// The kinds of registries.
const (
	// HuggingFace models are ids that the engine resolves itself.
	HuggingFace RegistryKind = "huggingface"
	// Directory models are paths below the registry's own.
	Directory RegistryKind = "directory"
)

// Registry is where models come from.
type Registry struct {
	// Name is what models say in source.registry.
	Name string `yaml:"name" required:"true"`
	// Kind is huggingface (names are ids, handed to the engine as they are) or directory (names are paths below path).
	Kind RegistryKind `yaml:"kind" required:"true" oneof:"huggingface,directory"`
	// Path of a directory registry. One that is not absolute counts from the file's folder.
	Path string `yaml:"path"`
	// Claim is the PersistentVolumeClaim that holds the directory on Kubernetes, where it is mounted at path, for reading only. With a claim
	// path need not be on this host.
	Claim string `yaml:"claim"`
}

// Source says where a model comes from.
type Source struct {
	// Registry is the name of one of the registries. Default huggingface.
	Registry string `yaml:"registry" default:"huggingface"`
	// Name of the model in the registry: an id, or a path below the registry's directory that must exist.
	Name string `yaml:"name" required:"true"`
}
