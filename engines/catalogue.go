package engines

import (
	"slices"
	"sync"
	"time"
)

// Engine is a kind of inference server, as data. No part of Sluice knows an engine by name; all
// that differs between engines is in their Versions.
type Engine struct {
	// Name is the value of `engine` of a model.
	Name string
	// Versions are the releases, oldest first. A model without a version gets the last one.
	Versions []Version
}

// Version is one version of an engine: what it can do, and how a replica of it is started.
type Version struct {
	// Version is the value of `version` of a model.
	Version string
	// Tasks are those that this version serves.
	Tasks []Task
	// Schema is the JSON Schema (draft 2020-12) of the variables, an object schema. Its defaults
	// are applied. nil allows any variable.
	Schema map[string]any
	// TaskVariables are variables that a task implies (llama-server needs a flag to serve
	// embeddings). A model's own variables override them.
	TaskVariables map[Task]map[string]any
	// Command is the program and its arguments, each a template over Launch; see Render.
	Command []string
	// Flags says how {{.Flags}} formats the variables.
	Flags FlagStyle
	// Env is added to the environment of a replica, each value a template over Launch; see
	// RenderEnv. A model's own environment overrides it.
	Env map[string]string
	// Image is the container image with the program. The local launcher does not use it.
	Image string
	// Release is the release in the name of Image, such as 0.11.0. A model that names another
	// release gets the image of that one. Empty: Image is for all releases.
	Release string `json:",omitempty"`
	// GPU says by which variables the engine is told its GPUs.
	GPU GPUUse `json:",omitzero"`
	// Owned are names of arguments that belong to Sluice, besides those in Command: a model must
	// not pass them. Each begins with a dash.
	Owned []string `json:",omitempty"`
	// Kubernetes is a template over Launch that makes YAML of a Deployment, or a part of one. It is
	// merged over the usual Deployment as a strategic merge patch; see RenderKubernetes. The
	// engine's container is named "engine". Empty changes nothing.
	Kubernetes string
	// PodHost is the Launch.Host of a pod. It is an address that stands for all of the pod's
	// addresses, of both families if the engine can, or $(POD_IP), the pod's first address. Empty
	// means 0.0.0.0, which is IPv4 alone.
	PodHost string `json:",omitempty"`
	// RayVariables are variables by which one replica spreads over several nodes of a Ray cluster.
	// A model's own variables override them. nil means that the engine cannot.
	RayVariables map[string]any
	// MultiHost says how one replica spreads over several pods on Kubernetes. The zero value means
	// that the engine cannot.
	MultiHost MultiHost `json:",omitzero"`
	// Ready tells when a starting replica may serve: at its first 2xx answer.
	Ready Probe
	// Health tells whether a ready replica still serves.
	Health Probe
	// Slots says how many requests a replica works on at once.
	Slots Slots
	// Metrics says where a replica tells of its load and its cache.
	Metrics Metrics
	// PrefillRate is a guess of how many prompt tokens a second a replica computes. It holds until
	// Sluice has measured the rate. 0 means unknown.
	PrefillRate float64
	// Protocol is what replicas speak: "http" or empty for OpenAI's API, "grpc" for
	// llm.v1.Inference. Probes are HTTP in any case.
	Protocol string
	// RerankAPI is how replicas rerank: "openai" or empty for POST /v1/rerank, "tei" for POST
	// /rerank of text-embeddings-inference.
	RerankAPI string
	// Usage says which counts of tokens replicas tell in a stream when they are asked for them.
	// Empty: not known, so that they are not asked.
	Usage UsageReports
	// Routes are the routes that replicas have, of those that only some engines have: /tokenize and
	// /detokenize, whose bodies are the engine's own, and /v1/messages and
	// /v1/messages/count_tokens. nil means that they are not known. No launcher needs them.
	Routes []string `json:"-"`
}

// Probe is an HTTP GET that a healthy engine answers with 2xx.
type Probe struct {
	// Path on the replica's own port, such as /health.
	Path string
	// Every is the interval between two probes.
	Every time.Duration
}

// UsageReports says which counts of tokens an engine tells in a stream when it is asked.
type UsageReports string

// What engines tell.
const (
	// UsageUnknown: nobody knows.
	UsageUnknown UsageReports = ""
	// UsageFinal: one event at the end of the stream (stream_options.include_usage).
	UsageFinal UsageReports = "final"
	// UsageContinuous: each event too (stream_options.continuous_usage_stats).
	UsageContinuous UsageReports = "continuous"
)

// Slots says how many requests a replica works on at once. Further requests wait inside the engine,
// where Sluice cannot schedule them.
type Slots struct {
	// Variable is the name of the variable that sets the number. It is empty if there is none.
	Variable string
	// Default holds if the variable is absent or not a positive number. 0 means unknown.
	Default int
	// Usual is the number of a server that someone else runs and that does not tell its own. 0
	// means Default.
	Usual int
}

// SlotsOf returns how many requests a replica works on at once. 0 means unknown.
func (v Version) SlotsOf(l Launch) int {
	if n, ok := positive(v.Complete(l.Task, l.Variables)[v.Slots.Variable]); ok {
		return n
	}
	return v.Slots.Default
}

// positive returns a positive number as decoders of YAML and JSON return it, and whether it is one.
func positive(value any) (int, bool) {
	n := 0
	switch v := value.(type) {
	case int:
		n = v
	case int64:
		n = int(v)
	case uint64:
		n = int(min(v, 1<<31))
	case float64:
		n = int(min(v, 1<<31))
	}
	return n, n > 0
}

// Serves reports whether this version serves the task.
func (v Version) Serves(t Task) bool { return slices.Contains(v.Tasks, t) }

// Builtin returns the built-in engines: the catalogue without the engines of a configuration. All
// callers share them, because making their schemas takes milliseconds. Nobody may change them.
func Builtin() []Engine { return builtin() }

var builtin = sync.OnceValue(func() []Engine {
	return []Engine{sim(), vllm(), sglang(), llamaCpp(), ollama(), tei(), fasterWhisper()}
})

// Find finds the table for a release of an engine in a catalogue; see Engine.Resolve.
func Find(catalogue []Engine, engine, version string) (Version, bool) {
	for _, e := range catalogue {
		if e.Name == engine {
			return e.Resolve(version)
		}
	}
	return Version{}, false
}
