package fit

import (
	"cmp"
	"path"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-gateway/sluice/engines"
)

const (
	// slots is how many requests llama-server works on at once, and slotContext how many tokens of
	// context each has, if the model was trained with as many. The default of llama-server is the
	// whole context of the model, which may need more memory than the weights.
	slots       = 4
	slotContext = 8192
	// embeddingBatch is how many tokens of one text llama-server reads to embed it.
	embeddingBatch = 2048
	// registry is the name of the registry in the file.
	registry = "hub"
)

// File returns a configuration file for the choices. The gateway listens on the addresses, which
// must be on loopback, and needs no keys.
func File(listen, admin string, choices []Choice) ([]byte, error) {
	var models []any
	taken := map[string]bool{}
	for _, c := range choices {
		taken[c.Name()] = true
	}
	for _, c := range choices {
		models = append(models, c.model(taken))
	}
	return yaml.Marshal(map[string]any{
		"listen": listen, "admin": admin,
		"auth":       map[string]any{"mode": "none"},
		"registries": []any{map[string]any{"name": registry, "kind": "huggingface", "fetch": true}},
		"models":     models,
	})
}

// Name returns the name of the model for clients: the id, as the hub and Ollama write it.
func (c Choice) Name() string { return cmp.Or(c.Ollama, c.Repository) }

// model returns the model of the file. taken are names that are not free for its alias.
func (c Choice) model(taken map[string]bool) map[string]any {
	m := map[string]any{"name": c.Name(), "task": string(c.Task), "engine": c.Engine}
	if short := path.Base(c.Name()); !taken[short] {
		taken[short] = true
		m["aliases"] = []any{short}
	}
	if c.GPUs > 0 {
		m["resources"] = map[string]any{"gpu": c.GPUs}
	}
	if c.Ollama != "" {
		return m
	}
	source := map[string]any{"registry": registry, "name": c.Repository}
	if c.File != "" {
		source["file"] = c.File
	}
	m["source"] = source
	if c.Engine == "llama-cpp" {
		m["variables"] = c.variables()
	}
	return m
}

// variables returns those of llama-server.
func (c Choice) variables() map[string]any {
	context := slotContext
	if c.ContextLength > 0 {
		context = min(context, c.ContextLength)
	}
	v := map[string]any{"parallel": slots, "ctx_size": slots * context}
	if c.Task != engines.TextGeneration {
		v["batch_size"], v["ubatch_size"] = min(embeddingBatch, context), min(embeddingBatch, context)
	}
	return v
}
