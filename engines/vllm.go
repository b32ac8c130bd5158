package engines

import (
	"strings"
	"time"
)

// vllm is vLLM's OpenAI server, in the releases at which flags changed that matter here. A release
// between two of them takes the flags of the lower one, except for those that the descriptions of
// the variables name. The variables of 0.32 and 0.33 are complete. 0.8 and 0.11 were checked
// against the source packages of 0.8.5 and 0.11.0, and against 0.10.0, 0.13.0, 0.17.1 and 0.24.0
// for when flags came and went.
//
// vLLM serves under --served-model-name only, and listens after the model is loaded. /health asks
// whether its engine is alive. Without max_num_seqs it works on 256 requests at once, or 1,024 on
// GPUs of 70 GiB and more.
//
// A LoRA adapter is a further name on the same server; see Model.Adapters.
func vllm() Engine {
	oldest := vllmVersion("0.8", "v0.8.5", vllm08())
	oldest.TaskVariables = map[Task]map[string]any{
		Embedding: {"task": "embed"}, Rerank: {"task": "score"}, Transcription: {"task": "transcription"},
	}
	recent := func(v Version) Version { // /v1/messages came with 0.11.1
		v.Routes = append(v.Routes, messagesAPI()...)
		v.MultiHost = vllmOnHosts()
		return v
	}
	return Engine{Name: "vllm", Versions: []Version{
		oldest,
		vllmVersion("0.11", "v0.11.0", vllm011()),
		recent(vllmVersion("0.32", "v0.32.0", vllm033())).withTable("vllm"),
		recent(vllmVersion("0.33", "v0.33.0", vllm033())).withTable("vllm"),
	}}
}

// vllmVersion is a version with variables of its own besides the common ones. --runner and
// --convert replaced --task between 0.10.0 and 0.11.0. They say that a model makes vectors or
// scores; vLLM itself knows which of the two.
func vllmVersion(name, release string, own map[string]any) Version {
	return Version{
		Version:       name,
		Tasks:         []Task{TextGeneration, Embedding, Rerank, Transcription},
		Routes:        tokenizes(),
		Schema:        variables(merged(vllmModel(), vllmWork(), vllmServing(), own)),
		TaskVariables: map[Task]map[string]any{Embedding: {"runner": "pooling"}, Rerank: {"runner": "pooling"}},
		Command: []string{"vllm", "serve", "{{.Model}}", "--host", "{{.Host}}", "--port", "{{.Port}}",
			"--served-model-name", "{{.Name}}", "{{.Flags}}"},
		Flags:   FlagStyle{Lists: ListArguments},
		Image:   "vllm/vllm-openai:" + release,
		Release: strings.TrimPrefix(release, "v"),
		Owned:   vllmOwned(),
		GPU: GPUUse{Memory: "gpu_memory_utilization", Elsewhere: []string{"nnodes", "data_parallel_size_local", "data_parallel_external_lb"},
			Parallel: [][]string{{"tensor_parallel_size"}, {"pipeline_parallel_size"}, {"prefill_context_parallel_size"}, {"data_parallel_size"}}},
		Kubernetes: keepsFromHub(hubCache),
		PodHost:    "::", // its socket is for both families (create_server_socket)
		// Its driver asks Ray for a placement group with the GPUs of all workers, the first on its
		// own node (vllm/v1/executor/ray_utils.py).
		RayVariables: map[string]any{"distributed_executor_backend": "ray"},
		MultiHost:    vllmOnRay(),
		Ready:        Probe{Path: "/health", Every: time.Second},
		Health:       Probe{Path: "/health", Every: 10 * time.Second},
		Slots:        Slots{Variable: "max_num_seqs", Default: 256},
		Usage:        UsageContinuous,
		Metrics:      vllmMetrics(), PrefillRate: 8000,
	}
}

// vllmOwned are further flags by which a replica could not be reached as Sluice expects, or not
// under its name. --config reads flags from a file, which could hold these.
func vllmOwned() []string {
	return []string{"--model", "--model-tag", "--uds", "--config", "--root-path", "--api-key", "--headless",
		"--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--ssl-ciphers", "--enable-ssl-refresh", "--grpc"}
}

// vllmOnRay starts a Ray cluster of the group's pods, as vLLM's example for LeaderWorkerSets does
// (multi-node-serving.sh). The images have Ray up to 0.18. GPUs of one host share each layer, hosts
// share the layers among them. The scripts wait for each other without a limit of their own. The
// start timeout of the model ends a leader that waits too long, and with it its group.
func vllmOnRay() MultiHost {
	const alive = `python3 -c 'import ray; ray.init(address="auto", logging_level="error"); ` +
		`print(sum(n["Alive"] for n in ray.nodes()))'`
	leader := `ray start --head --port=6379 || exit 1
until [ "$(` + alive + ` | tail -n 1)" = "$LWS_GROUP_SIZE" ]; do echo "waiting for the workers to join Ray"; sleep 5; done
exec "$@"`
	worker := `until ray start --address="$LWS_LEADER_ADDRESS:6379" --block; do echo "waiting for Ray on the leader"; sleep 5; done
exit 1`
	return MultiHost{
		Leader: []string{"bash", "-c", leader, "leader", wholeCommand}, Worker: []string{"bash", "-c", worker},
		Variables: map[string]any{"distributed_executor_backend": "ray"}, Hosts: "pipeline_parallel_size",
	}
}

// vllmOnHosts has vLLM itself connect the hosts, which came after 0.11.0 and needs no Ray. The name
// of the leader may be known a moment after its pod has started.
func vllmOnHosts() MultiHost {
	const run = `until getent hosts "$LWS_LEADER_ADDRESS" >/dev/null; do sleep 1; done
exec "$@" --nnodes "$LWS_GROUP_SIZE" --node-rank "$LWS_WORKER_INDEX" --master-addr "$LWS_LEADER_ADDRESS"`
	return MultiHost{
		Leader: []string{"bash", "-c", run, "leader", wholeCommand}, Worker: []string{"bash", "-c", run + " --headless", "worker", wholeCommand},
		Variables: map[string]any{"distributed_executor_backend": "mp"}, Hosts: "pipeline_parallel_size",
	}
}

// vllmMetrics are the names of all versions. The prefix gpu_ went between 0.8.5 and 0.11.0.
// kv_cache_size_tokens is exact for models with several kinds of attention; it came between 0.11.0
// and 0.32.0, as did request_prefill_kv_computed_tokens. The two histograms of prefill are observed
// when a request ends. Series of several data-parallel engines add up. No metric tells
// max_num_seqs.
func vllmMetrics() Metrics {
	return Metrics{Path: "/metrics", Running: "vllm:num_requests_running", Waiting: "vllm:num_requests_waiting",
		KVUsage:       "vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc",
		CacheTokens:   "vllm:cache_config_info{kv_cache_size_tokens} or vllm:cache_config_info{num_gpu_blocks,block_size}",
		CachedTokens:  "vllm:prompt_tokens_cached_total or vllm:prefix_cache_hits_total or vllm:gpu_prefix_cache_hits_total",
		PrefillTokens: "vllm:request_prefill_kv_computed_tokens_sum", PrefillSeconds: "vllm:request_prefill_time_seconds_sum"}
}

// vllmModel are the variables of the model and its loading.
func vllmModel() map[string]any {
	return map[string]any{
		"dtype":                    choice("type of weights and activations", "auto", "half", "float16", "bfloat16", "float", "float32"),
		"quantization":             text("method by which the weights are quantized, such as awq, gptq, fp8 or bitsandbytes"),
		"load_format":              text("format of the weights, such as auto, safetensors, gguf or runai_streamer"),
		"config_format":            text("format of the model's configuration, such as auto, hf or mistral"),
		"model_impl":               choice("whose implementation of the model", "auto", "vllm", "transformers"),
		"tokenizer":                text("id or path of a tokenizer other than the model's"),
		"tokenizer_mode":           text("kind of tokenizer, such as auto, slow or mistral"),
		"revision":                 text("branch, tag or commit of the model"),
		"tokenizer_revision":       text("branch, tag or commit of the tokenizer"),
		"code_revision":            text("branch, tag or commit of the model's code"),
		"trust_remote_code":        flag("run code that comes with the model"),
		"download_dir":             text("directory for downloaded weights"),
		"hf_overrides":             object("fields of the model's configuration to replace"),
		"generation_config":        text("where defaults of sampling come from: auto (the model), vllm, or a directory"),
		"seed":                     integer(0, "of sampling"),
		"enforce_eager":            flag("no CUDA graphs"),
		"compilation_config":       object("settings of torch.compile and CUDA graphs"),
		"speculative_config":       object("speculative decoding: method, model, num_speculative_tokens"),
		"limit_mm_per_prompt":      object("most items of each kind in one prompt, such as {image: 4}"),
		"mm_processor_kwargs":      object("settings of the multimodal processor"),
		"allowed_local_media_path": text("directory below which requests may name local media"),
		"enable_lora":              flag("serve LoRA adapters"),
		"lora_modules":             array("string", "LoRA adapters that are served from the start, each name=path"),
		"max_loras":                integer(1, "LoRA adapters in one batch"),
		"max_cpu_loras":            integer(1, "LoRA adapters kept in memory"),
		"max_lora_rank":            choice("largest rank of a LoRA adapter", 8, 16, 32, 64, 128, 256, 320, 512),
		"fully_sharded_loras":      flag("spread LoRA layers fully over the GPUs"),
	}
}

// vllmWork are the variables of hardware and scheduling.
func vllmWork() map[string]any {
	return map[string]any{
		"max_num_seqs":                 integer(1, "requests worked on at once"),
		"max_model_len":                integer(1, "tokens of prompt and answer together; without it what the model was made for"),
		"max_num_batched_tokens":       integer(1, "most tokens of one step"),
		"max_logprobs":                 integer(-1, "most log probabilities that a request may ask for"),
		"scheduling_policy":            choice("which waiting request is next", "fcfs", "priority"),
		"enable_chunked_prefill":       flag("take long prompts in parts"),
		"no_enable_chunked_prefill":    flag("take prompts whole"),
		"long_prefill_token_threshold": integer(0, "prompts above this count as long; 0: none does"),
		"enable_prefix_caching":        flag("reuse the cache of common beginnings of prompts; on by default"),
		"no_enable_prefix_caching":     flag("reuse no cache"),
		"gpu_memory_utilization":       share("share of the GPU's memory for weights, activations and cache"),
		"num_gpu_blocks_override":      integer(1, "blocks of cache, whatever fits"),
		"block_size":                   integer(1, "tokens of a block of cache"),
		"cpu_offload_gb":               number0("GiB of weights kept in the machine's memory, for each GPU"),
		"disable_sliding_window":       flag("no sliding window"),
		"tensor_parallel_size":         integer(1, "GPUs that share each layer; all of the replica when nothing is said"),
		"pipeline_parallel_size":       integer(1, "groups of GPUs that share the layers among them"),
		"data_parallel_size":           integer(1, "copies of the model in one replica"),
		"enable_expert_parallel":       flag("experts are parted among the GPUs, not cut"),
		"distributed_executor_backend": choice("what runs the workers", "ray", "mp", "uni", "external_launcher"),
		"disable_custom_all_reduce":    flag("use NCCL where a kernel of vLLM's own would do"),
		"kv_transfer_config":           object("transfer of caches between replicas"),
	}
}

// vllmServing are the variables of the server around the engine.
func vllmServing() map[string]any {
	return map[string]any{
		"chat_template":                text("path of a Jinja template of chats, or the template"),
		"chat_template_content_format": choice("how the template takes contents", "auto", "string", "openai"),
		"response_role":                text("role of answers when the request asks for generation"),
		"enable_auto_tool_choice":      flag("the model may choose tools; needs tool_call_parser"),
		"tool_call_parser":             text("how calls of tools are written by this model, such as hermes or llama3_json"),
		"tool_parser_plugin":           text("path of a parser of tool calls"),
		"reasoning_parser":             text("how thoughts are written by this model, such as deepseek_r1 or qwen3"),
		"return_tokens_as_token_ids":   flag("log probabilities name tokens by id"),
		"enable_prompt_tokens_details": flag("usage tells how much of a prompt was cached"),
		"enable_request_id_headers":    flag("answer with X-Request-Id"),
		"uvicorn_log_level":            choice("what the HTTP server logs", "critical", "error", "warning", "info", "debug", "trace"),
		"disable_uvicorn_access_log":   flag("the HTTP server does not log requests"),
		"max_log_len":                  integer(0, "most characters of a prompt in the log"),
		"disable_log_stats":            flag("log no statistics, and count none"),
		"otlp_traces_endpoint":         text("where traces are sent"),
	}
}

func vllmSwapSpace() map[string]any {
	return number0("GiB of the machine's memory for caches of requests that were put off, for each GPU; gone between 0.17.1 and 0.24.0")
}

// vllm08 are variables that 0.8 has and later versions lack or define otherwise.
func vllm08() map[string]any {
	return map[string]any{
		"task": choice("what the model does; set by the task of the model",
			"auto", "generate", "embedding", "embed", "classify", "score", "reward", "transcription"),
		"swap_space":              vllmSwapSpace(),
		"max_seq_len_to_capture":  integer(1, "longest sequence for CUDA graphs; gone in 0.11.0"),
		"guided_decoding_backend": text("what guides structured output; gone between 0.11.0 and 0.13.0"),
		"kv_cache_dtype":          choice("type of the cache", "auto", "fp8", "fp8_e4m3", "fp8_e5m2"),
		"rope_scaling":            object("scaling of RoPE; gone between 0.11.0 and 0.13.0"),
		"override_pooler_config":  object("pooling; pooler_config since 0.11.0"),
		"device":                  choice("kind of device; gone in 0.10.0", "auto", "cuda", "neuron", "cpu", "tpu", "xpu", "hpu"),
		"disable_log_requests":    flag("requests are not logged; the default since 0.11.0"),
	}
}

func vllm011() map[string]any {
	return merged(vllmSince011(), map[string]any{
		"swap_space":              vllmSwapSpace(),
		"guided_decoding_backend": text("what guides structured output; gone between 0.11.0 and 0.13.0, then structured_outputs_config"),
		"kv_cache_dtype":          choice("type of the cache", "auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"),
		"convert":                 choice("what the model is turned into", "auto", "none", "embed", "classify", "reward"),
		"rope_scaling":            object("scaling of RoPE; gone between 0.11.0 and 0.13.0"),
		"cuda_graph_sizes":        array("integer", "batch sizes for CUDA graphs; gone between 0.11.0 and 0.13.0"),
	})
}

func vllm033() map[string]any {
	return merged(vllmSince011(), map[string]any{
		"kv_cache_dtype":               text("type of the cache, such as auto, bfloat16, fp8 or fp8_e4m3"),
		"convert":                      choice("what the model is turned into", "auto", "none", "embed", "classify"),
		"attention_backend":            text("kernels of attention; since 0.13.0 at the latest"),
		"stream_interval":              integer(1, "tokens of one piece of a stream; since 0.13.0 at the latest"),
		"kv_offloading_size":           number0("GiB of the machine's memory for cache; since 0.13.0 at the latest"),
		"performance_mode":             choice("what is tuned for; since 0.17.1 at the latest", "balanced", "interactivity", "throughput"),
		"optimization_level":           between(0, 3, "0 starts fastest, 3 runs fastest; since 0.13.0 at the latest"),
		"max_num_queued_reqs":          integer(1, "requests that may wait inside the engine; newer than 0.24.0"),
		"cudagraph_capture_sizes":      array("integer", "batch sizes for CUDA graphs"),
		"default_chat_template_kwargs": object("parameters of the chat template"),
		"quantization_config":          object("settings of quantization"),
	})
}

// vllmSince011 are variables that came between 0.8.5 and 0.11.0 and are still there in 0.33.0.
func vllmSince011() map[string]any {
	return map[string]any{
		"runner":                    choice("what the model does; set by the task of the model", "auto", "generate", "pooling"),
		"pooler_config":             object("how token vectors become one vector"),
		"structured_outputs_config": object("what guides structured output"),
		"kv_cache_memory_bytes":     integer(1, "bytes of cache on each GPU, whatever gpu_memory_utilization says"),
		"kv_events_config":          object("events of the cache"),
		"mm_processor_cache_gb":     number0("GiB of processed media that are kept; 0: none"),
		"mm_encoder_tp_mode":        choice("how encoders of media share GPUs", "weights", "data"),
		"async_scheduling":          flag("plan the next step while one runs"),
		"no_async_scheduling":       flag("plan one step after the other"),
		"logprobs_mode": choice("what log probabilities are made of",
			"raw_logits", "raw_logprobs", "processed_logits", "processed_logprobs"),
		"enable_log_requests": flag("log requests"),
		"enable_log_outputs":  flag("log answers too; needs enable_log_requests"),
		"default_mm_loras":    object("LoRA adapters by kind of media"),
		"api_server_count":    integer(1, "processes that serve HTTP"),
	}
}
