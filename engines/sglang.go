package engines

import (
	"strings"
	"time"
)

// sglang is SGLang's server, in the releases at which flags changed that matter here. It was
// checked against the wheels of 0.4.10.post2, 0.5.5 and 0.5.23.
//
// /health and /health_generate both wait for a token, so either takes up to a second. They answer
// 503 until the server has warmed up. Without max_running_requests the engine computes how many
// requests fit into its cache, and tells it when it runs. Reranking needs the settings that the
// model's page names, often disable_radix_cache and attention_backend.
func sglang() Engine {
	oldest := sglangVersion("0.4.10", "v0.4.10.post2", sglang0410())
	oldest.Routes = []string{}
	newest := sglangVersion("0.5.23", "v0.5.23", sglang0523(), Transcription)
	newest.Routes = append(newest.Routes, messagesAPI()...) // came between 0.5.5 and 0.5.23
	return Engine{Name: "sglang", Versions: []Version{
		oldest.withTable("sglang"),
		sglangVersion("0.5.5", "v0.5.5", sglang055()).withTable("sglang"),
		newest.withTable("sglang"),
	}}
}

func sglangVersion(name, release string, own map[string]any, more ...Task) Version {
	return Version{
		Version: name,
		Tasks:   append([]Task{TextGeneration, Embedding, Rerank}, more...),
		Routes:  tokenizes(),
		Schema:  variables(merged(sglangModel(), sglangWork(), sglangServing(), own)),
		TaskVariables: map[Task]map[string]any{
			Embedding: {"is_embedding": true},
			Rerank:    {"is_embedding": true},
		},
		Command: []string{"python3", "-m", "sglang.launch_server", "--model-path", "{{.Model}}", "--host", "{{.Host}}", "--port", "{{.Port}}",
			"--served-model-name", "{{.Name}}", "{{.Flags}}"},
		Flags:   FlagStyle{Lists: ListArguments},
		Image:   "lmsysorg/sglang:" + release,
		Release: strings.TrimPrefix(release, "v"),
		Owned:   sglangOwned(),
		GPU: GPUUse{Memory: "mem_fraction_static", Elsewhere: []string{"nnodes"},
			Parallel: [][]string{{"tensor_parallel_size", "tp_size"}, {"pipeline_parallel_size", "pp_size"}},
			Copies:   [][]string{{"data_parallel_size", "dp_size"}}, Overlap: []string{"enable_dp_attention", "attn_dp_size"}},
		Kubernetes: sglangPod(),
		PodHost:    podAddress, // with ::, asyncio listens on IPv6 alone
		Ready:      Probe{Path: "/health_generate", Every: time.Second},
		Health:     Probe{Path: "/health", Every: 10 * time.Second},
		Slots:      Slots{Variable: "max_running_requests", Usual: 128},
		Usage:      UsageContinuous,
		Metrics:    sglangMetrics(), PrefillRate: 8000,
	}
}

// sglangOwned are further flags by which a replica could not be reached as Sluice expects, or not
// under its name. --config reads flags from a file, which could hold these.
func sglangOwned() []string {
	return []string{"--model", "--config", "--api-key", "--admin-api-key", "--fastapi-root-path",
		"--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-keyfile-password", "--enable-ssl-refresh", "--grpc-mode"}
}

// sglangMetrics are the names of all versions. The gauge of the cache's size came after 0.4.10, and
// so did the counters of prefill, of which the second needs SGLang's device timer. The server has
// metrics only with --enable-metrics, and /get_server_info always; newer releases call it
// /server_info too. Each data-parallel engine there says how many requests it works on.
func sglangMetrics() Metrics {
	return Metrics{Path: "/metrics", Running: "sglang:num_running_reqs", Waiting: "sglang:num_queue_reqs",
		KVUsage:        "sglang:token_usage",
		CacheTokens:    "sglang:max_total_num_tokens or /get_server_info#max_total_num_tokens",
		CachedTokens:   "sglang:cached_tokens_total",
		PrefillTokens:  `sglang:realtime_tokens_total{mode="prefill_compute"}`,
		PrefillSeconds: `sglang:forward_execution_seconds_total{category="extend"}`,
		Slots: "/get_server_info#internal_states.effective_max_running_requests_per_dp or " +
			"/server_info#internal_states.effective_max_running_requests_per_dp or /get_server_info#max_running_requests",
		Sign: "/get_server_info#internal_states or /server_info#internal_states"}
}

// sglangModel are the variables of the model and its loading.
func sglangModel() map[string]any {
	return map[string]any{
		"dtype":                    choice("type of weights and activations", "auto", "half", "float16", "bfloat16", "float", "float32"),
		"quantization":             text("method by which the weights are quantized, such as awq, gptq or fp8"),
		"load_format":              text("format of the weights, such as auto, safetensors or gguf"),
		"model_impl":               text("whose implementation of the model, such as auto, sglang or transformers"),
		"context_length":           integer(1, "tokens of prompt and answer together; without it what the model was made for"),
		"is_embedding":             flag("serve vectors; set by task: embedding and task: rerank"),
		"enable_multimodal":        flag("serve images and the like"),
		"tokenizer_path":           text("id or path of a tokenizer other than the model's"),
		"tokenizer_mode":           choice("kind of tokenizer", "auto", "slow"),
		"revision":                 text("branch, tag or commit of the model"),
		"trust_remote_code":        flag("run code that comes with the model"),
		"download_dir":             text("directory for downloaded weights"),
		"json_model_override_args": object("fields of the model's configuration to replace"),
		"random_seed":              integer(0, "of sampling"),
		"enable_lora":              flag("serve LoRA adapters"),
		"lora_paths":               array("string", "LoRA adapters that are served from the start, each a path or name=path"),
		"max_lora_rank":            integer(1, "largest rank of a LoRA adapter"),
		"max_loras_per_batch":      integer(1, "LoRA adapters in one batch"),

		"speculative_algorithm":        text("method of speculative decoding, such as EAGLE, EAGLE3 or NEXTN"),
		"speculative_draft_model_path": text("id or path of the draft model"),
		"speculative_num_steps":        integer(1, "steps that the draft model goes ahead"),
		"speculative_eagle_topk":       integer(1, "tokens that EAGLE goes on with at each step"),
		"speculative_num_draft_tokens": integer(1, "tokens that are verified at once"),
	}
}

// sglangWork says what of the machine is used, and for how many requests.
func sglangWork() map[string]any {
	return map[string]any{
		"max_running_requests":      integer(1, "requests worked on at once; without it as many as fit, and Sluice then does not count"),
		"max_queued_requests":       integer(1, "requests that may wait inside the engine"),
		"max_total_tokens":          integer(1, "tokens of cache, whatever fits"),
		"max_prefill_tokens":        integer(1, "most prompt tokens of one batch"),
		"chunked_prefill_size":      integer(-1, "tokens of a part of a long prompt; -1: prompts are taken whole"),
		"enable_mixed_chunk":        flag("parts of prompts and answers share batches"),
		"mem_fraction_static":       share("share of the GPU's memory for weights and cache"),
		"schedule_conservativeness": number0("above 1 fewer requests are taken at once"),
		"page_size":                 integer(1, "tokens of a page of cache"),
		"cpu_offload_gb":            integer(0, "GiB of weights kept in the machine's memory"),
		"disable_radix_cache":       flag("reuse no cache of common beginnings of prompts"),
		"enable_hierarchical_cache": flag("cache in the machine's memory too"),
		"hicache_ratio":             number0("size of the cache in the machine's memory, as a multiple of the GPU's"),
		"hicache_size":              integer(0, "GB of the cache in the machine's memory"),
		"tensor_parallel_size":      integer(1, "GPUs that share each layer; all of the replica when nothing is said"),
		"pipeline_parallel_size":    integer(1, "groups of GPUs that share the layers among them"),
		"data_parallel_size":        integer(1, "copies of the model in one replica"),
		"expert_parallel_size":      integer(1, "GPUs among which experts are parted"),
		"attention_backend":         text("kernels of attention, such as triton, flashinfer or fa3"),
		"grammar_backend":           choice("what guides structured output", "xgrammar", "outlines", "llguidance", "none"),
		"disable_cuda_graph":        flag("no CUDA graphs"),
		"enable_torch_compile":      flag("compile with torch.compile"),
		"disable_overlap_schedule":  flag("plan one step after the other"),
		"disable_custom_all_reduce": flag("use NCCL where a kernel of SGLang's own would do"),
		"stream_interval":           integer(1, "tokens of one piece of a stream"),
		"watchdog_timeout":          number0("seconds after which a step that hangs ends the engine"),
	}
}

// sglangServing is the server around the engine.
func sglangServing() map[string]any {
	return map[string]any{
		"enable_metrics":            withDefault(true, flag("serve GET /metrics, which tells Sluice what waits")),
		"chat_template":             text("name or path of a template of chats"),
		"tool_call_parser":          text("how calls of tools are written by this model, such as qwen25 or llama3"),
		"reasoning_parser":          text("how thoughts are written by this model, such as deepseek-r1 or qwen3"),
		"preferred_sampling_params": object("parameters of sampling that the model prefers"),
		"enable_cache_report":       flag("usage tells how much of a prompt was cached"),
		"allow_auto_truncate":       flag("cut prompts that are too long"),
		"skip_server_warmup":        flag("be ready without having tried"),
		"log_level":                 text("what is logged, such as info or warning"),
		"log_level_http":            text("what the HTTP server logs"),
		"log_requests":              flag("log requests"),
		"decode_log_interval":       integer(1, "steps between two lines about decoding"),
	}
}

// sglang0410 is what 0.4.10 has otherwise than later ones.
func sglang0410() map[string]any {
	return map[string]any{
		"kv_cache_dtype":    choice("type of the cache", "auto", "fp8_e5m2", "fp8_e4m3"),
		"schedule_policy":   choice("which waiting request is next", "lpm", "random", "fcfs", "dfs-weight"),
		"sampling_backend":  choice("kernels of sampling", "flashinfer", "pytorch"),
		"cuda_graph_max_bs": integer(1, "largest batch for CUDA graphs"),
	}
}

func sglang055() map[string]any {
	return map[string]any{
		"kv_cache_dtype":             choice("type of the cache", "auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16", "fp4_e2m1"),
		"schedule_policy":            choice("which waiting request is next", "lpm", "random", "fcfs", "dfs-weight", "lof", "priority"),
		"enable_priority_scheduling": flag("requests have priorities; came between 0.4.10 and 0.5.5"),
		"sampling_backend":           text("kernels of sampling, such as flashinfer or pytorch"),
		"tokenizer_worker_num":       integer(1, "processes that tokenize; came between 0.4.10 and 0.5.5"),
		"cuda_graph_max_bs":          integer(1, "largest batch for CUDA graphs; gone before 0.5.23"),
	}
}

func sglang0523() map[string]any {
	return map[string]any{
		"kv_cache_dtype": choice("type of the cache",
			"auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16"),
		"schedule_policy": choice("which waiting request is next",
			"lpm", "random", "fcfs", "dfs-weight", "lof", "priority", "routing-key", "hrrn", "shortest-prefill-first"),
		"enable_priority_scheduling": flag("requests have priorities"),
		"sampling_backend":           text("kernels of sampling, such as flashinfer or pytorch"),
		"sampling_defaults":          choice("where defaults of sampling come from", "openai", "model"),
		"tokenizer_worker_num":       integer(1, "processes that tokenize"),
		"cuda_graph_max_bs_decode":   integer(1, "largest batch for CUDA graphs of decoding"),
		"kv_events_config":           text("events of the cache, as JSON"),
	}
}
