package fit

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/weights"
)

// machine has programs, memory and GPUs, each with 24 GiB.
func machine(memoryGiB int64, gpus int, programs ...string) *Machine {
	m := &Machine{Find: func(name string) string {
		if slices.Contains(programs, name) {
			return "/bin/" + name
		}
		return ""
	}}
	m.Node.Memory = memoryGiB << 30
	for range gpus {
		m.Node.GPUs = append(m.Node.GPUs, engines.GPU{MemoryTotal: 24 << 30})
	}
	return m
}

// repository lists files with their sizes in MiB.
func repository(task string, files map[string]int64) *weights.Listing {
	l := &weights.Listing{Repository: "org/model", Commit: strings.Repeat("a", 40), Task: task}
	for path, size := range files {
		l.Files = append(l.Files, weights.File{Path: path, Size: size << 20})
	}
	slices.SortFunc(l.Files, func(a, b weights.File) int { return strings.Compare(a.Path, b.Path) })
	return l
}

var (
	ggufFiles = map[string]int64{"m-Q2_K.gguf": 3000, "m-Q4_K_M.gguf": 5000, "m-Q8_0.gguf": 9000, "m-F16.gguf": 16000}
	tensors   = map[string]int64{"config.json": 0, "model.safetensors": 15000, "tokenizer.json": 2}
	both      = map[string]int64{"config.json": 0, "model.safetensors": 15000, "m-Q4_K_M.gguf": 5000}
	twice     = map[string]int64{"config.json": 0, "consolidated.safetensors": 15000, "model-00001-of-00002.safetensors": 10000, "model-00002-of-00002.safetensors": 5000}
	huge      = map[string]int64{"config.json": 0, "a.safetensors": 60000}
)

// TestB7_ChosenEngine: the engine and the file follow from what the machine and the repository
// have.
func TestB7_ChosenEngine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what    string
		machine *Machine
		files   map[string]int64
		task    string
		file    string
		want    Choice
		why     string
	}{
		{"GGUF on a CPU", machine(16, 0, "llama-server", "vllm", "ollama"), ggufFiles, "text-generation", "",
			Choice{Engine: "llama-cpp", File: "m-Q4_K_M.gguf"}, "Q4_K_M is small and loses little"},
		{"too little memory for Q4_K_M", machine(5, 0, "llama-server"), ggufFiles, "", "", Choice{Engine: "llama-cpp", File: "m-Q2_K.gguf"}, "of those that fit the best"},
		{"no Q4_K_M", machine(64, 0, "llama-server"), map[string]int64{"m-Q2_K.gguf": 3000}, "", "", Choice{Engine: "llama-cpp", File: "m-Q2_K.gguf"}, "of those that there are the best"},
		{"an unknown memory", machine(0, 0, "llama-server"), ggufFiles, "", "", Choice{Engine: "llama-cpp", File: "m-Q4_K_M.gguf"}, "loses little"},
		{"a quantisation by name", machine(64, 0, "llama-server"), ggufFiles, "", "q8_0", Choice{Engine: "llama-cpp", File: "m-Q8_0.gguf"}, "as asked for"},
		{"a file by name", machine(64, 0, "llama-server"), both, "", "m-Q4_K_M.gguf", Choice{Engine: "llama-cpp", File: "m-Q4_K_M.gguf"}, "as asked for"},
		{"only Ollama", machine(16, 0, "ollama"), ggufFiles, "", "", Choice{Engine: "ollama", File: "m-Q4_K_M.gguf"}, ""},
		{"GGUF on a GPU", machine(64, 1, "llama-server"), ggufFiles, "", "", Choice{Engine: "llama-cpp", File: "m-Q4_K_M.gguf", GPUs: 1}, "on 1 of the GPUs"},
		{"both on a GPU", machine(64, 1, "llama-server", "vllm"), both, "", "", Choice{Engine: "vllm", GPUs: 1}, "2 files"},
		{"both without a GPU", machine(64, 0, "llama-server", "vllm"), both, "", "", Choice{Engine: "llama-cpp", File: "m-Q4_K_M.gguf"}, ""},
		{"both, and too large for the GPU", machine(64, 1, "llama-server", "vllm"), map[string]int64{"config.json": 0, "m.safetensors": 60000, "m-Q4_K_M.gguf": 12000}, "", "",
			Choice{Engine: "llama-cpp", File: "m-Q4_K_M.gguf", GPUs: 1}, ""},
		{"several GPUs", machine(64, 4, "vllm"), huge, "", "", Choice{Engine: "vllm", GPUs: 4}, ""},
		{"weights in two formats", machine(64, 1, "vllm"), twice, "", "", Choice{Engine: "vllm", GPUs: 1}, "4 files, 29.3 GiB"},
		{"SGLang", machine(64, 1, "python:sglang"), tensors, "", "", Choice{Engine: "sglang", GPUs: 1}, ""},
		{"vLLM on a CPU", machine(64, 0, "vllm", "python:sglang"), tensors, "", "", Choice{Engine: "vllm"}, "it must be a build for CPUs"},
		{"embeddings", machine(64, 0, "vllm", "text-embeddings-router"), map[string]int64{"config.json": 0, "model.safetensors": 400}, "sentence-similarity", "",
			Choice{Engine: "tei", Task: engines.Embedding}, "the hub says sentence-similarity"},
		{"embeddings as GGUF", machine(64, 0, "llama-server"), ggufFiles, "feature-extraction", "",
			Choice{Engine: "llama-cpp", Task: engines.Embedding, File: "m-Q4_K_M.gguf"}, ""},
		{"speech", machine(64, 1, "vllm"), tensors, "automatic-speech-recognition", "", Choice{Engine: "vllm", Task: engines.Transcription, GPUs: 1}, ""},
	} {
		r := Reference{Text: "hf:org/model", Repository: "org/model", File: tt.file}
		got, err := tt.machine.Choose(r, repository(tt.task, tt.files))
		if err != nil {
			t.Errorf("%s: %v", tt.what, err)
			continue
		}
		why := strings.Join(got.Why, "\n")
		if tt.want.Reference, got.Why = r, nil; tt.want.Task == "" {
			tt.want.Task = engines.TextGeneration
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || !strings.Contains(why, tt.why) {
			t.Errorf("%s: why %q, want %q; (-want +got):\n%s", tt.what, why, tt.why, diff)
		}
	}
}

// TestB7_WhatIsMissing: each engine that would do is named with what it lacks here.
func TestB7_WhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what    string
		machine *Machine
		files   map[string]int64
		task    string
		file    string
		want    []string
	}{
		{"no program for GGUF", machine(16, 0, "vllm"), ggufFiles, "", "", []string{"it holds GGUF; one of these would do for text-generation:",
			"not installed: llama-server is part of llama.cpp", "not installed: ollama: curl"}},
		{"no program for safetensors", machine(16, 0, "llama-server"), tensors, "", "", []string{"not installed: vllm: pip install vllm (and no GPU was found)", "sglang: pip install"}},
		{"no GPU", machine(64, 0, "python:sglang"), tensors, "", "", []string{"sglang (/bin/python:sglang) needs a GPU, and none is free"}},
		{"too large", machine(3, 0, "llama-server"), ggufFiles, "", "", []string{"llama-cpp needs about 3.9 GiB for the smallest file (m-Q2_K.gguf), and there are 2.7 GiB of memory"}},
		{"too large for two GPUs", machine(256, 2, "vllm"), huge, "", "", []string{"vllm needs about 73.5 GiB for 58.6 GiB of weights, and there are GPUs with 24.0 GiB and 24.0 GiB, "}},
		{"too large for eight of many GPUs", machine(1024, 16, "vllm"), map[string]int64{"config.json": 0, "a.safetensors": 200_000}, "", "", []string{"vllm needs about 244.4 GiB"}},
		{"no such quantisation", machine(16, 0, "llama-server"), ggufFiles, "", "Q9_0", []string{`it holds no "Q9_0"; it holds m-Q4_K_M.gguf, m-Q8_0.gguf, m-Q2_K.gguf, m-F16.gguf`}},
		{"a file of safetensors", machine(16, 0, "llama-server"), tensors, "", "model.safetensors", []string{`it holds no GGUF file, of which "model.safetensors" could be one; leave it out`}},
		{"no weights", machine(16, 0, "llama-server"), map[string]int64{"README.md": 1}, "", "", []string{"it holds neither GGUF files nor safetensors"}},
		{"pictures", machine(16, 0, "llama-server"), tensors, "text-to-image", "", []string{"its task is text-to-image, for which Sluice launches no engine"}},
		{"speech as GGUF", machine(16, 0, "llama-server"), ggufFiles, "automatic-speech-recognition", "", []string{"it holds GGUF, and no engine serves transcription from that"}},
	} {
		_, err := tt.machine.Choose(Reference{Text: "hf:org/model", Repository: "org/model", File: tt.file}, repository(tt.task, tt.files))
		var missing *Lack
		if !errors.As(err, &missing) || !strings.HasPrefix(err.Error(), "hf:org/model cannot run here:\n  ") {
			t.Errorf("%s: %v", tt.what, err)
			continue
		}
		if strings.Contains(err.Error(), "other programs") {
			t.Errorf("%s: %v", tt.what, err)
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v\nwant %q", tt.what, err, want)
			}
		}
	}
}

// TestB7_AGPUThatOthersUse: a GPU that placement would give no replica is not chosen, and the error
// says what holds its memory.
func TestB7_AGPUThatOthersUse(t *testing.T) {
	t.Parallel()
	r := Reference{Text: "hf:org/model", Repository: "org/model"}
	m := machine(8, 1, "vllm", "python:sglang")
	m.Node.GPUs[0].MemoryUsed = 3 << 30
	c, err := m.Choose(r, repository("", tensors))
	if err == nil {
		t.Fatalf("chosen: %+v", c)
	}
	for _, want := range []string{
		"vllm needs about 18.6 GiB for 14.7 GiB of weights, and there are 7.2 GiB of memory (other programs hold 3.0 GiB of 24.0 GiB of GPU 0)",
		"sglang (/bin/python:sglang) needs a GPU, and none is free (other programs hold 3.0 GiB of 24.0 GiB of GPU 0)",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %q", err, want)
		}
	}

	m = machine(0, 2, "vllm")
	m.Node.GPUs[0].MemoryUsed = 3 << 30
	if c, err := m.Choose(r, repository("", tensors)); err != nil || c.GPUs != 1 {
		t.Errorf("the free GPU: %+v, %v", c, err)
	}
	c, err = m.Choose(r, repository("", tensors))
	if want := "there are 0 B of memory (other programs hold 3.0 GiB of 24.0 GiB of GPU 0)"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the GPU in use: %+v, %v", c, err)
	}
}

// TestB7_SeveralModels: each takes its part of the machine.
func TestB7_SeveralModels(t *testing.T) {
	t.Parallel()
	m := machine(8, 1, "llama-server", "vllm")
	r := Reference{Repository: "org/model"}
	first, err := m.Choose(r, repository("", tensors))
	if err != nil || first.Engine != "vllm" || first.GPUs != 1 {
		t.Errorf("the first: %+v, %v", first, err)
	}
	second, err := m.Choose(r, repository("", ggufFiles))
	if err != nil || second.Engine != "llama-cpp" || second.GPUs != 0 || second.File != "m-Q4_K_M.gguf" {
		t.Errorf("the second has the memory of the machine: %+v, %v", second, err)
	}
	if third, err := m.Choose(r, repository("", ggufFiles)); err == nil {
		t.Errorf("the third has no room: %+v", third)
	}
}

// TestB7_TaskByArchitecture: the hub may not tell the task.
func TestB7_TaskByArchitecture(t *testing.T) {
	t.Parallel()
	for architecture, want := range map[string]engines.Task{"": engines.TextGeneration, "llama": engines.TextGeneration, "nomic-bert": engines.Embedding} {
		l := repository("", ggufFiles)
		l.Architecture = architecture
		if c, err := machine(64, 0, "llama-server").Choose(Reference{}, l); err != nil || c.Task != want {
			t.Errorf("%q: %s, %v", architecture, c.Task, err)
		}
	}
}

func TestB7_Ollama(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]engines.Task{"qwen3:0.6b": engines.TextGeneration, "nomic-embed-text": engines.Embedding} {
		r, err := ParseReference("ollama:" + name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := machine(16, 0, "ollama").ChooseOllama(r)
		if err != nil || c.Engine != "ollama" || c.Task != want || c.Name() != name {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		if _, err := machine(16, 0).ChooseOllama(r); err == nil || !strings.Contains(err.Error(), "https://ollama.com/install.sh") {
			t.Errorf("without Ollama: %v", err)
		}
	}
}

func TestB7_References(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Reference{
		"hf:org/model":              {Text: "hf:org/model", Repository: "org/model"},
		"hf:org/model:Q8_0":         {Text: "hf:org/model:Q8_0", Repository: "org/model", File: "Q8_0"},
		"hf:gpt2":                   {Text: "hf:gpt2", Repository: "gpt2"},
		"hf:org/model:dir/a-1.gguf": {Text: "hf:org/model:dir/a-1.gguf", Repository: "org/model", File: "dir/a-1.gguf"},
		"ollama:qwen3:0.6b":         {Text: "ollama:qwen3:0.6b", Ollama: "qwen3:0.6b"},
	} {
		if got, err := ParseReference(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "hf:", "hf:a/b/c", "ollama:", "ollama:a b", "org/model", "https://huggingface.co/org/model", "hf:../x"} {
		if got, err := ParseReference(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}
