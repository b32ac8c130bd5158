package fit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/placement"
	"github.com/sluice-gateway/sluice/internal/weights"
)

// Machine is what models can run on. Each choice takes its part of the GPUs and the memory.
type Machine struct {
	// Find returns the path of a program, or of a Python module if its name begins with "python:".
	// It returns "" if there is none.
	Find func(program string) string
	// Node has the GPUs and the memory.
	Node engines.Node

	// gpusTaken is the number of GPUs, and memoryTaken the memory, of the choices so far.
	gpusTaken   int
	memoryTaken int64
}

// format is how the weights of a model are stored.
type format string

const (
	gguf        format = "GGUF"
	safetensors format = "safetensors"
)

// need says whether an engine uses GPUs.
type need int

const (
	mayUseGPU need = iota
	// wantsGPU: without a GPU only a special build of the engine works.
	wantsGPU
	needsGPU
)

// loader is an engine that can load the weights of a repository.
type loader struct {
	engine string
	// program is what must be installed; see Machine.Find.
	program string
	format  format
	tasks   []engines.Task
	gpu     need
	// get says how to get the program.
	get string
}

// loaders are the engines in the order in which they are tried.
func (m *Machine) loaders() []loader {
	ofGGUF := []loader{
		{"llama-cpp", "llama-server", gguf, []engines.Task{engines.TextGeneration, engines.Embedding, engines.Rerank}, mayUseGPU,
			"llama-server is part of llama.cpp: brew install llama.cpp, or https://github.com/ggml-org/llama.cpp/releases"},
		{"ollama", "ollama", gguf, []engines.Task{engines.TextGeneration, engines.Embedding}, mayUseGPU,
			"ollama: curl -fsSL https://ollama.com/install.sh | sh"},
	}
	ofSafetensors := []loader{
		{"tei", "text-embeddings-router", safetensors, []engines.Task{engines.Embedding, engines.Rerank}, mayUseGPU,
			"text-embeddings-router: https://github.com/huggingface/text-embeddings-inference#local-install"},
		{"vllm", "vllm", safetensors, []engines.Task{engines.TextGeneration, engines.Embedding, engines.Rerank, engines.Transcription}, wantsGPU,
			"vllm: pip install vllm"},
		{"sglang", "python:sglang", safetensors, []engines.Task{engines.TextGeneration, engines.Embedding}, needsGPU,
			`sglang: pip install "sglang[all]"`},
	}
	if len(m.Node.GPUs) > 0 {
		return append(ofSafetensors, ofGGUF...)
	}
	return append(ofGGUF, ofSafetensors...)
}

// freeGPUs returns the GPUs that placement gives a replica as a whole and that no choice has taken.
func (m *Machine) freeGPUs() []engines.GPU {
	free := slices.DeleteFunc(slices.Clone(m.Node.GPUs), func(g engines.GPU) bool { return !places([]engines.GPU{g}, 1) })
	return free[min(m.gpusTaken, len(free)):]
}

// places reports whether a replica that wants a number of GPUs for itself gets them among these.
func places(gpus []engines.GPU, n int) bool {
	gpus = slices.Clone(gpus)
	for i := range gpus {
		gpus[i].MemoryForeign = gpus[i].MemoryUsed // no replica runs yet
	}
	return placement.Fits(engines.Node{GPUs: gpus}, nil, placement.Want{Resources: engines.Resources{GPU: float64(n)}})
}

// freeMemory returns the memory that no choice has taken, in bytes. A tenth is left to the system.
// It is 0 if the memory is not known.
func (m *Machine) freeMemory() int64 { return max(0, m.Node.Memory*9/10-m.memoryTaken) }

// gpusFor returns how many of the free GPUs the weights need: 1, 2, 4 or 8, as engines divide
// models. It returns 0 if they fit on no number of them.
func (m *Machine) gpusFor(bytes int64) int {
	free := m.freeGPUs()
	for n := 1; n <= min(8, len(free)) && places(free, n); n *= 2 {
		room := int64(0)
		for _, g := range free[:n] {
			room += (g.MemoryTotal - g.MemoryUsed) * 9 / 10
		}
		if room >= bytes {
			return n
		}
	}
	return 0
}

// needed returns how much memory weights of a size need while they serve, roughly: a quarter more
// for contexts, and some for the program.
func needed(bytes int64) int64 { return bytes + bytes/4 + 256<<20 }

// describe says what memory the machine has left.
func (m *Machine) describe() string {
	free := m.freeGPUs()
	if len(free) == 0 {
		return weights.FormatBytes(m.freeMemory()) + " of memory" + m.held()
	}
	var rooms []string
	for _, g := range free {
		rooms = append(rooms, weights.FormatBytes(g.MemoryTotal-g.MemoryUsed))
	}
	return fmt.Sprintf("GPUs with %s, %s of memory", strings.Join(rooms, " and "), weights.FormatBytes(m.freeMemory())) + m.held()
}

// held says which GPUs get no replica because other programs use them. It is empty if there are
// none.
func (m *Machine) held() string {
	var held []string
	for _, g := range m.Node.GPUs {
		if !places([]engines.GPU{g}, 1) {
			held = append(held, fmt.Sprintf("%s of %s of GPU %d", weights.FormatBytes(g.MemoryUsed), weights.FormatBytes(g.MemoryTotal), g.Index))
		}
	}
	if len(held) == 0 {
		return ""
	}
	return " (other programs hold " + strings.Join(held, " and ") + ")"
}
