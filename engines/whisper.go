package engines

import (
	"maps"
	"strings"
	"time"
)

// fasterWhisper is speaches, the server of faster-whisper with OpenAI's API (faster-whisper-server
// until 0.6), checked against 0.7.0, 0.8.3 and 0.9.0-rc.3. It is configured by its environment, and
// must be started in the directory of its own files, as its image does.
//
// It serves every model under the model's id on Hugging Face. So the model's name in the
// configuration is that id, clients use its aliases, and there is no source. The first request
// loads the weights into memory. They stay there, because stt_model_ttl is -1 by default here. It
// has no metrics that say how busy it is.
func fasterWhisper() Engine {
	old := whisper07()
	old.Tasks = []Task{Transcription} // it prepares a model of speech to text only
	return Engine{Name: "faster-whisper", Versions: []Version{
		old.withTable("faster-whisper"), whisper08().withTable("faster-whisper"), whisper09().withTable("faster-whisper")}}
}

// whisper07 downloads a model at its first request.
func whisper07() Version {
	return whisperVersion("0.7", "0.7.0-cuda", map[string]any{
		"stt_model_ttl":           whisperTTL(),
		"use_batched_mode":        flag("transcribe parts of one file at once"),
		"default_language":        text("language of audio when the request names none, such as en"),
		"default_response_format": choice("format of answers when the request names none", "text", "json", "verbose_json", "srt", "vtt"),
	}, map[string]string{
		"WHISPER__MODEL":            "{{.Name}}",
		"WHISPER__TTL":              "{{.Variables.stt_model_ttl}}",
		"WHISPER__USE_BATCHED_MODE": "{{.Variables.use_batched_mode}}",
		"DEFAULT_LANGUAGE":          "{{.Variables.default_language}}",
		"DEFAULT_RESPONSE_FORMAT":   "{{.Variables.default_response_format}}",
	})
}

// whisper08 serves only models that were downloaded before, by POST /v1/models/{id} or by another
// program. It answers 404 for others.
func whisper08() Version {
	return whisperVersion("0.8", "0.8.3-cuda", map[string]any{
		"stt_model_ttl":    whisperTTL(),
		"use_batched_mode": flag("transcribe parts of one file at once"),
	}, map[string]string{
		"WHISPER__TTL":              "{{.Variables.stt_model_ttl}}",
		"WHISPER__USE_BATCHED_MODE": "{{.Variables.use_batched_mode}}",
	})
}

// whisper09 downloads the model before it is ready.
func whisper09() Version {
	return whisperVersion("0.9", "0.9.0-rc.3-cuda", map[string]any{
		"stt_model_ttl": whisperTTL(),
		"vad_model_ttl": integer(-1, "seconds without use after which the model that finds speech leaves memory; -1: never"),
	}, map[string]string{
		"PRELOAD_MODELS": `["{{.Name}}"]`,
		"STT_MODEL_TTL":  "{{.Variables.stt_model_ttl}}",
		"VAD_MODEL_TTL":  "{{.Variables.vad_model_ttl}}",
	})
}

func whisperTTL() map[string]any {
	return withDefault(-1, integer(-1, "seconds without use after which the model leaves memory; -1: never; the engine's own default is 300"))
}

func whisperVersion(name, tag string, own map[string]any, ownEnv map[string]string) Version {
	env := map[string]string{
		"UVICORN_HOST":              "{{.Host}}",
		"UVICORN_PORT":              "{{.Port}}",
		"WHISPER__INFERENCE_DEVICE": "{{.Variables.inference_device}}",
		"WHISPER__DEVICE_INDEX":     "{{.Variables.device_index}}",
		"WHISPER__COMPUTE_TYPE":     "{{.Variables.compute_type}}",
		"WHISPER__CPU_THREADS":      "{{.Variables.cpu_threads}}",
		"WHISPER__NUM_WORKERS":      "{{.Variables.num_workers}}",
		"LOG_LEVEL":                 "{{.Variables.log_level}}",
		"ENABLE_UI":                 "{{.Variables.enable_ui}}",
	}
	maps.Copy(env, ownEnv)
	return Version{
		Version:    name,
		Tasks:      []Task{Transcription, Speech},
		Routes:     []string{},
		Schema:     variables(merged(whisperVariables(), own)),
		Command:    []string{"uvicorn", "--factory", "speaches.main:create_app"},
		Env:        env,
		Owned:      []string{"--host", "--port", "--api-key", "--model", "--preload-models", "--uds", "--fd", "--ssl-keyfile", "--ssl-certfile", "--root-path"},
		Image:      "ghcr.io/speaches-ai/speaches:" + tag,
		Release:    strings.TrimSuffix(tag, "-cuda"),
		Kubernetes: keeps("/home/ubuntu/.cache/huggingface/hub"), // the image's user is ubuntu
		PodHost:    podAddress,
		Ready:      Probe{Path: "/health", Every: 500 * time.Millisecond},
		Health:     Probe{Path: "/health", Every: 10 * time.Second},
		Slots:      Slots{Variable: "num_workers", Default: 1},
	}
}

func whisperVariables() map[string]any {
	return map[string]any{
		"inference_device": choice("kind of device", "auto", "cpu", "cuda"),
		"device_index":     integer(0, "index of the GPU"),
		"compute_type": choice("type of the weights", "default", "int8", "int8_float16", "int8_bfloat16", "int8_float32", "int16",
			"float16", "bfloat16", "float32"),
		"cpu_threads": integer(0, "CPU threads of one worker; 0: the engine decides"),
		"num_workers": integer(1, "files transcribed at once"),
		"log_level":   withDefault("info", choice("what is logged; the engine's own default is debug", "debug", "info", "warning", "error", "critical")),
		"enable_ui":   withDefault(false, flag("serve a web page; the engine's own default is true")),
	}
}
