package config

import (
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// Engine is a kind of inference server, with its versions.
type Engine struct {
	// Name is the name that models give in engine.
	Name string `yaml:"name" required:"true" form:"name"`
	// Versions are the versions of the engine, oldest first. A model that names none gets the last.
	Versions []EngineVersion `yaml:"versions" required:"true"`
}

// EngineVersion is one version of an engine: its tasks, and how a replica is started and observed.
// A version of a built-in engine inherits every field that it does not set. It inherits from the
// built-in version of the same name, else from the newest one below it, else from the last one.
type EngineVersion struct {
	// Version is the name that models give in version.
	Version string `yaml:"version" required:"true"`
	// Tasks are the tasks that the version can serve. It is required for engines that are not
	// built in, as is command.
	Tasks []engines.Task `yaml:"tasks" oneof:"text-generation,embedding,rerank,transcription,speech,image-generation"`
	// Schema is the JSON Schema of the variables. The defaults in it are filled in. Default: any
	// variable is allowed.
	Schema map[string]any `yaml:"schema"`
	// TaskVariables are variables that follow from the task of a model. The variables of the model
	// override them.
	TaskVariables map[engines.Task]map[string]any `yaml:"task_variables"`
	// Command is the program and its arguments. Each is a Go template that may use .Name .Model
	// .Registry .Task .Host .Port .GPUs .Sluice and .Variables.x. The argument {{.Flags}} is
	// replaced by all variables as --flags.
	Command []string `yaml:"command"`
	// Flags says how {{.Flags}} writes the variables. Default: --name with dashes for underscores,
	// the value as the next argument, the items of a list joined by commas, true as the flag alone.
	Flags FlagStyle `yaml:"flags"`
	// Env is added to the environment of the replicas. Each value is a Go template as in command.
	// An entry that uses a variable without a value is left out. The env of a model overrides it.
	Env map[string]string `yaml:"env"`
	// EnvFrom names variables with secrets for the replicas of all models with this version and
	// launcher local, as env_from of a model does. The model overrides it. Default: none.
	EnvFrom EnvFrom `yaml:"env_from"`
	// Image is the container image of the program. The launcher local does not use it.
	Image string `yaml:"image"`
	// Kubernetes is a partial Deployment that is merged over the one that Sluice makes (a strategic
	// merge patch). It is a Go template as in command that renders YAML. The container of the
	// engine is called engine.
	Kubernetes string `yaml:"kubernetes"`
	// PodHost is what .Host is in a pod on Kubernetes: :: for engines that then accept both IPv4
	// and IPv6, or $(POD_IP), the first address of the pod. Default 0.0.0.0, which is IPv4 alone.
	PodHost string `yaml:"pod_host"`
	// RayVariables are variables by which one replica with launcher ray spreads over several nodes,
	// if it needs more GPUs than any node has. The variables of the model override them. Default:
	// empty, the engine cannot spread.
	RayVariables map[string]any `yaml:"ray_variables"`
	// MultiHost says how one replica with launcher kubernetes spreads over several pods (hosts of a
	// model). Default: empty, the engine cannot spread.
	MultiHost MultiHost `yaml:"multi_host"`
	// Ready is the probe that tells when a starting replica may serve: with the first 2xx answer.
	Ready ReadyProbe `yaml:"ready"`
	// Health is the probe that tells whether a ready replica can still serve.
	Health HealthProbe `yaml:"health"`
	// Slots says how many requests a replica works on at the same time.
	Slots Slots `yaml:"slots"`
	// Metrics says where a replica tells of its load and its cache.
	Metrics Metrics `yaml:"metrics"`
	// PrefillRate is a guess of how many prompt tokens a second a replica computes. It holds until
	// Sluice has measured the rate. Default 0: unknown.
	PrefillRate float64 `yaml:"prefill_rate" min:"0"`
	// Protocol is the protocol of the replicas: http (OpenAI's API) or grpc (llm.v1.Inference, see
	// examples/grpc). Probes always use HTTP. Default http.
	Protocol Protocol `yaml:"protocol" oneof:"http,grpc"`
	// RerankAPI is the rerank API of the replicas: openai (POST /v1/rerank) or tei (POST /rerank of
	// text-embeddings-inference). Default openai.
	RerankAPI RerankAPI `yaml:"rerank_api" oneof:"openai,tei"`
	// Usage is which counts of tokens the replicas tell in a stream when they are asked: final
	// (stream_options.include_usage) or continuous (continuous_usage_stats too). Managed streams
	// ask for them. Default: not known, they are not asked.
	Usage engines.UsageReports `yaml:"usage" oneof:"final,continuous"`
	// Routes lists which routes the replicas have of those that only some engines have: /tokenize,
	// /detokenize, /v1/messages, /v1/messages/count_tokens. Requests to the last two are translated
	// into chat completions if the replicas have not got them. A request to another route that they
	// have not got is refused. Default: not known, as with /tokenize and /detokenize.
	Routes []Route `yaml:"routes"`

	// Base is the built-in version that the version inherits from. It is zero if the engine is not
	// a built-in one.
	Base engines.Version `yaml:"-"`
}

// Route is the path of a route that only some engines have.
type Route string

// The routes that only some engines have.
const (
	RouteTokenize    Route = "/tokenize"
	RouteDetokenize  Route = "/detokenize"
	RouteMessages    Route = "/v1/messages"
	RouteCountTokens Route = "/v1/messages/count_tokens"
)

// OptionalRoutes returns the routes that only some engines have.
func OptionalRoutes() []Route {
	return []Route{RouteTokenize, RouteDetokenize, RouteMessages, RouteCountTokens}
}

// allowedValues implements enumerated.
func (Route) allowedValues() []string { return converted[string](OptionalRoutes()) }

// Protocol is the protocol that replicas speak.
type Protocol string

// The protocols.
const (
	// ProtocolHTTP is OpenAI's API.
	ProtocolHTTP Protocol = "http"
	// ProtocolGRPC is llm.v1.Inference.
	ProtocolGRPC Protocol = "grpc"
)

// RerankAPI is the API by which replicas rerank.
type RerankAPI string

// The rerank APIs.
const (
	// RerankOpenAI is POST /v1/rerank, as vLLM and llama-server implement it.
	RerankOpenAI RerankAPI = "openai"
	// RerankTEI is POST /rerank of text-embeddings-inference.
	RerankTEI RerankAPI = "tei"
)

// FlagStyle says how {{.Flags}} writes the variables.
type FlagStyle struct {
	// Underscores keeps underscores in names: --n_ctx instead of --n-ctx. Default false.
	Underscores bool `yaml:"underscores"`
	// BooleanValues writes --cache true and --cache false, instead of --cache and nothing. Default
	// false.
	BooleanValues bool `yaml:"boolean_values"`
	// Lists is commas (--device a,b) or arguments (--device a b). Default commas.
	Lists engines.ListStyle `yaml:"lists" oneof:"commas,arguments"`
}

// Metrics says where a replica tells of its load and its cache. Sluice reads it every two seconds.
// A figure is the name of a series in the text format of Prometheus, whose values add up. Braces
// choose series by a label (mode="x"), or name labels whose product is the value
// (blocks,block_size). A path with # names fields of a JSON document, such as
// /props#total_slots*settings.n_ctx, which is read once a minute. A list on the way to a field is
// the sum over its items. Alternatives have " or " between. Default: empty, the engine does not
// tell.
type Metrics struct {
	// Path is the HTTP path of the metrics on the replica's port. Default: empty, no metrics are
	// read.
	Path string `yaml:"path"`
	// Running is the number of running requests.
	Running string `yaml:"running"`
	// Waiting is the number of requests that wait inside the engine.
	Waiting string `yaml:"waiting"`
	// KVUsage is the used share of the key-value cache, from 0 to 1.
	KVUsage string `yaml:"kv_usage"`
	// CacheTokens is how many tokens the prefix cache can hold.
	CacheTokens string `yaml:"cache_tokens"`
	// CachedTokens is the counter of prompt tokens that were found in the cache.
	CachedTokens string `yaml:"cached_tokens"`
	// PrefillTokens is the counter of prompt tokens that were computed.
	PrefillTokens string `yaml:"prefill_tokens"`
	// PrefillSeconds is the counter of the time in which they were computed, in seconds.
	PrefillSeconds string `yaml:"prefill_seconds"`
	// Slots is the number of requests that the engine works on at the same time.
	Slots string `yaml:"slots"`
	// Sign names fields of JSON documents, such as /api/version#version. A server of upstreams that
	// has one of them is recognised as this engine, unless its metrics reveal an engine. Default:
	// empty.
	Sign string `yaml:"sign"`
}

// ReadyProbe is the HTTP GET that tells when a starting replica may serve.
type ReadyProbe struct {
	// Path is the HTTP path on the replica's port. Default /health.
	Path string `yaml:"path" default:"/health" form:"absolute"`
	// Every is the pause between two probes. Default 500ms.
	Every time.Duration `yaml:"every" default:"500ms" min:"10ms"`
}

// HealthProbe is the HTTP GET that tells whether a ready replica can still serve.
type HealthProbe struct {
	// Path is the HTTP path on the replica's port. Default /health.
	Path string `yaml:"path" default:"/health" form:"absolute"`
	// Every is the pause between two probes. Default 10s.
	Every time.Duration `yaml:"every" default:"10s" min:"10ms"`
}

// Slots says how many requests a replica works on at the same time.
type Slots struct {
	// Variable is the name of the variable that sets the number. Default: empty, no variable sets
	// it.
	Variable string `yaml:"variable"`
	// Default is the number of requests when the variable is not set. Default 0: unknown, and
	// treated as 1.
	Default int `yaml:"default" min:"0"`
	// Usual is the number of requests of a server of upstreams that is recognised as this engine
	// and does not tell its number. Default 0: the same as default.
	Usual int `yaml:"usual" min:"0"`
}

// RegistryKind says what the names of a registry's models are.
type RegistryKind string

// The kinds of registries.
const (
	// HuggingFace is a registry whose model names are ids of repositories. The engine resolves
	// them, or Sluice fetches them.
	HuggingFace RegistryKind = "huggingface"
	// Directory is a registry whose model names are paths below its own path.
	Directory RegistryKind = "directory"
)

// Registry is a place that models are loaded from.
type Registry struct {
	// Name is the name that models give in source.registry.
	Name string `yaml:"name" required:"true" form:"name"`
	// Kind is huggingface (model names are ids, which the engine gets unchanged unless fetch is
	// true) or directory (model names are paths below path).
	Kind RegistryKind `yaml:"kind" required:"true" oneof:"huggingface,directory"`
	// Path is the path of a directory registry. A relative path counts from the folder of the file.
	Path string `yaml:"path"`
	// Claim is the PersistentVolumeClaim that holds the directory on Kubernetes. It is mounted
	// read-only at path. With a claim, path need not exist on this node.
	Claim string `yaml:"claim" form:"label"`
	// Fetch makes Sluice fetch the weights of a huggingface registry, for models with launcher
	// local. The engine gets the path of what was fetched. A node fetches once for all its
	// replicas, goes on after a break and checks what it got. Clients and operators see how far it
	// is. Default false: the engine gets the id and fetches for itself.
	Fetch bool `yaml:"fetch"`
	// CacheDir is the directory on each node in which fetched weights are kept, in the layout of
	// the hub's own cache. A relative path counts from the folder of the file. Default:
	// $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub, each as on that node.
	CacheDir string `yaml:"cache_dir"`
	// Endpoint is the URL of the hub, or of a mirror with the same API. Default: $HF_ENDPOINT, else
	// https://huggingface.co.
	Endpoint string `yaml:"endpoint" form:"url"`
	// TokenEnv is the name of the variable in Sluice's own environment that holds the token for the
	// hub. The token is sent to the endpoint alone. Default HF_TOKEN, which need not be set.
	TokenEnv string `yaml:"token_env" form:"variable"`
	// Cache is a volume of Kubernetes into which the weights of a huggingface registry are fetched
	// once, for models with launcher kubernetes. Default: absent, each pod fetches for itself.
	Cache *Cache `yaml:"cache"`

	// Token is the value of the variable that TokenEnv names. It is a secret. Empty: none is sent.
	Token string `yaml:"-"`
}

// Cache is a volume of Kubernetes for weights. A Job fetches into it before the first pod of a
// model is made. Clients and operators see how far it is.
type Cache struct {
	// Claim is an existing PersistentVolumeClaim in the namespace of the pods. Without it, Sluice
	// makes one that several nodes can mount (ReadWriteMany), named after the registry.
	Claim string `yaml:"claim" form:"label"`
	// StorageClass is the storage class of the claim that Sluice makes. Default: the cluster's.
	StorageClass string `yaml:"storage_class"`
	// Size is the size of the claim that Sluice makes. It is required without claim. A larger size
	// enlarges the claim if its storage class permits that. A smaller one changes nothing.
	Size Size `yaml:"size"`
	// Path is where the volume is mounted. Default /var/cache/sluice/weights.
	Path string `yaml:"path" default:"/var/cache/sluice/weights" form:"absolute"`
	// Image is the image of the Job. It must have Sluice's program. Default sluice:latest.
	Image string `yaml:"image" default:"sluice:latest"`
	// Token is the entry of a Secret with the token for the hub, as secret/key. Default: none.
	Token string `yaml:"token"`
	// Pod is a strategic merge patch over the template of the Job's pods, as pod of a model: for
	// the variables of a proxy, resources, tolerations or imagePullSecrets. The only container is
	// called loader. Default: empty.
	Pod map[string]any `yaml:"pod"`
}

// Source says where a model comes from.
type Source struct {
	// Registry is the name of a registry. Default huggingface.
	Registry string `yaml:"registry" default:"huggingface"`
	// Name is the name of the model in the registry: an id, or a path below the registry's
	// directory that must exist.
	Name string `yaml:"name" required:"true"`
	// Revision is the branch, tag or commit of the repository. It needs a registry with fetch. What
	// a branch was when it was fetched is kept. Default main.
	Revision string `yaml:"revision"`
	// File is the file of the repository to load, by its path there. It needs a registry with
	// fetch. For one part of a GGUF file that was split, all parts are fetched. Default: for
	// engines that load GGUF the file of the repository with Q4_K_M, or the next best; else the
	// whole directory.
	File string `yaml:"file"`
}

// MultiHost says how one replica spreads over the pods of a group of a LeaderWorkerSet. Each pod
// has the address of its leader in LWS_LEADER_ADDRESS, the number of pods in LWS_GROUP_SIZE, and
// its own number in LWS_WORKER_INDEX, which is 0 for the leader.
type MultiHost struct {
	// Leader is the command of the leader, which answers requests. The argument {{.Command}} is
	// replaced by all of command. Default: command alone.
	Leader []string `yaml:"leader"`
	// Worker is the command of each worker, with {{.Command}} as in leader. Default: empty, the
	// engine cannot spread.
	Worker []string `yaml:"worker"`
	// Variables are added for replicas on several hosts. The variables of the model override them.
	// Default: none.
	Variables map[string]any `yaml:"variables"`
	// Hosts is the variable that gets the number of hosts, unless the model sets the sizes of the
	// parallelism itself. Default: empty, none does.
	Hosts string `yaml:"hosts"`
}
