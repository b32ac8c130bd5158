package streams

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func metric(g *harness.Gateway, name string) (value float64) {
	g.T.Helper()
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(g.AdminText("/metrics"))
	if found == nil {
		g.T.Fatalf("no metric %s", name)
	}
	value, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		g.T.Fatal(err)
	}
	return value
}

const mib = 1 << 20

// Ten endless JSON answers of named requests are refused at their largest size. The gateway does
// not grow by more than its budget allows, and it gives the memory back.
func TestE2E_B10_X7_EndlessAnswers(t *testing.T) {
	t.Parallel()
	upstream := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		io.Copy(io.Discard, r.Body)
		w.Header().Set("content-type", "application/json")
		io.WriteString(w, `{"choices":[{"message":{"content":"`)
		for piece := bytes.Repeat([]byte("x"), 64<<10); r.Context().Err() == nil; {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	g := harness.Start(t, `
memory: {limit: 256MiB, relay: 64MiB, max_answer: 16MiB}
models:
  - {name: m, task: text-generation, launcher: upstream, upstreams: ["`+upstream+`"], admission: {max_per_replica: 64}}
`)
	before := metric(g, "process_resident_memory_bytes")
	for round := range 3 {
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				body := withFields(harness.ChatBody("m", false, 10, "hello"), fmt.Sprintf(`"request_id":"r%d-%d"`, round, i))
				if a := g.Post(harness.ChatPath, body); a.StatusCode != 502 && a.StatusCode != 503 {
					t.Errorf("%s", a)
				}
			})
		}
		all.Wait()
		if grown := metric(g, "process_resident_memory_bytes") - before; grown > 256*mib {
			t.Errorf("the gateway has grown by %.0f MiB", grown/mib)
		}
	}
	harness.Eventually(t, "the memory is given back", func() error {
		used, grown := metric(g, `sluice_budget_used{budget="relay_memory"}`), metric(g, "process_resident_memory_bytes")-before
		if used != 0 || grown > 64*mib {
			return fmt.Errorf("%.0f bytes in use, %.0f MiB more than before", used, grown/mib)
		}
		return nil
	})
	g.AwaitIdle("m")
}

// When bodies fill the budget, a condition says so before, and a further request is told to come
// back later. When they have ended, requests pass again.
func TestE2E_X7_BodiesFillTheBudget(t *testing.T) {
	t.Parallel()
	u := harness.StartHeldUpstream(t)
	g := harness.Start(t, `
memory: {limit: 256MiB, relay: 16MiB}
models:
  - {name: m, task: text-generation, launcher: upstream, upstreams: ["`+u.URL+`"], admission: {max_per_replica: 64}, stream: {mode: managed}}
`)
	large := func(n int) string { return harness.ChatBody("m", true, 10, strings.Repeat("x", n)) }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var held sync.WaitGroup
	for range 2 {
		held.Go(func() {
			if r, err := g.Open(ctx, harness.ChatPath, large(7*mib)); err == nil {
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
		})
	}
	harness.Eventually(t, "a condition says that the budget is nearly used up", func() error {
		if text := g.AdminText("/api/v1/conditions"); !strings.Contains(text, `"MemoryNearLimit"`) || !strings.Contains(text, "Managed requests keep 14 MiB of 16 MiB") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	if a := g.Post(harness.ChatPath, large(7*mib)); a.StatusCode != 503 || a.Header.Get("retry-after") == "" || a.Code() != "gateway_unavailable" {
		t.Errorf("%s %v", a, a.Header)
	}
	harness.Eventually(t, "the engine has both bodies", func() error { // one that it still reads is not yet counted
		if n := u.Running.Load(); n != 2 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	cancel()
	held.Wait()
	harness.Eventually(t, "the bodies are forgotten", func() error {
		if used := metric(g, `sluice_budget_used{budget="relay_requests"}`); used != 0 {
			return fmt.Errorf("%.0f bytes", used)
		}
		return nil
	})
	harness.Eventually(t, "the engine has heard that the clients left", func() error {
		if n := u.Running.Load(); n != 0 { // it would take what is meant for the next request
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	u.Release <- struct{}{}
	if _, all := g.Stream(harness.ChatPath, large(7*mib)); len(all) == 0 {
		t.Error("nothing passes after it")
	}
	g.AwaitIdle("m")
}

// A tenant of two streams has few sockets, others are not affected, and a socket without use is
// closed with a reason.
func TestE2E_B10_X7_WebSockets(t *testing.T) {
	t.Parallel()
	keys, text := harness.TenantKeys("acme", "other")
	text = strings.Replace(text, "name: acme,", "name: acme, limits: {max_concurrent_streams: 2},", 1)
	// No socket may be idle for too long before all are open.
	g := harness.Start(t, "\nauth: {mode: keys}\nrealtime: {idle: 15s}\n"+text+`
models:
  - {name: m, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 1ms}}
`)
	codes := make(chan websocket.StatusCode, 100)
	open := func(tenant string) {
		ws := g.Realtime(keys[tenant])
		go func() {
			_, _, err := ws.Read(context.Background())
			codes <- websocket.CloseStatus(err)
		}()
	}
	for range 40 {
		open("acme")
	}
	open("other")
	count := map[websocket.StatusCode]int{}
	for range 41 {
		count[<-codes]++
	}
	if count[websocket.StatusTryAgainLater] != 24 || count[4408] != 17 {
		t.Errorf("%v", count)
	}
	harness.Eventually(t, "no socket is open", func() error {
		if n := metric(g, `sluice_budget_used{budget="websockets"}`); n != 0 {
			return fmt.Errorf("%.0f", n)
		}
		return nil
	})
	if n := metric(g, `sluice_budget_refused_total{budget="websockets"}`); n != 24 {
		t.Errorf("%.0f were refused", n)
	}
}
