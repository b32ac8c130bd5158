package engines

import "time"

// ollama is configured by its environment. It was checked against 0.12.11 and 0.32.15. Ollama
// listens before it has any model, so ollamaScript gets the model first.
//
// Ollama works on num_parallel requests at once, by default on one. It has no metrics that say how
// busy it is.
func ollama() Engine {
	old := ollamaVersion("0.12", "0.12.11", map[string]any{
		"multiuser_cache": flag("share the cache of prompts among users; gone in 0.30"),
		"new_engine":      flag("use Ollama's own engine; gone in 0.30"),
	})
	old.Env["OLLAMA_MULTIUSER_CACHE"] = "{{.Variables.multiuser_cache}}"
	old.Env["OLLAMA_NEW_ENGINE"] = "{{.Variables.new_engine}}"

	current := ollamaVersion("0.32", "0.32.15", map[string]any{
		"no_cloud":    flag("no models and searches of ollama.com's; came between 0.12.11 and 0.17.1"),
		"igpu_enable": flag("use integrated GPUs; since 0.30"),
	})
	current.Env["OLLAMA_NO_CLOUD"] = "{{.Variables.no_cloud}}"
	current.Env["OLLAMA_IGPU_ENABLE"] = "{{.Variables.igpu_enable}}"
	current.Routes = []string{"/v1/messages"}            // came with 0.14; it counts no tokens
	current.Tasks = append(current.Tasks, Transcription) // came between 0.12.11 and 0.24.0
	return Engine{Name: "ollama", Versions: []Version{old.withTable("ollama"), current.withTable("ollama")}}
}

// ollamaScript gets the model and gives it the name that clients ask for, through a server that
// only the script uses. After that it serves, so that a replica that answers has its model. A
// source of the registry huggingface is pulled from there. A source in a directory (a GGUF file or
// a folder of safetensors) is imported. Without a source, the name is pulled from Ollama's own
// library. If the pull fails, a model that is there already is used.
//
// The first server listens on another loopback address with the same port, which no other replica
// on the node is given.
const ollamaScript = `set -eu
name=$1 registry=$2 source=$3 port=$4 own=$OLLAMA_HOST
export OLLAMA_HOST=127.0.0.2:$port
ollama serve & server=$!
trap 'kill $server 2>/dev/null || :' EXIT
until ollama list >/dev/null 2>&1; do kill -0 $server; sleep 0.2; done
case $registry in
directory)
  file=$(mktemp)
  printf 'FROM %s\n' "$source" >"$file"
  ollama create "$name" -f "$file"
  rm -f "$file" ;;
*)
  [ -z "$source" ] && from=$name || from=hf.co/$source
  ollama pull "$from" || ollama show "$from" >/dev/null
  [ "$from" = "$name" ] || ollama cp "$from" "$name" ;;
esac
kill $server
wait $server || :
trap - EXIT
export OLLAMA_HOST=$own
shift 4
exec ollama serve "$@"`

func ollamaVersion(name, tag string, own map[string]any) Version {
	return Version{
		Version:    name,
		Tasks:      []Task{TextGeneration, Embedding},
		Routes:     []string{},
		Schema:     variables(merged(ollamaVariables(), own)),
		Command:    []string{"sh", "-c", ollamaScript, "ollama", "{{.Name}}", "{{.Registry}}", "{{if .Model}}{{.Model}}{{end}}", "{{.Port}}"},
		Env:        ollamaEnv(),
		Image:      "ollama/ollama:" + tag,
		Release:    tag,
		Owned:      []string{"--host", "--auth", "--editor"}, // in the environment; the last is of the client
		Kubernetes: keeps("/root/.ollama"),                   // what is imported from a directory goes there too
		PodHost:    "[::]",
		Ready:      Probe{Path: "/api/version", Every: 500 * time.Millisecond},
		Health:     Probe{Path: "/api/version", Every: 10 * time.Second},
		Slots:      Slots{Variable: "num_parallel", Default: 1},
		Usage:      UsageFinal,
		Metrics:    Metrics{Sign: "/api/version#version"}, // it tells nothing of its load
	}
}

func ollamaEnv() map[string]string {
	return map[string]string{
		"OLLAMA_HOST":              "{{.Host}}:{{.Port}}",
		"OLLAMA_MODELS":            "{{.Variables.models}}",
		"OLLAMA_NUM_PARALLEL":      "{{.Variables.num_parallel}}",
		"OLLAMA_MAX_QUEUE":         "{{.Variables.max_queue}}",
		"OLLAMA_CONTEXT_LENGTH":    "{{.Variables.context_length}}",
		"OLLAMA_KEEP_ALIVE":        "{{.Variables.keep_alive}}",
		"OLLAMA_LOAD_TIMEOUT":      "{{.Variables.load_timeout}}",
		"OLLAMA_MAX_LOADED_MODELS": "{{.Variables.max_loaded_models}}",
		"OLLAMA_FLASH_ATTENTION":   "{{.Variables.flash_attention}}",
		"OLLAMA_KV_CACHE_TYPE":     "{{.Variables.kv_cache_type}}",
		"OLLAMA_GPU_OVERHEAD":      "{{.Variables.gpu_overhead}}",
		"OLLAMA_SCHED_SPREAD":      "{{.Variables.sched_spread}}",
		"OLLAMA_LLM_LIBRARY":       "{{.Variables.llm_library}}",
		"OLLAMA_NOPRUNE":           "{{.Variables.noprune}}",
		"OLLAMA_DEBUG":             "{{.Variables.debug}}",
	}
}

func ollamaVariables() map[string]any {
	return map[string]any{
		"models":            text("directory of models; without it ~/.ollama/models"),
		"num_parallel":      integer(1, "requests worked on at once; each takes context_length of memory"),
		"max_queue":         integer(1, "requests that may wait inside the engine"),
		"context_length":    integer(1, "tokens of context"),
		"keep_alive":        withDefault("-1", text("how long an idle model stays in memory, such as 10m; -1: always; the engine's own default is 5m")),
		"load_timeout":      text("how long loading may stand still, such as 10m"),
		"max_loaded_models": integer(1, "models in memory at once"),
		"flash_attention":   flag("flash attention; without it where the engine thinks fit"),
		"kv_cache_type":     choice("type of the cache; needs flash attention", "f16", "q8_0", "q4_0"),
		"gpu_overhead":      integer(0, "bytes of each GPU's memory to leave free"),
		"sched_spread":      flag("spread the model over all GPUs even when one would do"),
		"llm_library":       text("build of the engine, such as cuda_v12 or cpu"),
		"noprune": withDefault(true, flag("keep unused parts of models; the engine's own default is false, and a start would then "+
			"take away what another replica is downloading")),
		"debug": integer(0, "1: log more, 2: log most"),
	}
}
