package doctor

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/weights"
	"github.com/sluice-gateway/sluice/internal/weights/hubtest"
)

// TestExamineWeights: the hub is asked for what is not here, and a fault says what the hub says.
func TestExamineWeights(t *testing.T) {
	t.Parallel()
	hub := hubtest.New(t)
	hub.Put("org/tiny", hubtest.Repository{Files: map[string][]byte{"tiny.gguf": make([]byte, 1<<20)}})
	hub.Put("org/here", hubtest.Repository{Files: map[string][]byte{"here.gguf": make([]byte, 1<<10)}})
	examine := func(endpoint string, dir string) []Finding {
		c, err := config.Parse("test", []byte(`
registries:
  - {name: hub, kind: huggingface, fetch: true, endpoint: "`+endpoint+`", cache_dir: "`+dir+`"}
models:
  - {name: here, engine: llama-cpp, source: {registry: hub, name: org/here}}
  - {name: tiny, engine: llama-cpp, source: {registry: hub, name: org/tiny}}
  - {name: none, engine: llama-cpp, source: {registry: hub, name: org/none}}
  - {name: file, engine: llama-cpp, source: {registry: hub, name: org/tiny, file: other.gguf}}
  - {name: own, engine: llama-cpp, source: {name: org/none}}
`))
		if err != nil {
			t.Fatal(err)
		}
		e := &examination{Options: Options{Config: c}}
		e.weights(t.Context())
		return e.found
	}
	dir := t.TempDir()
	var fetcher weights.Fetcher
	path, err := fetcher.Fetch(t.Context(), weights.Source{Repository: "org/here", GGUF: true, Endpoint: hub.URL, CacheDir: dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	check := func(found []Finding, want map[string]Finding) {
		t.Helper()
		if len(found) != len(want) {
			t.Errorf("%+v, want %d findings", found, len(want))
		}
		for what, w := range want {
			one := of(found, what)
			if len(one) != 1 || one[0].Level != w.Level || !strings.Contains(one[0].Says, w.Says) || !strings.Contains(one[0].Hint, w.Hint) {
				t.Errorf("%s: %+v, want %+v", what, one, w)
			}
		}
	}
	check(examine(hub.URL, dir), map[string]Finding{
		"weights of model here": {Level: OK, Says: path},
		"weights of model tiny": {Level: OK, Says: "the hub has 1.0 MiB (files: 1)"},
		"weights of model none": {Level: Fault, Says: "no such repository", Hint: "registry of kind directory"},
		"weights of model file": {Level: Fault, Says: "holds no file \"other.gguf\"; it holds tiny.gguf"},
	})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range examine(hub.URL, filepath.Join(file, "cache")) {
		if f.Level != Fault || !strings.Contains(f.Hint, "cache_dir") {
			t.Errorf("without a folder for weights: %+v", f)
		}
	}
	check(examine("http://127.0.0.1:1", dir), map[string]Finding{
		"weights of model here": {Level: OK, Says: path}, // nobody is asked
		"weights of model tiny": {Level: Fault, Says: "connection refused", Hint: "HTTPS_PROXY"},
		"weights of model none": {Level: Fault, Says: "connection refused"},
		"weights of model file": {Level: Fault, Says: "connection refused"},
	})
}

// TestHubIsAskedAtOnce: the hub is asked for several models at a time, so that a hub that does not
// answer costs the time of one try.
func TestHubIsAskedAtOnce(t *testing.T) {
	t.Parallel()
	const models = triesAtOnce
	var asked atomic.Int32
	all := make(chan struct{})
	release := sync.OnceFunc(func() { close(all) })
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == models {
			release()
		}
		select {
		case <-all:
		case <-r.Context().Done():
			release() // one try that waits in vain is enough
		}
		http.Error(w, "none", http.StatusNotFound)
	}))
	t.Cleanup(hub.Close)
	text := "registries:\n  - {name: hub, kind: huggingface, fetch: true, endpoint: \"" + hub.URL + "\", cache_dir: \"" + t.TempDir() + "\"}\nmodels:\n"
	for i := range models {
		text += fmt.Sprintf("  - {name: m%d, engine: llama-cpp, source: {registry: hub, name: org/m%d}}\n", i, i)
	}
	c, err := config.Parse("test", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	e := &examination{Options: Options{Config: c}, patience: time.Minute}
	e.weights(t.Context())
	for i := range models {
		if len(e.found) != models || e.found[i].What != fmt.Sprint("weights of model m", i) || strings.Contains(e.found[i].Says, "does not answer") {
			t.Fatalf("%+v, want the findings in the order of the models, and each asked beside the others", e.found)
		}
	}
}
