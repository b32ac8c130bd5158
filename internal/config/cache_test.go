package config

import (
	"strings"
	"testing"
)

const cachedModel = "kubernetes: {}\nmodels: [{name: m, launcher: kubernetes, engine: vllm, source: {registry: hub, name: org/model%s}}]\n"

// TestU14_CachedWeights: the engine of a model gets the path of the link below the volume, which
// differs between revisions and files.
func TestU14_CachedWeights(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, more := range []string{"", ", revision: v1", ", file: sub/model.gguf"} {
		c := parsed(t, "registries: [{name: hub, kind: huggingface, endpoint: 'http://mirror', cache: {size: 5GiB, token: hub/token}}]\n"+
			strings.Replace(cachedModel, "%s", more, 1))
		_, l := c.Launch(c.Models[0])
		if !strings.HasPrefix(l.Model, "/var/cache/sluice/weights/sluice/") || l.Registry != "directory" || seen[l.Model] {
			t.Errorf("%s: %s of %s", more, l.Model, l.Registry)
		}
		if strings.Contains(more, "file") != strings.HasSuffix(l.Model, "/sub/model.gguf") {
			t.Errorf("%s: %s", more, l.Model)
		}
		seen[l.Model] = true
		if r, _, ok := c.CachedWeights(c.Models[0]); !ok || r.Cache.Claim != "sluice-weights-hub" || r.Cache.Image != "sluice:latest" {
			t.Errorf("the cache is %+v, %v", r.Cache, ok)
		}
	}
}

func TestU14_CacheFaults(t *testing.T) {
	t.Parallel()
	for registry, want := range map[string]string{
		"kind: huggingface, cache: {path: /w}":                                                        "f:1: registries[hub].cache: needs claim, or size for a claim that Sluice makes",
		"kind: huggingface, cache: {claim: c, size: 1GiB}":                                            "f:1: registries[hub].cache.size: has no effect with claim, which exists already; remove it",
		"kind: huggingface, cache: {claim: C}":                                                        "f:1: registries[hub].cache.claim: must be the name of a PersistentVolumeClaim",
		"kind: huggingface, cache: {claim: c, path: w}":                                               "f:1: registries[hub].cache.path: must be absolute, is w",
		"kind: huggingface, cache: {claim: c, token: t}":                                              "f:1: registries[hub].cache.token: must be the name of a Secret and the name of its key",
		"kind: huggingface, cache: {claim: c, pod: {spec: {toleration: []}}}":                         "f:1: registries[hub].cache.pod.spec.toleration: unknown field",
		"kind: huggingface, cache: {claim: c, pod: {spec: {containers: [{name: engine}]}}}":           "f:1: registries[hub].cache.pod.spec.containers[0]: the only container is loader",
		"kind: huggingface, cache: {claim: c, pod: {spec: {containers: [{name: loader, image: i}]}}}": "f:1: registries[hub].cache.pod.spec.containers[0].image: belongs to Sluice",
		"kind: huggingface, cache: {claim: c, pod: {spec: {containers: [{name: loader, env: []}]}}}":  "",
		"kind: directory, path: /models, claim: m, cache: {claim: c}":                                 "f:1: registries[hub].cache: has no effect with kind: directory; remove it",
		"kind: huggingface, endpoint: 'ftp://x', cache: {claim: c}":                                   "f:1: registries[hub].endpoint:",
		"kind: huggingface, cache: {claim: c}, token_env: HF_TOKEN_OF_MINE":                           "f:1: registries[hub].token_env: has no effect with fetch: false; remove it",
	} {
		_, faults := parsedIn(t, t.TempDir(), "registries: [{name: hub, "+registry+"}]\n"+strings.Replace(cachedModel, "%s", "", 1))
		if !strings.Contains(faults, want) || want == "" && faults != "" {
			t.Errorf("%s: faults %q, want %q", registry, faults, want)
		}
	}
}
