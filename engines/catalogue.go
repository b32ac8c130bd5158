package engines

import (
	"slices"
	"time"
)

// Engine is an inference server program as data: nothing in Sluice knows an engine by name except through its Versions.
type Engine struct {
	// Name is what a model of the file says in `engine`.
	Name string
	// Versions side by side, oldest first. A model that names none gets the last.
	Versions []Version
}

// Version is one version of an engine: what it can do and how one replica of it is started.
type Version struct {
	// Version is what a model of the file says in `version`.
	Version string
	// Tasks that this version can serve.
	Tasks []Task
	// Schema is the JSON Schema (draft 2020-12) of the variables, an object schema. Its defaults are filled in. nil allows any
	// variable.
	Schema map[string]any
	// TaskVariables are variables that serving a task implies (llama-server must be told that it embeds). A model's own
	// variables win over them.
	TaskVariables map[Task]map[string]any
	// Command is the program and its arguments, each one a template over Launch; see Render.
	Command []string
	// Flags says how {{.Flags}} writes the variables.
	Flags FlagStyle
	// Env is added to the environment of a replica, each value a template over Launch; see RenderEnv. A model's own
	// environment wins over it.
	Env map[string]string
	// Image is the container image that holds the program. A local launch does not use it.
	Image string
	// Kubernetes is what a Deployment of this engine has beyond, or otherwise than, the usual one: a template over Launch that makes
	// YAML of a Deployment, whole or in part, which is merged over ours as a strategic merge patch. The engine's container is named
	// "engine". Empty: nothing.
	Kubernetes string
	// Ready tells when a starting replica may serve: the first 2xx answer.
	Ready Probe
	// Health tells whether a ready replica still serves.
	Health Probe
	// Slots says how many requests one replica works on at once.
	Slots Slots
	// Metrics says where a replica tells how busy it is.
	Metrics Metrics
	// Protocol that replicas speak: "http" or empty for OpenAI's API, "grpc" for llm.v1.Inference. Probes are HTTP in any case.
	Protocol string
	// RerankAPI is how replicas rerank: "openai" or empty for POST /v1/rerank, "tei" for POST /rerank of text-embeddings-inference.
	RerankAPI string
}

// Metrics names the gauges of a replica that tell how busy it is, in the text format of Prometheus. A gauge of several series counts
// as their sum. An empty name is a gauge that the engine does not have.
type Metrics struct {
	// Path on the replica's own port, such as /metrics. Empty when the engine has no metrics of use.
	Path string
	// Running is the number of requests that are worked on.
	Running string
	// Waiting is the number of requests that wait inside the engine.
	Waiting string
	// KVUsage is the share of the cache of keys and values that is in use, from 0 to 1.
	KVUsage string
}

// Probe is an HTTP GET that an engine answers with 2xx when all is well.
type Probe struct {
	// Path on the replica's own port, such as /health.
	Path string
	// Every is the pause between two probes.
	Every time.Duration
}

// Slots says how many requests a replica works on at once; more than that wait inside the engine, where nobody sees them.
type Slots struct {
	// Variable is the name of the variable that sets it; empty when no variable does.
	Variable string
	// Default holds when the variable is absent or not a positive number. 0 means unknown.
	Default int
}

// Count is the number of slots of a replica that is launched with these variables; 0 means unknown.
func (s Slots) Count(variables map[string]any) int {
	if n, ok := positive(variables[s.Variable]); ok {
		return n
	}
	return s.Default
}

// positive reads a number as decoded from YAML or JSON.
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

// Serves tells whether this version can serve the task.
func (v Version) Serves(t Task) bool { return slices.Contains(v.Tasks, t) }

// Builtin lists the engines that need no definition in the file. The result is the caller's own.
func Builtin() []Engine {
	return []Engine{sim(), vllm(), sglang(), llamaCpp(), ollama(), tei(), fasterWhisper()}
}

// Find picks an engine's version out of a catalogue. An empty version is the engine's last.
func Find(catalogue []Engine, engine, version string) (Version, bool) {
	for _, e := range catalogue {
		if e.Name != engine || len(e.Versions) == 0 {
			continue
		}
		if version == "" {
			return e.Versions[len(e.Versions)-1], true
		}
		for _, v := range e.Versions {
			if v.Version == version {
				return v, true
			}
		}
	}
	return Version{}, false
}
