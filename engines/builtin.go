package engines

import (
	"maps"
	"time"
)

// sim is the simulated engine: `sluice sim` of the running program. Its flags have the names of
// vLLM's where vLLM has such flags.
func sim() Engine {
	const slots = 256
	metrics := vllmMetrics()
	metrics.Slots = "sim:max_num_seqs"
	return Engine{Name: "sim", Versions: []Version{{
		Version: "1",
		Tasks:   []Task{TextGeneration, Embedding, Rerank, Transcription, Speech, ImageGeneration},
		Routes:  append(tokenizes(), messagesAPI()...),
		Schema: variables(map[string]any{
			"max_num_seqs":   withDefault(slots, integer(1, "requests worked on at once; more wait inside the engine")),
			"prefill_rate":   number0("prompt tokens a second that are taken in when they are not cached; 0: no limit"),
			"token_interval": duration("time between two tokens of a request that decodes alone, such as 20ms; 0s: none"),
			"batch_slowdown": number0("share of token_interval by which each further decoding request slows a step"),
			"cache_tokens": integer(0, "GPU memory in tokens, for running requests and the prefix cache; "+
				"0: no limit and no prefix cache; by default 131072, or 512 for each of max_num_seqs if that is more"),
			"prefill_slowdown":       number0("share by which each decoding request lengthens a prefill"),
			"max_num_batched_tokens": integer(1, "tokens in the prefill queue beyond which further requests wait inside the engine"),
			"block_size":             integer(1, "tokens in a block of GPU memory; by default 16"),
			"load_time":              duration("how long the engine pretends to load before it is ready, such as 3s"),
			"embedding_dim":          integer(1, "length of embedding vectors"),
			"name":                   text("name of the engine in its answers; by default its model and port"),
			"seed":                   integer(0, "varies the sentences of the answers and the embedding space"),
			"fault":                  text("what goes wrong with every request, such as status=503, slow=50ms or cut=3"),
		}),
		Command: []string{"{{.Sluice}}", "sim", "--host", "{{.Host}}", "--port", "{{.Port}}",
			"--model", "{{or .Model .Name}}", "--served-model-name", "{{.Name}}", "{{.Flags}}"},
		PodHost: "::",
		Image:   "sluice:latest", // the image that examples/kubernetes makes
		Ready:   Probe{Path: "/health", Every: 100 * time.Millisecond},
		Health:  Probe{Path: "/health", Every: 10 * time.Second},
		Slots:   Slots{Variable: "max_num_seqs", Default: slots},
		Usage:   UsageContinuous,
		Metrics: metrics, PrefillRate: 10_000,
	}}}
}

// tokenizes returns the routes of an engine that tokenizes and detokenizes texts.
func tokenizes() []string { return []string{"/tokenize", "/detokenize"} }

// messagesAPI returns the routes of an engine with the whole Messages API.
func messagesAPI() []string { return []string{"/v1/messages", "/v1/messages/count_tokens"} }

// variables returns a schema of exactly these variables.
func variables(properties map[string]any) map[string]any {
	return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
}

func withDefault(value any, schema map[string]any) map[string]any {
	schema["default"] = value
	return schema
}

func integer(least int, description string) map[string]any {
	return map[string]any{"type": "integer", "minimum": least, "description": description}
}

func number0(description string) map[string]any {
	return map[string]any{"type": "number", "minimum": 0, "description": description}
}

func text(description string) map[string]any {
	return map[string]any{"type": "string", "minLength": 1, "description": description}
}

func flag(description string) map[string]any {
	return map[string]any{"type": "boolean", "description": description}
}

// duration is a string in the syntax of time.ParseDuration.
func duration(description string) map[string]any {
	return map[string]any{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`, "description": description}
}

func choice(description string, values ...any) map[string]any {
	return map[string]any{"enum": values, "description": description}
}

func array(items, description string) map[string]any {
	return map[string]any{"type": "array", "minItems": 1, "items": map[string]any{"type": items}, "description": description}
}

func object(description string) map[string]any {
	return map[string]any{"type": "object", "description": description}
}

// share is a number above 0 and at most 1.
func share(description string) map[string]any {
	return map[string]any{"type": "number", "exclusiveMinimum": 0, "maximum": 1, "description": description}
}

// between is an integer in a range.
func between(least, most int, description string) map[string]any {
	return map[string]any{"type": "integer", "minimum": least, "maximum": most, "description": description}
}

// merged merges variables. A later one replaces an earlier one of the same name.
func merged(all ...map[string]any) map[string]any {
	together := map[string]any{}
	for _, some := range all {
		maps.Copy(together, some)
	}
	return together
}
