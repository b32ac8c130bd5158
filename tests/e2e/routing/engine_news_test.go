package routing

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_U10_RequestsOfOthersShowUp: a replica that works for somebody else, not through the
// gateway, is seen to be busy, in the API and in the metrics. The other replica is not.
func TestE2E_U10_RequestsOfOthersShowUp(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - name: chat
    task: text-generation
    engine: sim
    replicas: {min: 2, max: 2}
    variables: {max_num_seqs: 2, token_interval: 20ms, cache_tokens: 131072}
`)
	g.AwaitReplicas("chat", 2)
	idle := func(n harness.EngineNews) bool { return *n.Running == 0 && *n.Waiting == 0 }
	first := g.AwaitEngineNews("chat-0", idle)
	g.AwaitEngineNews("chat-1", idle)
	if first.Name != "sim" || first.CacheTokens == nil || *first.CacheTokens != 131072 || *first.KVUsage != 0 || *first.CachedTokens != 0 || first.Fault != "" {
		t.Errorf("%+v", first)
	}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	for range 5 {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+g.Replicas()["chat-0"].Address+"/v1/completions",
			strings.NewReader(`{"model":"chat","prompt":"the same words for all of them, again and again and again","max_tokens":30000,"ignore_eos":true,"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if answer, err := http.DefaultClient.Do(request); err == nil {
				io.Copy(io.Discard, answer.Body) //nolint:errcheck // until leave
				answer.Body.Close()
			}
		}()
	}
	busy := g.AwaitEngineNews("chat-0", func(n harness.EngineNews) bool { return *n.Running == 2 && *n.Waiting == 3 })
	if *busy.KVUsage <= 0 || *busy.KVUsage > 1 {
		t.Errorf("the cache of a busy replica is used by %v", *busy.KVUsage)
	}
	metrics := g.AdminText("/metrics")
	for _, line := range []string{
		`sluice_engine_running{model="chat",replica="chat-0"} 2`, `sluice_engine_waiting{model="chat",replica="chat-0"} 3`,
		`sluice_engine_running{model="chat",replica="chat-1"} 0`, `sluice_engine_kv_usage{model="chat",replica="chat-1"} 0`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("the metrics lack %s", line)
		}
	}
	if r := g.Replicas()["chat-1"]; !idle(*r.Engine) {
		t.Errorf("the other replica: %+v", r.Engine)
	}
	leave()
	g.AwaitEngineNews("chat-0", idle)
}

// TestE2E_U10_ServersOfOthersAreRecognised: a server that is called by TLS, below a path and with a
// key is recognised by its metrics. One without metrics serves as well.
func TestE2E_U10_ServersOfOthersAreRecognised(t *testing.T) {
	t.Parallel()
	const page = `vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0
`
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Engine-Key") != "k":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/llm/v1/models":
			io.WriteString(w, `{"data":[{"id":"m"}]}`)
		case r.URL.Path == "/llm/metrics":
			io.WriteString(w, page)
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	silent := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if !harness.ServeModelList(w, r, "silent") {
			io.WriteString(w, "fine")
		}
	})
	g := harness.Start(t, fmt.Sprintf(`
upstreams:
  - {url: "%s/llm/v1", headers: {x-engine-key: k}, ca_file: %s}
  - %s
`, s.URL, certificateFile(t, s.Certificate().Raw), silent))
	n := g.AwaitEngineNews(s.Listener.Addr().String()+"/llm", func(n harness.EngineNews) bool { return n.Running != nil })
	if n.Name != "vllm" || *n.Running != 3 || *n.Waiting != 1 || *n.KVUsage != 0.5 || *n.CacheTokens != 16000 || n.CachedTokens != nil {
		t.Errorf("%+v", n)
	}
	if a := g.Post("/v1/completions", `{"model":"silent","prompt":"x"}`); string(a.Content) != "fine" {
		t.Errorf("%s", a)
	}
	harness.Eventually(t, "the silent server was asked", func() error {
		if n := g.Replicas()[strings.TrimPrefix(silent, "http://")].Engine; n == nil || n.Running != nil || n.Name != "" || n.Fault == "" {
			return fmt.Errorf("%+v", n)
		}
		return nil
	})
}

// TestE2E_B1_ServersOfAKnownEngineAreRoutedByPrefixes: the hash ring names one of two idle servers
// that are discovered. Their engine usually tells of itself before Envoy knows them.
func TestE2E_B1_ServersOfAKnownEngineAreRoutedByPrefixes(t *testing.T) {
	t.Parallel()
	page := map[string]string{"/metrics": "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"}
	a, b := startSlotServer(t, "chat", page), startSlotServer(t, "chat", page)
	g := harness.Start(t, fmt.Sprintf("upstreams: [%s, %s]\n", a.URL, b.URL))
	idle := func(n harness.EngineNews) bool { return *n.Running == 0 }
	g.AwaitEngineNews(a.id(), idle)
	g.AwaitEngineNews(b.id(), idle)
	harness.Eventually(t, "both are picked by prefixes", func() error {
		body := map[string]any{"model": "chat", "messages": []map[string]string{{"role": "user", "content": "Hello"}}}
		if p := explain(g, body); p.Reason != "ring" || len(p.Replicas) != 2 {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
}
