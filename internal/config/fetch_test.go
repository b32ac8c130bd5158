package config

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/weights"
)

// TestU19_WhatIsFetched: a registry with fetch makes Sluice fetch, with the token of its variable.
func TestU19_WhatIsFetched(t *testing.T) {
	t.Setenv("HF_TOKEN", "hf_standard")
	t.Setenv("HUB_TOKEN", "hf_own")
	t.Setenv("HF_ENDPOINT", "")
	dir, err := filepath.Abs("testdata/cache")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		registry, model string
		want            *weights.Source
	}{
		{"", "engine: vllm, source: {registry: r, name: org/model}", nil},
		{", fetch: true", "engine: vllm, source: {registry: r, name: org/model}", &weights.Source{Repository: "org/model", Token: "hf_standard"}},
		{", fetch: true, cache_dir: cache, endpoint: 'https://mirror', token_env: HUB_TOKEN",
			"engine: llama-cpp, source: {registry: r, name: org/model, revision: v1, file: a/b.gguf}", &weights.Source{
				Repository: "org/model", Revision: "v1", File: "a/b.gguf", GGUF: true, Endpoint: "https://mirror", CacheDir: dir, Token: "hf_own"}},
		{", fetch: true", "engine: sim", nil},
	} {
		c := parsed(t, "\nregistries: [{name: r, kind: huggingface"+tt.registry+"}]\nmodels: [{name: a, task: text-generation, "+tt.model+"}]\n")
		if diff := cmp.Diff(tt.want, c.Weights(c.Models[0])); diff != "" {
			t.Errorf("%s, %s (-want +got):\n%s", tt.registry, tt.model, diff)
		}
	}
}

// fetchCases are faults of registries and sources about fetching.
func fetchCases() []ruleCase {
	const hub = "registries: [{name: r, kind: huggingface, fetch: true}]\n"
	return []ruleCase{
		{"a directory fetches nothing", "registries: [{name: r, kind: directory, path: /, fetch: true, token_env: A}]",
			[]string{"1: registries[r].fetch: has no effect with kind: directory; remove it", "1: registries[r].token_env: has no effect with kind: directory; remove it"}},
		{"a cache of nothing", "registries: [{name: r, kind: huggingface, cache_dir: /x}]",
			[]string{"1: registries[r].cache_dir: has no effect with fetch: false; remove it"}},
		{"no URL", "registries: [{name: r, kind: huggingface, fetch: true, endpoint: mirror}]",
			[]string{"1: registries[r].endpoint: must be a URL such as http://127.0.0.1:9000/path"}},
		{"no such variable", "registries: [{name: r, kind: huggingface, fetch: true, token_env: SLUICE_NO_SUCH_TOKEN}]",
			[]string{"1: registries[r].token_env: names an environment variable that is not set or empty: set it before Sluice starts"}},
		{"a file of what is not fetched", "models: [{name: a, engine: vllm, source: {name: a/b, file: c, revision: d}}]",
			[]string{`1: models[a].source.file: has no effect with registry huggingface, which has no fetch: true; remove it`,
				`1: models[a].source.revision: has no effect with registry huggingface, which has no fetch: true; remove it`}},
		{"no id", hub + "models: [{name: a, engine: vllm, source: {registry: r, name: a/b/c, file: ../x}}]",
			[]string{`2: models[a].source.file: must be a path without .., is ../x`, `2: models[a].source.name: must be an id such as org/name, is a/b/c`}},
		{"pods fetch for themselves", "kubernetes: {}\n" + hub + "models: [{name: a, engine: vllm, launcher: kubernetes, source: {registry: r, name: a/b}}]",
			[]string{`3: models[a].source.registry: registry r has fetch: true, which only launcher: local knows; name a registry without it`}},
	}
}
