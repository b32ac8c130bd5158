package engines

import "time"

// sim is the simulated engine, `sluice sim` of our own binary. Its flags are vLLM's where vLLM has them.
func sim() Engine {
	const slots = 256
	return Engine{Name: "sim", Versions: []Version{{
		Version: "1",
		Tasks:   []Task{TextGeneration, Embedding, Rerank, Transcription},
		Schema: variables(map[string]any{
			"max_num_seqs":   withDefault(slots, integer(1, "requests worked on at once; more wait inside the engine")),
			"prefill_rate":   number0("prompt tokens a second that are taken in when they are not cached; 0: no limit"),
			"token_interval": duration("time between two tokens of a request that decodes alone, such as 20ms; 0s: none"),
			"batch_slowdown": number0("share of token_interval by which each further decoding request slows a step"),
			"cache_tokens":   integer(0, "size of the prefix cache; 0: no cache"),
			"load_time":      duration("how long the engine pretends to load before it is ready, such as 3s"),
			"embedding_dim":  integer(1, "length of embedding vectors"),
			"seed":           integer(0, "varies the sentences of the answers and the embedding space"),
			"fault":          text("what goes wrong with every request, such as status=503, slow=50ms or cut=3"),
		}),
		Command: []string{"{{.Sluice}}", "sim", "--host", "{{.Host}}", "--port", "{{.Port}}",
			"--model", "{{or .Model .Name}}", "--served-model-name", "{{.Name}}", "{{.Flags}}"},
		Ready:  Probe{Path: "/health", Every: 100 * time.Millisecond},
		Health: Probe{Path: "/health", Every: 10 * time.Second},
		Slots:  Slots{Variable: "max_num_seqs", Default: slots},
	}}}
}

// llamaCpp is llama.cpp's own server. Left alone it has four slots that share one context (n_parallel = -1 in its
// tools/server); with `parallel` given, the context is cut into that many equal parts unless kv_unified is set.
func llamaCpp() Engine {
	source := `{{if eq .Registry "huggingface"}}--hf-repo{{else}}--model{{end}}`
	return Engine{Name: "llama-cpp", Versions: []Version{{
		Version: "0.5",
		Tasks:   []Task{TextGeneration, Embedding, Rerank},
		Schema:  variables(llamaCppVariables()),
		TaskVariables: map[Task]map[string]any{
			Embedding: {"embeddings": true},
			Rerank:    {"rerank": true},
		},
		Command: []string{"llama-server", "--host", "{{.Host}}", "--port", "{{.Port}}",
			source, "{{.Model}}", "--alias", "{{.Name}}", "{{.Flags}}"},
		Image:  "ghcr.io/ggml-org/llama.cpp:server",
		Ready:  Probe{Path: "/health", Every: 500 * time.Millisecond},
		Health: Probe{Path: "/health", Every: 10 * time.Second},
		Slots:  Slots{Variable: "parallel", Default: 4},
	}}}
}

func llamaCppVariables() map[string]any {
	cache := func(what string) map[string]any {
		return choice(what, "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
	}
	return map[string]any{
		// requests
		"parallel":     integer(1, "slots: requests worked on at once"),
		"kv_unified":   flag("the slots share one context instead of having equal parts of it"),
		"ctx_size":     integer(0, "tokens of context; 0: what the model was trained with"),
		"predict":      integer(-1, "most tokens of one answer; -1: no limit"),
		"batch_size":   integer(1, "most prompt tokens of one logical batch"),
		"ubatch_size":  integer(1, "most prompt tokens of one physical batch"),
		"cache_reuse":  integer(0, "shortest chunk of the cache that is reused by shifting; 0: none"),
		"cache_ram":    integer(-1, "MiB of memory for cached prompts; -1: no limit, 0: none"),
		"timeout":      integer(1, "seconds without a read or write after which a connection is closed"),
		"threads_http": integer(1, "threads that serve HTTP"),
		// what it does
		"embeddings":     flag("serve embeddings, and nothing else; set by task: embedding"),
		"rerank":         flag("serve reranking; set by task: rerank"),
		"pooling":        choice("how token vectors become one vector", "none", "mean", "cls", "last", "rank"),
		"embd_normalize": integer(-1, "norm of the vectors; -1: none, 2: Euclidean"),
		// hardware
		"threads":       integer(-1, "CPU threads that generate; -1: the engine decides"),
		"threads_batch": integer(-1, "CPU threads that read prompts; -1: as threads"),
		"n_gpu_layers": map[string]any{"description": "layers in GPU memory: a number, auto or all", "anyOf": []any{
			map[string]any{"type": "integer", "minimum": 0},
			map[string]any{"enum": []any{"auto", "all"}},
		}},
		"split_mode":   choice("how the model is spread over several GPUs", "none", "layer", "row", "tensor"),
		"tensor_split": array("number", "share of the model on each GPU"),
		"main_gpu":     integer(0, "index of the GPU that holds the model when split_mode is none"),
		"device":       array("string", "devices to offload to"),
		"numa":         choice("where threads run on a NUMA machine", "distribute", "isolate", "numactl"),
		"flash_attn":   choice("flash attention", "on", "off", "auto"),
		"cache_type_k": cache("type of the cache of keys"),
		"cache_type_v": cache("type of the cache of values"),
		"no_warmup":    flag("skip the empty run at the start"),
		// the model
		"hf_file":              text("file inside the Hugging Face repository"),
		"mmproj":               text("path of a multimodal projector"),
		"lora":                 array("string", "paths of LoRA adapters"),
		"chat_template":        text("Jinja template of chats, or the name of a built-in one"),
		"chat_template_file":   text("path of a Jinja template of chats"),
		"chat_template_kwargs": map[string]any{"type": "object", "description": "parameters of the chat template"},
		"no_jinja":             flag("do not use the Jinja engine for chats"),
		"reasoning_format":     choice("what becomes of thoughts", "none", "auto", "deepseek", "deepseek-legacy"),
		"reasoning_budget":     integer(-1, "tokens for thinking; -1: no limit"),
		"seed":                 integer(-1, "of sampling; -1: a random one"),
		// around it
		"metrics":       flag("serve GET /metrics"),
		"no_slots":      flag("do not serve GET /slots"),
		"no_webui":      flag("do not serve the web page"),
		"offline":       flag("never use the network"),
		"log_verbosity": integer(0, "0: generic output, 5: debug"),
	}
}

// variables is a schema of exactly these variables.
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

// duration is a string that Go's time.ParseDuration reads.
func duration(description string) map[string]any {
	return map[string]any{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`, "description": description}
}

func choice(description string, values ...any) map[string]any {
	return map[string]any{"enum": values, "description": description}
}

func array(items, description string) map[string]any {
	return map[string]any{"type": "array", "minItems": 1, "items": map[string]any{"type": items}, "description": description}
}
