// Package config reads the configuration file of Sluice: its data, its defaults, its faults with
// their lines, and its reload. Package internal/gateway and the commands use it.
//
// Load returns either a complete Config, with every default filled in and every reference resolved,
// or all Faults of the file at once. A Config is plain data and is not changed after Load. A
// Watcher replaces the Config in force with a new one when the file changes.
//
// The structs and their tags describe the file. The decoder and the JSON Schema for editors
// (examples/sluice.schema.json) are both derived from them:
//
//	yaml      name of the field in the file
//	default   value of an absent field, written as in the file; by default the zero value
//	required  the field must be present
//	min       smallest value allowed, written as in the file
//	max       largest whole number allowed
//	oneof     the only values allowed, separated by commas
//	form      what the text looks like, for the JSON Schema alone: a name of textForms
//	restart   a change takes effect only when Sluice is restarted
package config

import (
	"net/netip"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

//go:generate go test -run "TestSchemaIsCurrent|TestCRDsAreCurrent" -update .

// Config is a whole configuration file.
type Config struct {
	// Listen is the host:port on which Envoy serves clients. The host is an IP address, localhost,
	// or empty for all addresses. Default 0.0.0.0:8080.
	Listen string `yaml:"listen" default:"0.0.0.0:8080" restart:"true" form:"listener"`
	// TLS has the certificate with which Envoy serves clients on listen. Default: absent, clients
	// connect without TLS.
	TLS *TLS `yaml:"tls" restart:"true"`
	// Admin is the host:port of the operator's page and API, of /metrics, /healthz and /readyz.
	// Default 127.0.0.1:9090.
	Admin string `yaml:"admin" default:"127.0.0.1:9090" restart:"true" form:"listener"`
	// AdminAuth says who may use the admin listener. Default: absent, everybody who reaches it may
	// change everything; admin must then be on loopback.
	AdminAuth *AdminAuth `yaml:"admin_auth"`
	// Health is the host:port of a further listener that serves only /healthz, /readyz and
	// /metrics, to everybody. Default: empty, there is none.
	Health string `yaml:"health" restart:"true" form:"listener"`
	// MaxBody is the size of the largest request body that is accepted. Default 32MiB.
	MaxBody Size `yaml:"max_body" default:"32MiB" min:"1KiB" max:"1GiB" restart:"true"`
	// MaxHeaders is the greatest number of headers of a request. A request with more gets 431.
	// Default 100.
	MaxHeaders int `yaml:"max_headers" default:"100" min:"20" max:"1000" restart:"true"`
	// MaxHeaderBytes is the largest sum of the names and values of a request's headers. A request
	// above it gets 431. Default 60KiB.
	MaxHeaderBytes Size `yaml:"max_header_bytes" default:"60KiB" min:"4KiB" restart:"true"`
	// MaxQueueBytes is the largest sum of the bodies of all waiting requests. A request that would
	// exceed it is rejected with queue_full. Default 1GiB.
	MaxQueueBytes Size `yaml:"max_queue_bytes" default:"1GiB" min:"1KiB" restart:"true"`
	// Connections bounds the connections of clients.
	Connections Connections `yaml:"connections" restart:"true"`
	// Upload bounds the bodies of requests while they arrive.
	Upload Upload `yaml:"upload" restart:"true"`
	// Memory bounds the memory of the gateway's own process. Envoy and replicas do not count.
	Memory Memory `yaml:"memory" restart:"true"`
	// Realtime bounds the WebSockets of /v1/realtime.
	Realtime Realtime `yaml:"realtime"`
	// Envoy bounds what Envoy may use.
	Envoy Envoy `yaml:"envoy" restart:"true"`
	// DrainTimeout is how long a clean stop waits for running requests. Default 30s.
	DrainTimeout time.Duration `yaml:"drain_timeout" default:"30s" min:"0s" restart:"true"`
	// UpgradeTimeout is how long the process before a restart may carry on the managed streams, the
	// WebSockets and the gRPC calls that it has. It is also how long an Envoy that was replaced may
	// carry on its requests. Default 1h.
	UpgradeTimeout time.Duration `yaml:"upgrade_timeout" default:"1h" min:"0s"`
	// StateDir is the directory of what outlives a crash of Sluice: records of started processes,
	// their logs, and sockets. A relative path counts from the folder of the file; ~/ is the user's
	// home. Default $XDG_STATE_HOME/sluice, else ~/.local/state/sluice, and /var/lib/sluice for a
	// user without a home.
	StateDir string `yaml:"state_dir" restart:"true"`
	// Control says where nodes and Envoys of other hosts reach the gateway. An address alone is its
	// field nodes. Default: empty, none can.
	Control Control `yaml:"control" restart:"true"`
	// OrphanGrace is how long Envoy and the replicas run on after Sluice died, if no new Sluice
	// process adopts them. Default 60s.
	OrphanGrace time.Duration `yaml:"orphan_grace" default:"60s" min:"1s" restart:"true"`
	// ReplicaHeader adds x-sluice-replica, the id of the replica that served the request, to every
	// response of an engine. Default true.
	ReplicaHeader bool `yaml:"replica_header" default:"true"`
	// AccessLog says where the line of each finished request goes.
	AccessLog AccessLog `yaml:"access_log" restart:"true"`
	// LogRequests says whether finished requests are logged. The value false means the same as
	// access_log: {to: off}. Default true.
	LogRequests bool `yaml:"log_requests" default:"true" restart:"true"`
	// Redis is the Redis in which several gateways share their limits, leases and tasks. A URL
	// alone is its field url. Default: absent, this gateway shares nothing.
	Redis *Redis `yaml:"redis" restart:"true"`
	// RedisTimeout is how long a request waits for one answer of redis. A gateway that gets none in
	// this time decides without the others until Redis answers again. A Redis of another zone, or a
	// busy one, needs more than the default. Calls that no request waits for have 20 times as long,
	// but at most 2s. Default 50ms.
	RedisTimeout time.Duration `yaml:"redis_timeout" default:"50ms" min:"5ms" max:"500ms" restart:"true"`
	// Peers is the host:port on which gateways that share redis reach each other, over TLS with
	// certificates that the gateways make themselves. A gateway forwards a client that resumes a
	// stream to the gateway that owns the stream. Default: empty, a request id is known only to its
	// own gateway.
	Peers string `yaml:"peers" restart:"true" form:"listener"`
	// TaskLease is how long a task from /schedule holds its lease without a call of /renew or
	// /complete. A task does not expire while one of its own requests waits or runs, unless no
	// gateway ran for longer than that. Default 15m.
	TaskLease time.Duration `yaml:"task_lease" default:"15m" min:"1s"`
	// TaskLifetime is how long a task lasts at most, however often it is renewed. After it the task
	// is not found any more, and its capacity is free. Default 4h.
	TaskLifetime time.Duration `yaml:"task_lifetime" default:"4h" min:"1s"`
	// Usage says how long what was used is kept.
	Usage Usage `yaml:"usage"`
	// Auth says who may call.
	Auth Auth `yaml:"auth"`
	// CORS says which pages of other origins may call the API from a browser.
	CORS CORS `yaml:"cors"`
	// Tenants are the callers. With auth.mode keys and no tenant, every request is rejected.
	Tenants []Tenant `yaml:"tenants"`
	// Engines are added to the built-in engines. A version replaces the built-in version of the
	// same engine and name, and inherits from it what it does not set.
	Engines []Engine `yaml:"engines"`
	// Registries are the places that models are loaded from. The registry huggingface always
	// exists.
	Registries []Registry `yaml:"registries"`
	// Nodes gives labels to the nodes that run replicas: this one and those that joined.
	Nodes []Node `yaml:"nodes"`
	// Kubernetes says in which cluster Deployments are made, and whether engines and models are
	// also read from custom resources. Default: absent; custom resources are not read, and no model
	// can have launcher kubernetes.
	Kubernetes *Kubernetes `yaml:"kubernetes" restart:"true"`
	// Profiles are resources and patches of pods, each under a name, for models with launcher
	// kubernetes.
	Profiles []Profile `yaml:"profiles"`
	// Ray says which Ray cluster runs the models with launcher ray. Default: absent, and no model
	// can have that launcher.
	Ray *Ray `yaml:"ray" restart:"true"`
	// Models are the models that clients may request.
	Models []Model `yaml:"models"`
	// DefaultModel is the name or alias of the model or pool that serves requests which name no
	// model, if their tenant may use it. It cannot be a model with launcher none, which serves no
	// requests. Default: empty, and then a request may leave its model out only if its tenant can
	// call one model alone and no pool.
	DefaultModel string `yaml:"default_model"`
	// Upstreams are servers that someone else runs, such as http://10.0.0.7:8000. Sluice asks each
	// server for its models and offers them to clients.
	Upstreams []Upstream `yaml:"upstreams"`
	// Discovered has the settings of the models that are discovered on upstreams.
	Discovered Discovered `yaml:"discovered"`
	// Moderation is the list of rules that end answers with forbidden content.
	Moderation []Moderation `yaml:"moderation"`
	// Tracing sends spans of requests to a collector. Default: absent, no spans are sent.
	Tracing *Tracing `yaml:"tracing" restart:"true"`
	// Pools are names that stand for several models, any of which may serve a request. The first
	// pool is the one that /schedule uses when a task names no model and no pool.
	Pools []Pool `yaml:"pools"`

	// File is the path of the file that was read. It is empty when the configuration did not come
	// from a file.
	File string `yaml:"-"`
	// Hash is the SHA-256 of the file's content, in hex.
	Hash string `yaml:"-"`

	// source is the file's content and name the name it was read under. With parses source again,
	// together with objects.
	source []byte `yaml:"-"`
	name   string `yaml:"-"`
	// fields are those of WithFields.
	fields map[string]string `yaml:"-"`
	// catalogue holds all engines: the built-in ones, the file's and those of objects. Models of
	// objects choose from it. ownCatalogue is the same without the engines of objects. The check
	// builds both once, because Launch looks an engine up for every model.
	catalogue, ownCatalogue []engines.Engine `yaml:"-"`
	// objectEngines and objectModels count the items at the ends of Engines and Models that come
	// from objects.
	objectEngines, objectModels int `yaml:"-"`
}

// Node adds labels to a machine that runs replicas.
type Node struct {
	// Name is the name that the node joined by, or this machine's own name.
	Name string `yaml:"name" required:"true" form:"name"`
	// Labels are the labels that a model may require in cluster.
	Labels []string `yaml:"labels" form:"name"`
	// Addresses are the addresses at which replicas of a node that joined may listen, besides the
	// one that the node connects from. Each is an IP address, or a range such as 10.0.0.0/24. They
	// are needed when a node connects through NAT, or has several addresses.
	Addresses []string `yaml:"addresses" form:"network"`

	// Ranges is Addresses as ranges.
	Ranges []netip.Prefix `yaml:"-"`
}

// Kubernetes says how a cluster is used.
type Kubernetes struct {
	// Kubeconfig is the path of a file in kubectl's format. A relative path counts from the folder
	// of the configuration file. The file is read once. A token that is rotated belongs in a file
	// of its own, which tokenFile names. Default: $KUBECONFIG, else ~/.kube/config, else the
	// service account of the pod that Sluice runs in.
	Kubeconfig string `yaml:"kubeconfig"`
	// Context is the context to use from kubeconfig. Default: the current context of that file.
	Context string `yaml:"context"`
	// Namespace is the namespace of the custom resources, and of the Deployments of models that
	// name none. Default: the namespace of the context, or of the pod.
	Namespace string `yaml:"namespace" form:"label"`
	// Name is the name of this installation. All its gateways have the same name; installations
	// that share a namespace have different names. At most 20 characters. Default sluice.
	Name string `yaml:"name" default:"sluice" form:"label"`
	// CustomResources reads engines and models from the custom resources Engine and InferenceModel,
	// in addition to the file. Default true.
	CustomResources bool `yaml:"custom_resources" default:"true"`
}

// Pool is a name that stands for several models, any of which may serve a request.
type Pool struct {
	// Name is the name that clients request. It is unique among the names and aliases of all models
	// and pools.
	Name string `yaml:"name" required:"true" form:"name"`
	// Models are the models of the pool, by name or alias.
	Models []string `yaml:"models" required:"true"`
}

// Tracing says where spans of requests are sent.
type Tracing struct {
	// Endpoint is the URL of a collector that receives OTLP over HTTP, such as
	// http://127.0.0.1:4318.
	Endpoint string `yaml:"endpoint" required:"true" form:"url"`
	// Sample is the share of requests that are traced, from 0 to 1. It applies to requests whose
	// traceparent header does not decide it. Default 0.01.
	Sample float64 `yaml:"sample" default:"0.01" min:"0" form:"share"`
	// TraceURL is the address at which a person sees a trace, with {trace_id} in the place of its
	// id, such as https://jaeger.example.com/trace/{trace_id}. The operator's page links to it.
	// Default: no links.
	TraceURL string `yaml:"trace_url"`
}
