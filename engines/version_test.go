package engines

import "testing"

// A release has the table of that name, or the newest one at or below it.
func TestU11_AReleaseResolvesToTheNewestVersionAtOrBelow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ engine, release, want, image string }{
		{"vllm", "", "0.33", "vllm/vllm-openai:v0.33.0"},
		{"vllm", "0.11", "0.11", "vllm/vllm-openai:v0.11.0"},
		{"vllm", "0.11.2", "0.11", "vllm/vllm-openai:v0.11.2"},
		{"vllm", "v0.12.1", "0.11", "vllm/vllm-openai:v0.12.1"},
		{"vllm", "0.9", "0.8", "vllm/vllm-openai:v0.8.5"},
		{"vllm", "1.0.0", "0.33", "vllm/vllm-openai:v1.0.0"},
		{"vllm", "0.7.9", "", ""},
		{"vllm", "nightly", "", ""},
		{"sglang", "0.4.10.post2", "0.4.10", "lmsysorg/sglang:v0.4.10.post2"},
		{"sglang", "0.5.9", "0.5.5", "lmsysorg/sglang:v0.5.9"},
		{"llama-cpp", "0.7", "0.5", "ghcr.io/ggml-org/llama.cpp:server"},
		{"llama-cpp", "python-0.3.35", "python-0.3", "ghcr.io/abetlen/llama-cpp-python:latest"},
		{"llama-cpp", "b9000", "", ""},
		{"faster-whisper", "0.8.4", "0.8", "ghcr.io/speaches-ai/speaches:0.8.4-cuda"},
		{"ollama", "0.20.1", "0.12", "ollama/ollama:0.20.1"},
		{"none", "1", "", ""},
	} {
		got, ok := Find(Builtin(), tt.engine, tt.release)
		if got.Version != tt.want || ok != (tt.want != "") || got.Image != tt.image {
			t.Errorf("%s %s: version %q with image %q, want %q with %q", tt.engine, tt.release, got.Version, got.Image, tt.want, tt.image)
		}
	}
}

// Versions need not be in order, and those with other words before their number do not compare.
func TestU11_OnlyNumbersOfOneKindCompare(t *testing.T) {
	t.Parallel()
	e := Engine{Versions: []Version{{Version: "2.10"}, {Version: "2.9"}, {Version: "main"}, {Version: "rc-3"}}}
	for release, want := range map[string]string{
		"2.11": "2.10", "2.9.9": "2.9", "2.10.0-rc.1": "2.10", "main": "main", "rc-4": "rc-3", "rc-2": "", "other": "", "": "rc-3", "3": "2.10",
	} {
		if got, _ := e.Resolve(release); got.Version != want {
			t.Errorf("%s resolves to %q, want %q", release, got.Version, want)
		}
	}
	if _, ok := (Engine{}).Resolve(""); ok {
		t.Error("an engine without versions resolves")
	}
}
