package news

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestU1_ServersWithoutMetricsTellTheirSlots: a server that shows no metrics is recognised by a
// document, and tells how many requests it works on as far as its engine does. The documents are
// those of real servers, shortened.
func TestU1_ServersWithoutMetricsTellTheirSlots(t *testing.T) {
	t.Parallel()
	const sglang = `{"tp_size":1,"max_running_requests":null,"internal_states":[{"effective_max_running_requests_per_dp":48},
		{"effective_max_running_requests_per_dp":52}],"version":"0.5.18"}`
	for name, tt := range map[string]struct {
		texts        map[string]string
		engine       string
		slots, usual int
	}{
		"llama-server": {map[string]string{"/props": `{"default_generation_settings":{"n_ctx":4096},"total_slots":4,"model_path":"m.gguf"}`}, "llama-cpp", 4, 4},
		"TEI": {map[string]string{"/info": `{"model_id":"BAAI/bge-m3","model_type":{"embedding":{"pooling":"cls"}},"max_concurrent_requests":768,
			"max_batch_tokens":16384,"version":"1.9.3"}`}, "tei", 768, 512},
		"SGLang":         {map[string]string{"/get_server_info": sglang}, "sglang", 100, 128},
		"SGLang, newer":  {map[string]string{"/server_info": sglang}, "sglang", 100, 128},
		"SGLang, silent": {map[string]string{"/get_server_info": `{"internal_states":[{"last_gen_throughput":1.5}]}`}, "sglang", 0, 128},
		"Ollama":         {map[string]string{"/api/version": `{"version":"0.12.6"}`}, "ollama", 0, 1},
		"null":           {map[string]string{"/api/version": `{"version":null}`, "/props": `{"total_slots":null}`}, "", 0, 0},
		"TGI":            {map[string]string{"/info": `{"model_id":"x","model_pipeline_tag":"text-generation","max_concurrent_requests":128}`}, "", 0, 0},
		"another":        {map[string]string{"/info": `{"name":"x"}`, "/props": `[]`, "/metrics": "nginx_up 1\n"}, "", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := New(Config{Fleet: engines.NewFleet(), Timeout: testutil.Patience})
			r.Set(Known{Engines: catalogue()})
			a := askOnce(t, r, engines.Replica{Launcher: engines.Upstream, Address: server(t, tt.texts)})
			for _, when := range []string{"first", "again"} {
				if n := a.news; n.Engine != tt.engine || n.Slots != tt.slots || n.UsualSlots != tt.usual || (n.Fault == "") != (tt.engine != "") || n.Running != -1 {
					t.Errorf("%s: %+v", when, n)
				}
				r.ask(context.Background(), a)
			}
		})
	}
}

// TestU1_ReplacedServersAreForgotten: the slots of a server do not hold for another one at the same
// address, and the listener hears of it.
func TestU1_ReplacedServersAreForgotten(t *testing.T) {
	t.Parallel()
	texts := map[string]string{"/metrics": recorded(t, "vllm-0.32.prom")}
	var told []string
	r := New(Config{Fleet: engines.NewFleet(), Timeout: testutil.Patience, Tell: func(_ string, n News) { told = append(told, n.Engine) }})
	r.Set(Known{Engines: catalogue()})
	a := askOnce(t, r, engines.Replica{ID: "a", Launcher: engines.Upstream, Address: server(t, texts)})
	r.publish(a)
	delete(texts, "/metrics")
	r.ask(context.Background(), a)
	r.publish(a)
	if len(told) != 2 || told[0] != "vllm" || told[1] != "" || a.news.UsualSlots != 0 {
		t.Errorf("told %q, then %+v", told, a.news)
	}
}

// TestU1_ASlowDocumentIsNotAbsent: a server that shows no metrics, and whose document comes too
// late, is not said to be of an unknown engine.
func TestU1_ASlowDocumentIsNotAbsent(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch {
		case q.URL.Path != "/props":
			http.NotFound(w, q)
		case slow.Load():
			<-q.Context().Done()
		default:
			w.Write([]byte(`{"total_slots":4}`)) //nolint:errcheck // the client sees it
		}
	}))
	t.Cleanup(s.Close)
	var told []string
	r := New(Config{Fleet: engines.NewFleet(), Timeout: 100 * time.Millisecond, Tell: func(_ string, n News) { told = append(told, n.Engine) }})
	r.Set(Known{Engines: catalogue()})
	for _, is := range []bool{true, false} {
		if slow.Store(is); !is {
			r.Timeout = testutil.Patience
		}
		r.publish(askOnce(t, r, engines.Replica{ID: "a", Launcher: engines.Upstream, Address: addressOf(s)}))
	}
	if len(told) != 1 || told[0] != "llama-cpp" {
		t.Errorf("told %q", told)
	}
}

// TestU1_AServerWithoutMetricsIsAskedRarely: once a document has revealed the engine, metrics are
// not asked for again, and documents once a minute.
func TestU1_AServerWithoutMetricsIsAskedRarely(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet, _ := fleetOf(1)
		r := newFakeReader(&fakeServers{}, Config{Fleet: fleet})
		asked := map[string]int{}
		r.newClient = func(*engines.Transport) *http.Client {
			return &http.Client{Transport: roundTripper(func(q *http.Request) (*http.Response, error) {
				asked[q.URL.Path]++
				if q.URL.Path != "/props" {
					return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody}, nil
				}
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"total_slots":4}`))}, nil
			})}
		}
		stop := start(r)
		time.Sleep(10 * time.Minute)
		stop()
		if n := asked["/props"]; asked["/metrics"] != 1 || n < 5 || n > 12 {
			t.Errorf("asked in ten minutes: %v", asked)
		}
	})
}

// body is the body of an answer that tells when it is closed.
type body struct {
	io.Reader
	onClose func()
}

func (b body) Close() error { b.onClose(); return nil }

// TestU10_DocumentsAreReadRarely: metrics are read every two seconds, a document once a minute, and
// one that the server does not have every ten minutes.
func TestU10_DocumentsAreReadRarely(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet, _ := fleetOf(1)
		pages := map[string]string{"/metrics": recorded(t, "llama-server.prom"), "/props": `{"default_generation_settings":{"n_ctx":1024},"total_slots":2}`}
		r := newFakeReader(&fakeServers{}, Config{Fleet: fleet})
		var mu sync.Mutex
		asked, open := map[string]int{}, 0 // they and pages are guarded by mu
		closed := func() { mu.Lock(); open--; mu.Unlock() }
		r.newClient = func(*engines.Transport) *http.Client {
			return &http.Client{Transport: roundTripper(func(q *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				asked[q.URL.Path]++
				text, ok := pages[q.URL.Path]
				open++
				answer := &http.Response{StatusCode: http.StatusOK, Body: body{strings.NewReader(text), closed}}
				if !ok {
					answer.StatusCode = http.StatusNotFound
				}
				return answer, nil
			})}
		}
		defer start(r)()
		for _, want := range [][2]int{{9, 11}, {1, 2}} {
			mu.Lock()
			clear(asked)
			mu.Unlock()
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			mu.Lock()
			if n := asked["/props"]; asked["/metrics"] < 270 || n < want[0] || n > want[1] {
				t.Errorf("asked in ten minutes: %v, want %v for the document", asked, want)
			}
			delete(pages, "/props")
			mu.Unlock()
		}
		if open > 0 {
			t.Errorf("%d answers were not closed", open)
		}
	})
}
