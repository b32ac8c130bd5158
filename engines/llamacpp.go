package engines

import "time"

// llamaCppName is the name of llama.cpp in the catalogue.
const llamaCppName = "llama-cpp"

// CountsOneAnswer reports whether the usage that an engine tells is that of one answer alone, when
// a request has several prompts or asks for several answers. The server of llama.cpp does so.
func CountsOneAnswer(engine string) bool { return engine == llamaCppName }

// RefusesAsFailure reports whether an engine answers 500 to an input that is too long to be
// embedded or ranked. The server of llama.cpp does so.
func RefusesAsFailure(engine string) bool { return engine == llamaCppName }

// llamaCpp is llama.cpp behind an HTTP server: its own in C++, and the one in Python that comes
// with its binding.
func llamaCpp() Engine {
	return Engine{Name: llamaCppName, Versions: []Version{llamaCppPython(), llamaServer().withTable("llama-cpp")}}
}

// llamaServer is llama-server, checked against 0.5.0-dev as vendored in llama-cpp-python 0.3.36. By
// default it has four slots that share one context (n_parallel = -1 in its tools/server). With
// `parallel`, the context is divided into equal parts unless kv_unified is set. /health answers 503
// while the model is loaded. A model without a head for ranking answers rerank requests too, with
// meaningless scores.
func llamaServer() Version {
	source := `{{if eq .Registry "huggingface"}}--hf-repo{{else}}--model{{end}}`
	return Version{
		Version: "0.5",
		Tasks:   []Task{TextGeneration, Embedding, Rerank},
		Routes:  append(tokenizes(), messagesAPI()...),
		Schema:  variables(llamaCppVariables()),
		TaskVariables: map[Task]map[string]any{
			Embedding: {"embeddings": true},
			Rerank:    {"rerank": true},
		},
		Command: []string{"llama-server", "--host", "{{.Host}}", "--port", "{{.Port}}",
			source, "{{.Model}}", "--alias", "{{.Name}}", "{{.Flags}}"},
		Owned: []string{"-m", "--mu", "--model-url", "--dr", "--docker-repo", "--hf", "--hfr", "-a", "--api-prefix",
			"--api-key", "--api-key-file", "--ssl-key-file", "--ssl-cert-file", "--reuse-port", "--models-dir", "--models-preset"},
		Image:      "ghcr.io/ggml-org/llama.cpp:server",
		Kubernetes: llamaServerPod,
		PodHost:    "::", // httplib turns IPV6_V6ONLY off
		Ready:      Probe{Path: "/health", Every: 500 * time.Millisecond},
		Health:     Probe{Path: "/health", Every: 10 * time.Second},
		Slots:      Slots{Variable: "parallel", Default: 4},
		Usage:      UsageFinal,
		Metrics:    llamaServerMetrics(), PrefillRate: 1000,
	}
}

// llamaServerMetrics: the cache is the context of all slots. With kv_unified the slots share one
// context, so the product is too large then. The cache of prompts in memory (cache_ram) comes on
// top of it. The server has metrics only with --metrics, and /props always.
func llamaServerMetrics() Metrics {
	return Metrics{Path: "/metrics", Running: "llamacpp:requests_processing", Waiting: "llamacpp:requests_deferred",
		CacheTokens:   "/props#total_slots*default_generation_settings.n_ctx",
		CachedTokens:  "llamacpp:prompt_tokens_cached_total",
		PrefillTokens: "llamacpp:prompt_tokens_total", PrefillSeconds: "llamacpp:prompt_seconds_total",
		Slots: "/props#total_slots", Sign: "/props#total_slots"}
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
		"chat_template_kwargs": object("parameters of the chat template"),
		"no_jinja":             flag("do not use the Jinja engine for chats"),
		"reasoning_format":     choice("what becomes of thoughts", "none", "auto", "deepseek", "deepseek-legacy"),
		"reasoning_budget":     integer(-1, "tokens for thinking; -1: no limit"),
		"seed":                 integer(-1, "of sampling; -1: a random one"),
		// around it
		"metrics":       withDefault(true, flag("serve GET /metrics, which tells Sluice what waits")),
		"no_slots":      flag("do not serve GET /slots"),
		"no_webui":      flag("do not serve the web page"),
		"offline":       flag("never use the network"),
		"log_verbosity": integer(0, "0: generic output, 5: debug"),
	}
}

// llamaCppPython is `python -m llama_cpp.server` of llama-cpp-python 0.3, checked against 0.3.35;
// its flags have been the same since 0.3.0 but for chat_template_kwargs, which came between 0.3.16
// and 0.3.30. It listens only when the model is loaded and works on one request at a time.
// Everything under /v1 waits for that request, so its health is asked for elsewhere.
func llamaCppPython() Version {
	return Version{
		Version:       "python-0.3",
		Tasks:         []Task{TextGeneration, Embedding},
		Routes:        []string{}, // it tokenizes below /extras
		Schema:        variables(llamaCppPythonVariables()),
		TaskVariables: map[Task]map[string]any{Embedding: {"embedding": true}},
		Command: []string{"python3", "-m", "llama_cpp.server", "--host", "{{.Host}}", "--port", "{{.Port}}",
			`{{if eq .Registry "huggingface"}}--hf_model_repo_id{{else}}--model{{end}}`, "{{.Model}}", "--model_alias", "{{.Name}}", "{{.Flags}}"},
		Flags: FlagStyle{Underscores: true, BooleanValues: true, Lists: ListArguments},
		Env:   map[string]string{"HOST": "{{.Host}}", "PORT": "{{.Port}}"}, // whatever they are here, they would win over the flags
		Owned: []string{"--config-file", "--api-key", "--root-path", "--ssl-keyfile", "--ssl-certfile",
			"--hf-model-repo-id", "--model-alias"},
		Image:      "ghcr.io/abetlen/llama-cpp-python:latest",
		Kubernetes: keepsFromHub(hubCache),
		PodHost:    podAddress,
		Ready:      Probe{Path: "/v1/models", Every: 500 * time.Millisecond},
		Health:     Probe{Path: "/openapi.json", Every: 10 * time.Second},
		Slots:      Slots{Default: 1},
	}
}

func llamaCppPythonVariables() map[string]any {
	return map[string]any{
		// requests
		"interrupt_requests": withDefault(false, flag("a new request ends the one that is worked on; the engine's own default is true")),
		"n_ctx":              integer(0, "tokens of context; 0: what the model was trained with"),
		"n_batch":            integer(1, "most prompt tokens of one logical batch"),
		"n_ubatch":           integer(1, "most prompt tokens of one physical batch"),
		"cache":              flag("keep evaluated prompts"),
		"cache_type":         choice("where evaluated prompts are kept", "ram", "disk"),
		"cache_size":         integer(0, "bytes of evaluated prompts"),
		// what it does
		"embedding": flag("serve embeddings; set by task: embedding"),
		// hardware
		"n_gpu_layers":    integer(-1, "layers in GPU memory; -1: all"),
		"split_mode":      between(0, 2, "how the model is spread over several GPUs; 0: not, 1: by layers, 2: by rows"),
		"main_gpu":        integer(0, "index of the GPU that is used first"),
		"tensor_split":    array("number", "share of the model on each GPU"),
		"n_threads":       integer(-1, "CPU threads that generate; -1: all"),
		"n_threads_batch": integer(-1, "CPU threads that read prompts; -1: all"),
		"numa":            flag("NUMA support"),
		"use_mmap":        flag("map the file of the model into memory"),
		"use_mlock":       flag("keep the model in memory"),
		"offload_kqv":     flag("keep keys, queries and values on the GPU"),
		"flash_attn":      flag("flash attention"),
		"type_k":          integer(0, "GGML type of the cache of keys"),
		"type_v":          integer(0, "GGML type of the cache of values"),
		// the model
		"model":                            text("with a source from huggingface: the file in the repository, or a pattern of its name"),
		"clip_model_path":                  text("path of a multimodal projector"),
		"lora_path":                        text("path of a LoRA adapter"),
		"lora_base":                        text("path of the model that the adapter was made for"),
		"chat_format":                      text("name of a chat format"),
		"chat_template_kwargs":             object("parameters of the chat template; since 0.3.30 at the latest"),
		"hf_tokenizer_config_path":         text("path of a tokenizer_config.json"),
		"hf_pretrained_model_name_or_path": text("id or path of a Hugging Face tokenizer"),
		"draft_model":                      text("method of speculative decoding"),
		"draft_model_num_pred_tokens":      integer(1, "tokens that the draft model predicts"),
		"rope_freq_base":                   number0("base frequency of RoPE"),
		"rope_freq_scale":                  number0("scale of the frequency of RoPE"),
		"logits_all":                       flag("compute logits of all tokens"),
		"seed":                             integer(-1, "of sampling; -1: a random one"),
		"verbose":                          flag("print more"),
	}
}
