package config

import (
	"cmp"
	"os"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/weights"
)

// defaultTokenEnv is the default of Registry.TokenEnv: the variable that the hub's own programs
// read.
const defaultTokenEnv = "HF_TOKEN"

// checkFetch checks the fields of a registry about fetching, and reads the token.
func (k *checker) checkFetch(at path, r *Registry) {
	k.checkCache(at, r)
	fields := []string{"cache_dir", "endpoint", "token_env"}
	if r.Kind != HuggingFace {
		for _, field := range append(fields, "fetch") {
			k.rejectSet(at.field(field), "kind: directory")
		}
		return
	}
	if where := at.field("endpoint"); r.Endpoint != "" && k.valid(where) {
		k.checkURL(where, r.Endpoint)
	}
	if !r.Fetch {
		for _, field := range fields {
			if field != "endpoint" || r.Cache == nil {
				k.rejectSet(at.field(field), "fetch: false")
			}
		}
		return
	}
	if r.CacheDir != "" {
		r.CacheDir = k.absolutePath(r.CacheDir)
	}
	where := at.field("token_env")
	if r.TokenEnv == "" {
		r.Token = os.Getenv(defaultTokenEnv)
		return
	}
	token, fault := environmentVariable(r.TokenEnv)
	if fault != "" && k.valid(where) {
		k.faultf(where, "%s", fault)
	}
	r.Token = token
}

// checkFetchedSource checks the fields of a source about fetching. The source has a name.
func (k *checker) checkFetchedSource(at path, m *Model, r Registry) {
	cached := r.Cache != nil && m.Launcher == engines.Kubernetes
	if !r.Fetch && !cached {
		for _, field := range []string{"revision", "file"} {
			k.rejectSet(at.field(field), "registry "+quoted(r.Name)+", which has no fetch: true")
		}
		return
	}
	if m.Launcher != engines.Local && !cached {
		k.faultf(at.field("registry"), "registry %s has fetch: true, which only launcher: local knows; name a registry without it", quoted(r.Name))
	}
	if where := at.field("name"); !weights.ValidRepository(m.Source.Name) {
		k.rejectID(where, m.Source.Name)
	}
	for field, value := range map[string]string{"revision": m.Source.Revision, "file": m.Source.File} {
		if where := at.field(field); value != "" && k.valid(where) && !weights.ValidPath(value) {
			k.faultf(where, "must be a path without .., is %s", quoted(value))
		}
	}
}

// Weights returns what Sluice fetches before it starts a replica of the model. It returns nil if it
// fetches nothing.
func (c *Config) Weights(m Model) *weights.Source {
	if m.Source == nil || m.Launcher != engines.Local {
		return nil
	}
	r, _ := c.registry(m.Source.Registry)
	if !r.Fetch {
		return nil
	}
	return &weights.Source{
		Repository: m.Source.Name, Revision: m.Source.Revision, File: m.Source.File, GGUF: LoadsGGUF(m.Engine),
		Endpoint: cmp.Or(r.Endpoint, os.Getenv("HF_ENDPOINT")), CacheDir: r.CacheDir, Token: r.Token,
	}
}

// LoadsGGUF reports whether an engine prefers a GGUF file to a directory of safetensors.
func LoadsGGUF(engine string) bool { return engine == "llama-cpp" || engine == "ollama" }
