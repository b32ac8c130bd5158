package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// engineWith is a file with an engine that has these metrics on its line 6.
func engineWith(metrics string) string {
	return "engines:\n- name: own\n  versions:\n  - version: '1'\n    tasks: [embedding]\n    metrics: " + metrics + "\n    command: [own]\n    prefill_rate: 2500\n"
}

// TestU10_MetricsOfTheFilesEngines: the file's own engines say the same as the built-in ones.
func TestU10_MetricsOfTheFilesEngines(t *testing.T) {
	t.Parallel()
	c := parsed(t, engineWith(`{path: /stats, running: 'own_running or old_running', waiting: own_waiting, kv_usage: own_usage, `+
		`cache_tokens: '/info#blocks*cache.block_size', cached_tokens: 'tokens{from="cache"}', prefill_tokens: 'tokens{from="gpu"}', prefill_seconds: seconds}`))
	v, ok := engines.Find(c.Catalogue(), "own", "1")
	want := engines.Metrics{Path: "/stats", Running: "own_running or old_running", Waiting: "own_waiting", KVUsage: "own_usage",
		CacheTokens: "/info#blocks*cache.block_size", CachedTokens: `tokens{from="cache"}`, PrefillTokens: `tokens{from="gpu"}`, PrefillSeconds: "seconds"}
	if d := cmp.Diff(want, v.Metrics); !ok || d != "" || v.PrefillRate != 2500 {
		t.Errorf("%v, rate %v\n%s", ok, v.PrefillRate, d)
	}
	for metrics, fault := range map[string]string{
		"{running: a}":                              "6: engines[own].versions[1].metrics.path: must begin with /",
		"{path: metrics}":                           "6: engines[own].versions[1].metrics.path: must begin with /",
		"{path: /metrics, running: 'a b'}":          `6: engines[own].versions[1].metrics.running: must be the name of a series, with labels in braces if needed, or a path with # and a field, is "a b"`,
		"{path: /metrics, waiting: 'a{b=c}'}":       `6: engines[own].versions[1].metrics.waiting: the label must be name or name="value", is "b=c"`,
		"{cache_tokens: /props}":                    `6: engines[own].versions[1].metrics.cache_tokens: the path must be followed by # and a field of the JSON document, is "/props"`,
		"{cache_tokens: '/props#a..b'}":             `6: engines[own].versions[1].metrics.cache_tokens: the field must be names with dots between them, is "a..b"`,
		"{path: /metrics, ruming: a}":               `6: engines[own].versions[1].metrics.ruming: unknown field; did you mean running?`,
		"{path: /metrics, prefill_seconds: 'a or'}": `6: engines[own].versions[1].metrics.prefill_seconds: must be the name of a series, with labels in braces if needed, or a path with # and a field, is "a or"`,
	} {
		if d := cmp.Diff([]string{fault}, faultsOf(t, engineWith(metrics))); d != "" {
			t.Errorf("%s:\n%s", metrics, d)
		}
	}
	_, faults := withObjects(t, fileOfObjects, Object{Name: "own-engine", Engine: true,
		Spec: []byte(`{"versions":[{"version":"1","tasks":["embedding"],"command":["x"],"prefill_rate":-1,"metrics":{"path":"/metrics","running":"{}"}}]}`)})
	want2 := []string{
		"own-engine: spec.versions[1].prefill_rate: must be at least 0, is -1",
		`own-engine: spec.versions[1].metrics.running: must be the name of a series, with labels in braces if needed, or a path with # and a field, is "{}"`,
	}
	if d := cmp.Diff(want2, faults); d != "" {
		t.Error(d)
	}
}

// An engine of the file can have every task that a model can have.
func TestU4_TasksOfTheFilesEngines(t *testing.T) {
	t.Parallel()
	const tasks = "text-generation, embedding, rerank, transcription, speech, image-generation"
	text := "engines: [{name: own, versions: [{version: a, tasks: [" + tasks + "], command: [sh]}]}]\nmodels:\n"
	for task := range strings.SplitSeq(tasks, ", ") {
		text += "  - {name: " + task + ", task: " + task + ", engine: own}\n"
	}
	if _, err := Parse("f", []byte(text)); err != nil {
		t.Error(err)
	}
}
