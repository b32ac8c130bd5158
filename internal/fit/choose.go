package fit

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/weights"
)

// Choice is how a model runs on the machine.
type Choice struct {
	Reference
	// Engine and Task are those of the model in the configuration.
	Engine string
	Task   engines.Task
	// File is the file of the repository that is loaded. It is empty if the directory is, and for a
	// model of Ollama's library.
	File string
	// GPUs is the number of GPUs that a replica gets. 0: the engine sees what there is.
	GPUs int
	// ContextLength is how many tokens of context the model was trained with. 0 means unknown.
	ContextLength int
	// Why says in lines what was chosen and why.
	Why []string
}

// Lack is the error of a model that cannot run here. It says in lines what is missing.
type Lack struct {
	Reference Reference
	Lines     []string
}

func (l *Lack) Error() string {
	return l.Reference.Text + " cannot run here:\n  " + strings.Join(l.Lines, "\n  ")
}

func lack(r Reference, format string, args ...any) *Lack {
	return &Lack{r, []string{fmt.Sprintf(format, args...)}}
}

// ChooseOllama chooses for a model of Ollama's library.
func (m *Machine) ChooseOllama(r Reference) (Choice, error) {
	at := m.Find("ollama")
	if at == "" {
		return Choice{}, &Lack{r, []string{"ollama is not installed", "ollama: curl -fsSL https://ollama.com/install.sh | sh"}}
	}
	task, why := engines.TextGeneration, "Ollama's library does not tell"
	for _, sign := range []string{"embed", "minilm", "bge-"} {
		if strings.Contains(r.Ollama, sign) {
			task, why = engines.Embedding, "by its name"
		}
	}
	return Choice{Reference: r, Engine: "ollama", Task: task, Why: []string{
		"engine   ollama (" + at + "), which fetches the weights itself",
		fmt.Sprintf("task     %s: %s", task, why),
	}}, nil
}

// Choose chooses an engine and files for a repository. Its error is a *Lack.
func (m *Machine) Choose(r Reference, l *weights.Listing) (Choice, error) {
	task, why := taskOf(l)
	if task == "" {
		return Choice{}, lack(r, "its task is %s, for which Sluice launches no engine", l.Task)
	}
	formats, err := formatsOf(r, l)
	if err != nil {
		return Choice{}, err
	}
	missing := &Lack{Reference: r}
	for _, e := range m.loaders() {
		if !slices.Contains(formats, e.format) || !slices.Contains(e.tasks, task) {
			continue
		}
		c, reason := m.try(e, r, l, formats)
		if reason != "" {
			missing.Lines = append(missing.Lines, reason)
			continue
		}
		c.Task, c.ContextLength = task, l.ContextLength
		c.Why = append(c.Why, fmt.Sprintf("task     %s: %s", task, why))
		return c, nil
	}
	if len(missing.Lines) == 0 {
		return Choice{}, lack(r, "it holds %s, and no engine serves %s from that; see docs/engines.md", join(formats), task)
	}
	missing.Lines = slices.Insert(missing.Lines, 0, fmt.Sprintf("it holds %s; one of these would do for %s:", join(formats), task))
	return Choice{}, missing
}

func join(formats []format) string {
	var names []string
	for _, f := range formats {
		names = append(names, string(f))
	}
	return strings.Join(names, " and ")
}

// formatsOf returns how the weights are stored that the reference means.
func formatsOf(r Reference, l *weights.Listing) ([]format, error) {
	var formats []format
	if len(l.Variants()) > 0 {
		formats = append(formats, gguf)
	}
	if r.File != "" {
		if len(formats) == 0 {
			return nil, lack(r, "it holds no GGUF file, of which %q could be one; leave it out", r.File)
		}
		return formats, nil
	}
	if l.HasSafetensors() {
		formats = append(formats, safetensors)
	}
	if len(formats) == 0 {
		return nil, lack(r, "it holds neither GGUF files nor safetensors with a config.json")
	}
	return formats, nil
}

// try chooses the engine if it can run the model. Otherwise it returns the reason.
func (m *Machine) try(e loader, r Reference, l *weights.Listing, formats []format) (Choice, string) {
	at := m.Find(e.program)
	if at == "" {
		hint := ""
		if e.gpu != mayUseGPU && len(m.Node.GPUs) == 0 {
			hint = " (and no GPU was found)"
		}
		return Choice{}, "not installed: " + e.get + hint
	}
	if e.gpu == needsGPU && len(m.freeGPUs()) == 0 {
		return Choice{}, fmt.Sprintf("%s (%s) needs a GPU, and none is free", e.engine, at) + m.held()
	}
	why := fmt.Sprintf("engine   %s (%s): the repository holds %s", e.engine, at, join(formats))
	if e.gpu == wantsGPU && len(m.Node.GPUs) == 0 {
		why += "; no GPU was found, so it must be a build for CPUs"
	}
	if e.format == gguf {
		return m.tryGGUF(e, r, l, why)
	}
	selection, err := l.Select(weights.Source{})
	if err != nil {
		return Choice{}, err.Error()
	}
	loaded := selection.LoadedBytes()
	gpus, fits := m.take(loaded, e.gpu)
	if !fits {
		return Choice{}, fmt.Sprintf("%s needs about %s for %s of weights, and there are %s", e.engine,
			weights.FormatBytes(needed(loaded)), weights.FormatBytes(loaded), m.describe())
	}
	return Choice{Reference: r, Engine: e.engine, GPUs: gpus, Why: []string{why,
		fmt.Sprintf("weights  %d files, %s", len(selection.Files), weights.FormatBytes(selection.Bytes())) + on(gpus)}}, ""
}

// tryGGUF chooses the quantisation: the one that the reference names, else the first in the order
// of weights.Listing.Variants that fits.
func (m *Machine) tryGGUF(e loader, r Reference, l *weights.Listing, why string) (Choice, string) {
	variants := l.Variants()
	if r.File != "" {
		named := func(v weights.Variant) bool {
			return strings.EqualFold(v.Quant, r.File) || slices.ContainsFunc(v.Files, func(f weights.File) bool { return f.Path == r.File })
		}
		all := names(variants)
		if variants = slices.DeleteFunc(slices.Clone(variants), func(v weights.Variant) bool { return !named(v) }); len(variants) == 0 {
			return Choice{}, fmt.Sprintf("it holds no %q; it holds %s", r.File, all)
		}
	}
	for i, v := range variants {
		gpus, fits := m.take(v.Bytes(), e.gpu)
		if !fits {
			continue
		}
		reason := "Q4_K_M is small and loses little"
		switch {
		case r.File != "":
			reason = "as asked for"
		case i > 0:
			reason = "of those that fit the best"
		case v.Quant != "Q4_K_M":
			reason = "of those that there are the best"
		}
		file := v.Files[0].Path
		return Choice{Reference: r, Engine: e.engine, File: file, GPUs: gpus, Why: []string{why,
			fmt.Sprintf("weights  %s, %s: %s", path.Base(file), weights.FormatBytes(v.Bytes()), reason) + on(gpus)}}, ""
	}
	smallest := slices.MinFunc(variants, func(a, b weights.Variant) int { return cmp.Compare(a.Bytes(), b.Bytes()) })
	return Choice{}, fmt.Sprintf("%s needs about %s for the smallest file (%s), and there are %s", e.engine,
		weights.FormatBytes(needed(smallest.Bytes())), path.Base(smallest.Files[0].Path), m.describe())
}

func on(gpus int) string {
	if gpus == 0 {
		return ""
	}
	return fmt.Sprintf("; on %d of the GPUs", gpus)
}

func names(variants []weights.Variant) string {
	var all []string
	for _, v := range variants {
		all = append(all, path.Base(v.Files[0].Path))
	}
	return strings.Join(all, ", ")
}

// take takes GPUs or memory for weights of a size, if there is room. An engine that does not want
// GPUs may also use the memory of the machine.
func (m *Machine) take(bytes int64, gpu need) (gpus int, ok bool) {
	room := needed(bytes)
	if gpus = m.gpusFor(room); gpus > 0 {
		m.gpusTaken += gpus
		return gpus, true
	}
	if gpu != mayUseGPU && len(m.Node.GPUs) > 0 || m.Node.Memory > 0 && room > m.freeMemory() {
		return 0, false
	}
	m.memoryTaken += room
	return 0, true
}

// tasks maps the hub's words for tasks.
var tasks = map[string]engines.Task{
	"text-generation": engines.TextGeneration, "image-text-to-text": engines.TextGeneration, "any-to-any": engines.TextGeneration,
	"conversational": engines.TextGeneration, "text2text-generation": engines.TextGeneration, "audio-text-to-text": engines.TextGeneration,
	"feature-extraction": engines.Embedding, "sentence-similarity": engines.Embedding,
	"text-ranking": engines.Rerank, "automatic-speech-recognition": engines.Transcription,
}

// taskOf returns the task of a repository, and how it is known. It is empty for a task of which
// Sluice knows nothing.
func taskOf(l *weights.Listing) (task engines.Task, why string) {
	if l.Task != "" {
		return tasks[l.Task], "the hub says " + l.Task
	}
	if strings.Contains(l.Architecture, "bert") {
		return engines.Embedding, "its architecture is " + l.Architecture
	}
	return engines.TextGeneration, "the hub does not tell"
}
