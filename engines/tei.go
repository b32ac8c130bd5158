package engines

import "time"

// tei is Hugging Face's text-embeddings-inference, checked against 1.7.4, 1.8.3 and 1.9.3. It
// listens after the model has answered a first request. It rejects requests above
// max_concurrent_requests (429). It serves the model under any name. It reports how many requests
// wait and how many it takes, but not how many it works on.
//
// Embeddings are on /v1/embeddings as usual. Reranking is on /rerank with another body; see
// RerankAPI.
func tei() Engine {
	noServedName := []string{}
	served := []string{"--served-model-name", "{{.Name}}"} // since 1.9
	dense := map[string]any{"dense_path": text("path of the Dense module in the model's repository; since 1.8")}
	truncates := map[string]any{"auto_truncate": flag("cut texts that are too long; the default since 1.9")}
	return Engine{Name: "tei", Versions: []Version{
		teiVersion("1.7", "1.7", noServedName, truncates).withTable("tei"),
		teiVersion("1.8", "1.8", noServedName, merged(truncates, dense)).withTable("tei"),
		teiSince19(teiVersion("1.9", "cuda-1.9", served, merged(truncates, dense))).withTable("tei"),
	}}
}

// teiSince19 passes auto_truncate in the environment: since 1.9 it is on by default, and the flag
// cannot turn it off. The image is for all GPUs.
func teiSince19(v Version) Version {
	v.Env = map[string]string{"AUTO_TRUNCATE": "{{.Variables.auto_truncate}}"}
	v.Kubernetes = teiAnyGPUPod(v.Version)
	return v
}

const teiImage = "ghcr.io/huggingface/text-embeddings-inference:"

func teiVersion(name, tag string, served []string, own map[string]any) Version {
	command := []string{"text-embeddings-router", "--model-id", "{{.Model}}", "--hostname", "{{.Host}}", "--port", "{{.Port}}",
		"--uds-path", "/tmp/text-embeddings-inference-{{.Port}}"} // one for each replica on the node
	return Version{
		Version:    name,
		Tasks:      []Task{Embedding, Rerank},
		Routes:     []string{"/tokenize"}, // the other one is /decode
		RerankAPI:  "tei",
		Schema:     variables(merged(teiVariables(), own)),
		Command:    append(append(command, served...), "{{.Flags}}"),
		Owned:      []string{"-p", "--api-key"},
		Image:      teiImage + tag,
		Kubernetes: teiPod(name),
		PodHost:    "::",
		Ready:      Probe{Path: "/health", Every: 500 * time.Millisecond},
		Health:     Probe{Path: "/health", Every: 10 * time.Second},
		Slots:      Slots{Variable: "max_concurrent_requests", Default: 512},
		Metrics:    teiMetrics(), PrefillRate: 20_000,
	}
}

func teiMetrics() Metrics {
	return Metrics{Path: "/metrics", Waiting: "te_queue_size", Slots: "/info#max_concurrent_requests", Sign: "/info#model_type"}
}

func teiVariables() map[string]any {
	return map[string]any{
		"revision":                text("branch, tag or commit of the model"),
		"dtype":                   choice("type of the weights; what there is depends on how the engine was built", "float16", "float32", "bfloat16"),
		"pooling":                 choice("how token vectors become one vector", "cls", "mean", "splade", "last-token"),
		"max_concurrent_requests": integer(1, "requests taken at once; more are refused"),
		"max_batch_tokens":        integer(1, "most tokens of one batch"),
		"max_batch_requests":      integer(1, "most texts of one batch"),
		"max_client_batch_size":   integer(1, "most texts of one request"),
		"tokenization_workers":    integer(1, "threads that tokenize; without it one for each core"),
		"default_prompt":          text("text that is put before every text; excludes default_prompt_name"),
		"default_prompt_name":     text("name of the prompt of the model that is put before every text"),
		"payload_limit":           integer(1, "largest body of a request, in bytes"),
		"huggingface_hub_cache":   text("directory for downloaded weights"),
		"json_output":             flag("log in JSON"),
		"disable_spans":           flag("log no spans"),
		"otlp_endpoint":           text("where traces are sent"),
		"otlp_service_name":       text("name of the service in traces"),
	}
}
