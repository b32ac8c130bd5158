package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/fit"
	"github.com/sluice-gateway/sluice/internal/weights"
)

const (
	defaultListen, defaultAdmin = "127.0.0.1:8080", "127.0.0.1:9090"
	// pythonTimeout limits the look for a module of Python.
	pythonTimeout = 10 * time.Second
	// listPatience limits how long a person at a terminal waits for a hub that limits rates.
	listPatience = 10 * time.Second
)

// modelFlags are the flags of `sluice up` for the models that the command line names.
type modelFlags struct {
	listen, admin string
	print         bool
}

// modelsFile chooses how the models that the command line names run on this machine, says so, and
// returns the configuration file for it. Nothing is fetched yet. The error says what is missing.
func modelsFile(ctx context.Context, out io.Writer, names []string, flags modelFlags) ([]byte, error) {
	node, _ := local.NewInventory().Read() // with an error it is a node without GPUs
	machine := &fit.Machine{Find: findProgram, Node: node}
	var choices []fit.Choice
	for _, name := range names {
		c, err := choose(ctx, machine, name)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(out, "%s\n  %s\n", name, strings.Join(c.Why, "\n  "))
		choices = append(choices, c)
	}
	return fit.File(flags.listen, flags.admin, choices)
}

// choose chooses for one model. What is known of a repository from an earlier fetch is used, so
// that a further start and a restart need no network and run the same files.
func choose(ctx context.Context, machine *fit.Machine, name string) (fit.Choice, error) {
	r, err := fit.ParseReference(name)
	if err != nil {
		return fit.Choice{}, err
	}
	if r.Ollama != "" {
		return machine.ChooseOllama(r)
	}
	source := weights.Source{Repository: r.Repository, Token: os.Getenv("HF_TOKEN")}
	listing, ok := weights.Cached(source)
	if !ok {
		fetcher := weights.Fetcher{Pause: 200 * time.Millisecond, Patience: listPatience}
		if listing, err = fetcher.List(ctx, source); err != nil {
			return fit.Choice{}, err
		}
	}
	return machine.Choose(r, listing)
}

// findProgram returns the path of a program in PATH, or "python3 -m NAME" for a module of Python
// (python:NAME). It returns "" if there is none.
func findProgram(name string) string {
	if module, ok := strings.CutPrefix(name, "python:"); ok {
		ctx, cancel := context.WithTimeout(context.Background(), pythonTimeout)
		defer cancel()
		const look = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
		if exec.CommandContext(ctx, "python3", "-c", look, module).Run() != nil {
			return ""
		}
		return "python3 -m " + module
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// modelsConfig returns the configuration of the models that the command line names.
func modelsConfig(ctx context.Context, out io.Writer, names []string, flags modelFlags) (*config.Config, error) {
	file, err := modelsFile(ctx, out, names, flags)
	if err != nil {
		return nil, err
	}
	c, err := config.Parse("sluice up", file)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "\nWhen %s is ready:\n  curl -N http://%s%s\n\n", c.Models[0].Name, flags.listen, firstRequest(c.Models[0]))
	return c, nil
}

// firstRequest returns the rest of a command line that asks the model something.
func firstRequest(m config.Model) string {
	path, body := "/v1/chat/completions", fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"Hello"}]}`, m.Name)
	switch m.Task {
	case engines.Embedding:
		path, body = "/v1/embeddings", fmt.Sprintf(`{"model":%q,"input":"Hello"}`, m.Name)
	case engines.Rerank:
		path, body = "/v1/rerank", fmt.Sprintf(`{"model":%q,"query":"Hello","documents":["Good day","Goodbye"]}`, m.Name)
	case engines.Transcription:
		return fmt.Sprintf("/v1/audio/transcriptions -F model=%s -F file=@speech.wav", m.Name)
	}
	return path + " -H 'content-type: application/json' -d '" + body + "'"
}
