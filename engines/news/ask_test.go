package news

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// catalogue returns the built-in engines as the gateway gives them to a Reader.
func catalogue() []Engine {
	var all []Engine
	for _, e := range engines.Builtin() {
		for _, v := range e.Versions {
			all = append(all, Engine{e.Name, v.Metrics, max(v.Slots.Usual, v.Slots.Default)})
		}
	}
	return all
}

// server serves texts by path until the test ends, and returns its address.
func server(t *testing.T, texts map[string]string) netip.AddrPort {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text, ok := texts[r.URL.Path]; ok {
			w.Write([]byte(text)) //nolint:errcheck // the client sees it
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(s.Close)
	return addressOf(s)
}

func addressOf(s *httptest.Server) netip.AddrPort {
	return netip.MustParseAddrPort(s.Listener.Addr().String())
}

func recorded(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func askOnce(t *testing.T, r *Reader, replica engines.Replica) *asked {
	t.Helper()
	a := &asked{replica: replica, client: engines.NewClient(replica.Transport), news: silence()}
	t.Cleanup(a.client.CloseIdleConnections)
	r.ask(context.Background(), a)
	return a
}

// TestU10_WhatEnginesTell reads the metrics of each engine, first as a replica that Sluice has
// launched, then as a server that somebody else runs.
func TestU10_WhatEnginesTell(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		engine, version, page string
		documents             map[string]string
		want                  News
	}{
		{"vllm", "0.33", "vllm-0.32.prom", nil,
			News{Running: 7, Waiting: 2, KVUsage: 0.5, CacheTokens: 20480, CachedTokens: 960, UsualSlots: 256}},
		{"vllm", "0.8", "vllm-0.8.prom", nil,
			News{Running: 1, Waiting: 0, KVUsage: 0.5, CacheTokens: 16000, CachedTokens: 64, UsualSlots: 256}},
		{"sglang", "0.5.23", "sglang-0.5.prom", nil,
			News{Running: 5, Waiting: 1, KVUsage: 0.28, CacheTokens: 471258, CachedTokens: 3168, UsualSlots: 128}},
		{"sglang", "0.4.10", "sglang-0.4.prom", map[string]string{"/get_server_info": `{"max_total_num_tokens": 8000, "max_running_requests": 48, "version": "0.4.10"}`},
			News{Running: 5, Waiting: 1, KVUsage: 0.28, CacheTokens: 8000, CachedTokens: 3168, Slots: 48, UsualSlots: 128}},
		{"llama-cpp", "0.5", "llama-server.prom", map[string]string{"/props": `{"default_generation_settings": {"n_ctx": 1024}, "total_slots": 2}`},
			News{Running: 2, Waiting: 3, KVUsage: -1, CacheTokens: 2048, CachedTokens: 34, Slots: 2, UsualSlots: 4}},
		{"tei", "1.9", "tei.prom", nil, News{Running: -1, Waiting: 7, KVUsage: -1, CachedTokens: -1, UsualSlots: 512}},
	} {
		t.Run(tt.page, func(t *testing.T) {
			t.Parallel()
			texts := map[string]string{"/metrics": recorded(t, tt.page)}
			for path, text := range tt.documents {
				texts[path] = text
			}
			version, ok := engines.Find(engines.Builtin(), tt.engine, tt.version)
			if !ok {
				t.Fatal("no such version")
			}
			r := New(Config{Fleet: engines.NewFleet(), Timeout: testutil.Patience})
			r.Set(Known{Models: map[string]Engine{"chat": {Name: tt.engine, Metrics: version.Metrics, UsualSlots: tt.want.UsualSlots}}, Engines: catalogue()})
			tt.want.Engine = tt.engine
			for _, launcher := range []engines.Launcher{engines.Local, engines.Upstream} {
				a := askOnce(t, r, engines.Replica{ID: "a", Model: "chat", Address: server(t, texts), Launcher: launcher})
				if diff := cmp.Diff(tt.want, a.news, cmpopts.IgnoreFields(News{}, "At")); diff != "" {
					t.Errorf("%s:\n%s", launcher, diff)
				}
				if time.Since(a.news.At) > time.Minute {
					t.Errorf("%s: at %s", launcher, a.news.At)
				}
			}
		})
	}
}

// TestU10_PrefillRate derives the rate from the growth of the counters.
func TestU10_PrefillRate(t *testing.T) {
	t.Parallel()
	var p prefillRate
	for i, tt := range []struct{ tokens, seconds, want float64 }{
		{5000, 10, 0},      // what was before Sluice looked does not count
		{5000, 10, 0},      // nothing happened
		{5001, 10.001, 0},  // too little to say
		{11000, 11, 6000},  // 6,000 tokens in a second, near enough
		{11000, 11, 6000},  // nothing happened
		{100, 1, 6000},     // the engine has started again
		{12100, 2, 9157.9}, // what is newer weighs more
	} {
		if got := p.observe(tt.tokens, tt.seconds); got < tt.want*0.99 || got > tt.want*1.01 {
			t.Errorf("%d: rate %.1f, want %.1f", i, got, tt.want)
		}
	}
}

// TestU10_PrefillRateOfAnEngine: only the series with the right labels count.
func TestU10_PrefillRateOfAnEngine(t *testing.T) {
	t.Parallel()
	texts := map[string]string{"/metrics": recorded(t, "sglang-0.5.prom")}
	r := New(Config{Fleet: engines.NewFleet(), Timeout: testutil.Patience})
	r.Set(Known{Engines: catalogue()})
	a := askOnce(t, r, engines.Replica{Launcher: engines.Upstream, Address: server(t, texts)})
	texts["/metrics"] = strings.NewReplacer(
		`{mode="prefill_compute",model_name="chat",tp_rank="0"} 10000.0`, `{mode="prefill_compute",model_name="chat",tp_rank="0"} 16000.0`,
		`{mode="decode",model_name="chat",tp_rank="0"} 999.0`, `{mode="decode",model_name="chat",tp_rank="0"} 5000.0`,
		`{category="extend",model_name="chat",tp_rank="0"} 2.0`, `{category="extend",model_name="chat",tp_rank="0"} 3.0`,
		`{category="decode",model_name="chat",tp_rank="0"} 70.0`, `{category="decode",model_name="chat",tp_rank="0"} 170.0`,
	).Replace(texts["/metrics"])
	if r.ask(context.Background(), a); a.news.PrefillRate != 6000 {
		t.Errorf("%v tokens a second, want 6,000 tokens in a second", a.news.PrefillRate)
	}
}

// TestU10_OnlyKnownEngines: a server without metrics, or with those of something else, has no news.
func TestU10_OnlyKnownEngines(t *testing.T) {
	t.Parallel()
	r := New(Config{Fleet: engines.NewFleet(), Timeout: testutil.Patience})
	r.Set(Known{Models: map[string]Engine{"silent": {Name: "ollama"}}, Engines: catalogue()})
	for name, replica := range map[string]engines.Replica{
		"no metrics":                {Launcher: engines.Upstream, Address: server(t, nil)},
		"metrics of something else": {Launcher: engines.Upstream, Address: server(t, map[string]string{"/metrics": "nginx_up 1\n"})},
		"a launched engine without": {Launcher: engines.Local, Model: "silent", Address: server(t, nil)},
		"one that shows others":     {Launcher: engines.Local, Model: "silent", Address: server(t, map[string]string{"/metrics": recorded(t, "vllm-0.32.prom")})},
		"a launched model unknown":  {Launcher: engines.Local, Model: "new", Address: server(t, map[string]string{"/metrics": recorded(t, "vllm-0.32.prom")})},
	} {
		if a := askOnce(t, r, replica); !a.absent || a.news.Fault == "" || a.news.Running != -1 || !a.news.At.IsZero() {
			t.Errorf("%s: %+v, absent %v", name, a.news, a.absent)
		}
	}
}

// TestU10_ServersAreCalledAsTheirTransportSays: TLS with the server's name, the path before
// /metrics, and headers, which do not follow a redirect.
func TestU10_ServersAreCalledAsTheirTransportSays(t *testing.T) {
	t.Parallel()
	var leaked atomic.Bool
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { leaked.Store(true) }))
	defer thief.Close()
	page := recorded(t, "vllm-0.32.prom")
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/moved/metrics":
			http.Redirect(w, r, thief.URL, http.StatusFound)
		case r.URL.Path == "/llm/metrics" && r.Header.Get("Authorization") == "Bearer k" && r.Host == "engine.test" && r.TLS.ServerName == "example.com":
			w.Write([]byte(page)) //nolint:errcheck // the client sees it
		default:
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer s.Close()
	r := New(Config{Fleet: engines.NewFleet(), Timeout: testutil.Patience})
	r.Set(Known{Engines: catalogue()})
	transport := engines.Transport{Prefix: "/llm", TLS: &engines.TLS{ServerName: "example.com", CA: pemOf(s)},
		Headers: []engines.Header{{Name: "Authorization", Value: "Bearer k"}}}
	ask := func(change func(*engines.Transport)) News {
		changed := transport
		change(&changed)
		return askOnce(t, r, engines.Replica{Launcher: engines.Upstream, Address: addressOf(s), Host: "engine.test", Transport: &changed}).news
	}
	if n := ask(func(*engines.Transport) {}); n.Running != 7 {
		t.Errorf("%+v", n)
	}
	plain := engines.Transport{Prefix: "/llm"}
	if n := askOnce(t, r, engines.Replica{Launcher: engines.Upstream, Address: server(t, map[string]string{"/llm/metrics": page}), Transport: &plain}).news; n.Running != 7 {
		t.Errorf("without TLS: %+v", n)
	}
	if n := ask(func(c *engines.Transport) { c.Headers = nil }); n.Fault != "/metrics answered 401" {
		t.Errorf("without the key: %+v", n)
	}
	if n := ask(func(c *engines.Transport) { c.TLS = &engines.TLS{ServerName: "example.com"} }); !strings.Contains(n.Fault, "certificate") {
		t.Errorf("a certificate that nobody trusts: %+v", n)
	}
	if n := ask(func(c *engines.Transport) { c.Prefix = "/moved" }); n.Fault != "/metrics answered 302" || leaked.Load() {
		t.Errorf("a redirect: %+v, followed: %v", n, leaked.Load())
	}
}

// TestU10_BadMetrics: whatever a server answers is a fault with a reason, or a number in bounds.
func TestU10_BadMetrics(t *testing.T) {
	t.Parallel()
	patient := New(Config{Fleet: engines.NewFleet(), Timeout: testutil.Patience})
	patient.Set(Known{Engines: catalogue()})
	hang := make(chan struct{})
	defer close(hang)
	for _, tt := range []struct {
		name, page, fault string
		want              News
	}{
		{"too large", "vllm:num_requests_running 1\n" + strings.Repeat("x 1\n", maxBytes/4), "/metrics is larger than 1 MiB", silence()},
		{"one long line", strings.Repeat("x", maxBytes+10), "/metrics is larger than 1 MiB", silence()},
		{"no number", "vllm:num_requests_running one\n", "/metrics does not have the text format of Prometheus", silence()},
		{"hangs", "hang", "no answer in time", silence()},
		{"not finite", "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc 7\n", "",
			News{Engine: "vllm", UsualSlots: 256, Running: -1, Waiting: -1, KVUsage: 1, CachedTokens: -1}},
		{"out of range", "vllm:num_requests_running -5\nvllm:num_requests_waiting 1e300\n", "",
			News{Engine: "vllm", UsualSlots: 256, Running: 0, Waiting: maxNumber, KVUsage: -1, CachedTokens: -1}},
		{"no numbers in labels", "vllm:num_requests_running 2\n" + `vllm:cache_config_info{num_gpu_blocks="None",block_size="16"} 1` + "\n", "",
			News{Engine: "vllm", UsualSlots: 256, Running: 2, Waiting: -1, KVUsage: -1, CachedTokens: -1}},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if tt.page == "hang" {
				w.(http.Flusher).Flush()
				select {
				case <-hang:
				case <-r.Context().Done():
				}
				return
			}
			w.Write([]byte(tt.page)) //nolint:errcheck // the client may leave
		}))
		r := patient
		if tt.page == "hang" {
			r = New(Config{Fleet: engines.NewFleet(), Timeout: 200 * time.Millisecond})
			r.Set(Known{Engines: catalogue()})
		}
		a := askOnce(t, r, engines.Replica{Launcher: engines.Upstream, Address: addressOf(s)})
		s.Close()
		if !strings.Contains(a.news.Fault, tt.fault) || (tt.fault == "") != (a.news.Fault == "") {
			t.Errorf("%s: fault %q, want %q", tt.name, a.news.Fault, tt.fault)
		}
		if diff := cmp.Diff(tt.want, a.news, cmpopts.IgnoreFields(News{}, "At", "Fault")); diff != "" {
			t.Errorf("%s:\n%s", tt.name, diff)
		}
	}
}

// TestU10_AnotherEngineBehindTheSameAddress is recognised.
func TestU10_AnotherEngineBehindTheSameAddress(t *testing.T) {
	t.Parallel()
	texts := map[string]string{"/metrics": recorded(t, "vllm-0.32.prom")}
	r := New(Config{Fleet: engines.NewFleet(), Timeout: testutil.Patience})
	r.Set(Known{Engines: catalogue()})
	a := askOnce(t, r, engines.Replica{Launcher: engines.Upstream, Address: server(t, texts)})
	if a.news.Engine != "vllm" {
		t.Fatalf("%+v", a.news)
	}
	texts["/metrics"] = recorded(t, "sglang-0.5.prom")
	r.ask(context.Background(), a)
	if a.news.Engine != "sglang" || a.news.Running != 5 {
		t.Errorf("%+v", a.news)
	}
}
