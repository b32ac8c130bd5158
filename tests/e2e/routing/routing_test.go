package routing

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestE2E_N6_N7_ConversationsStayAndLoadIsBounded(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, strings.Replace(harness.SlowSims, "token_interval: 20ms", "token_interval: 0s", 1))
	replicas := map[string]int{}
	for c := range 60 {
		turns := []string{fmt.Sprint("conversation ", c), "answer", "second question"}
		// The seed's key holds the first two user messages: from the second turn on it is stable.
		home := ""
		for turn := 2; turn < 6; turn++ {
			a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, turns...))
			at := a.Header.Get("X-Sluice-Replica")
			home = cmp.Or(home, at)
			if a.StatusCode != 200 || at != home {
				t.Fatalf("conversation %d left %s for %s: %s", c, home, at, a.Status)
			}
			turns = append(turns, "answer", fmt.Sprint("question ", turn))
		}
		replicas[home]++
	}
	if len(replicas) != 3 {
		t.Errorf("60 conversations are spread like this: %v", replicas)
	}
}

func TestE2E_N7_AHotKeySpreads(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.SlowSims)
	var running sync.WaitGroup
	var mu sync.Mutex
	at := map[string]int{}
	open := make(chan struct{})
	for range 90 {
		running.Go(func() {
			r, err := g.Open(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", true, 100_000, "the same prompt"))
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Body.Close()
			mu.Lock()
			at[r.Header.Get("X-Sluice-Replica")]++
			mu.Unlock()
			<-open
		})
	}
	g.AwaitModel("chat", "all in flight", func(m harness.Model) bool { return m.InFlight == 90 })
	close(open)
	running.Wait()
	for id, n := range at {
		// 1.25 × the average of 30, as it was at the last of them, rounded up.
		if n > 38 {
			t.Errorf("%s has %d of 90 requests with one key", id, n)
		}
	}
	g.AwaitIdle("chat")
}

func TestE2E_T1_T2_T3_DiscoveredUpstreamsQueue(t *testing.T) {
	t.Parallel()
	a, b := harness.StartHeldUpstream(t), harness.StartHeldUpstream(t)
	g := harness.Start(t, fmt.Sprintf("upstreams: [%s, %s]\n", a.URL, b.URL))
	var done sync.WaitGroup
	for i := range 10 {
		done.Go(func() {
			answer, err := g.TryPost(context.Background(), "/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"%d","stream":true}`, i))
			if err != nil || answer.StatusCode != 200 || string(answer.Content) != "data: [DONE]\n\n" {
				t.Errorf("%v %v", err, answer)
			}
		})
	}
	g.AwaitModel("m", "two run, eight wait", func(m harness.Model) bool { return m.InFlight == 2 && m.Queued == 8 })
	for range 10 {
		a.Release <- struct{}{}
		b.Release <- struct{}{}
	}
	done.Wait()
	for _, u := range []*harness.HeldUpstream{a, b} {
		if u.Most.Load() != 1 || u.Served.Load() == 0 {
			t.Errorf("%s had %d at once and served %d", u.ID(), u.Most.Load(), u.Served.Load())
		}
	}
	g.AwaitIdle("m")
}

func TestE2E_S4_ClientLeaves(t *testing.T) {
	t.Parallel()
	up := harness.StartHeldUpstream(t)
	g := harness.Start(t, "upstreams: ["+up.URL+"]\n")
	body := `{"model":"m","prompt":"x","stream":true}`
	for range 20 {
		ctx, leave := context.WithCancel(context.Background())
		r, err := g.Open(ctx, "/v1/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		// A second client waits in the queue and leaves too.
		waiting, goAway := context.WithCancel(context.Background())
		queued := make(chan struct{})
		go func() {
			defer close(queued)
			if r, err := g.Open(waiting, "/v1/completions", body); err == nil {
				r.Body.Close()
			}
		}()
		g.AwaitModel("m", "one runs, one waits", func(m harness.Model) bool { return m.InFlight == 1 && m.Queued == 1 })
		goAway()
		harness.Receive(t, queued, "the client in the queue has left")
		g.AwaitQueued("m", 0)
		leave()
		r.Body.Close()
		harness.Receive(t, up.Cancelled, "the upstream is told that the client has left")
		g.AwaitIdle("m")
	}
}

func TestE2E_T2_QueueIsBounded(t *testing.T) {
	t.Parallel()
	up := harness.StartHeldUpstream(t)
	g := harness.Start(t, fmt.Sprintf(`
models:
  - name: m
    launcher: upstream
    upstreams: [%s]
    admission: {max_per_replica: 1, max_queue: 1, queue_timeout: 5s}
`, up.URL))
	body := `{"model":"m","prompt":"x","stream":true}`
	r, err := g.Open(context.Background(), "/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	refused := make(chan string, 2)
	ask := func() {
		a, err := g.TryPost(context.Background(), "/v1/completions", body)
		if err != nil {
			refused <- err.Error()
			return
		}
		if a.Header.Get("Retry-After") == "" {
			t.Errorf("no Retry-After: %s", a)
		}
		refused <- fmt.Sprint(a.StatusCode, " ", a.Code())
	}
	go ask()
	g.AwaitQueued("m", 1)
	ask()
	first := harness.Receive(t, refused, "a request is refused")
	second := harness.Receive(t, refused, "the request in the queue is refused")
	if first != "429 queue_full" || second != "503 queue_timeout" {
		t.Errorf("refused with %s, then with %s", first, second)
	}
	up.Release <- struct{}{}
	io.Copy(io.Discard, r.Body)
	g.AwaitIdle("m")
}

func TestE2E_N5_AReplicaThatDiesBeforeItsHeadersCostsNothing(t *testing.T) {
	t.Parallel()
	// One server answers; the other takes the connection and closes it when it has read the
	// request, as a dying engine does.
	ok := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if !harness.ServeModelList(w, r, "m") {
			io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, "fine")
		}
	})
	var deaths atomic.Int64
	dying := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		io.Copy(io.Discard, r.Body)
		deaths.Add(1)
		c, _, _ := w.(http.Hijacker).Hijack()
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	})
	g := harness.Start(t, fmt.Sprintf(`
models:
  - name: m
    launcher: upstream
    upstreams: [%s, %s]
    routing: {strategy: round_robin}
    admission: {max_per_replica: 100}
`, ok, dying))
	for i := range 40 {
		body := fmt.Sprintf(`{"model":"m","prompt":"%d %s"}`, i, strings.Repeat("x", i*1000))
		if a := g.Post("/v1/completions", body); a.StatusCode != 200 || string(a.Content) != "fine" {
			t.Fatalf("request %d: %s", i, a)
		}
	}
	if deaths.Load() == 0 {
		t.Error("no request met the dying replica: nothing was tested")
	}
	g.AwaitIdle("m")
	harness.Eventually(t, "the dying replica is out of rotation", func() error {
		if r := g.Replicas()[strings.TrimPrefix(dying, "http://")]; r.State == "ready" && r.Reason == "" {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

func TestE2E_T4_UnhealthyOn5xx(t *testing.T) {
	t.Parallel()
	var sick atomic.Bool
	var failed atomic.Int64
	sick.Store(true)
	healed := make(chan struct{})
	well := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if !harness.ServeModelList(w, r, "m") {
			fmt.Fprint(w, "fine")
		}
	})
	ill := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if failed.Load() > 0 && r.Method == http.MethodGet { // a good look would bring it back at once
			select {
			case <-healed:
			case <-r.Context().Done():
				return
			}
		}
		if harness.ServeModelList(w, r, "m") {
			return
		}
		if sick.Load() {
			failed.Add(1)
			w.WriteHeader(500)
			return
		}
		fmt.Fprint(w, "fine")
	})
	g := harness.Start(t, fmt.Sprintf("upstreams: [%s, %s]\n", well, ill))
	for i := range 100 {
		if a := g.Post("/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"%d"}`, i)); a.StatusCode != 200 {
			t.Errorf("the other server was to answer: %s", a)
		}
		if sick.Load() && failed.Load() > 0 {
			harness.Eventually(t, "out", func() error {
				if r := g.Replicas()[strings.TrimPrefix(ill, "http://")]; r.State != "failed" {
					return fmt.Errorf("%+v", r)
				}
				return nil
			})
			sick.Store(false) // the next look, which is good, brings it back
			close(healed)
		}
	}
	if n := failed.Load(); n != 1 {
		t.Errorf("%d requests failed; after the first the server should have been out", n)
	}
	harness.Eventually(t, "back", func() error {
		if r := g.Replicas()[strings.TrimPrefix(ill, "http://")]; r.State != "ready" {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

func TestE2E_E3_FirstRequestsNeverSee503(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	config := harness.OneSim
	for i := range 5 {
		name := fmt.Sprint("new-", i)
		config += fmt.Sprintf("  - {name: %s, task: text-generation, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 0s, max_num_seqs: 64}}\n", name)
		g.Configure(config)
		g.AwaitModel(name, "the model exists", func(m harness.Model) bool { return m.Name != "" })
		var burst sync.WaitGroup
		for n := range 40 {
			burst.Go(func() { // some come before the replica is there, some right when it comes
				a, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody(name, false, 2, fmt.Sprint(n)))
				if err != nil || a.StatusCode != 200 {
					t.Errorf("%s: %v %v", name, err, a)
				}
			})
		}
		burst.Wait()
	}
	// The same for a cluster whose only replica went away and comes back.
	killed := g.Replicas()["new-0-0"].PID
	if err := syscall.Kill(-killed, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "gone", func() error {
		if r := g.Replicas()["new-0-0"]; r.State == "ready" && r.PID == killed {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	var burst sync.WaitGroup
	for n := range 100 {
		burst.Go(func() {
			a, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("new-0", false, 2, fmt.Sprint(n)))
			if err != nil || a.StatusCode != 200 {
				t.Errorf("refilled: %v %v", err, a)
			}
		})
	}
	burst.Wait()
}

func TestE2E_N9_RoutesFollowTheModelsThatExist(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.SlowSims)
	running := g.OpenStreams(10, 200)
	g.Configure(harness.SlowSims + "  - {name: extra, task: text-generation, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 0s}}\n")
	harness.Eventually(t, "extra answers", func() error {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("extra", false, 2, "x")); a.StatusCode != 200 {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	g.Configure(harness.SlowSims + "  - {name: broken, engine: no-such-engine}\n")
	harness.Eventually(t, "the fault is shown", func() error {
		if s := g.AdminText("/api/v1/status"); !strings.Contains(s, "no-such-engine") {
			return fmt.Errorf("%s", s)
		}
		return nil
	})
	if a := g.Post("/v1/chat/completions", harness.ChatBody("extra", false, 2, "x")); a.StatusCode != 200 {
		t.Errorf("a bad file must leave the running one in force: %s", a)
	}
	g.Configure(harness.SlowSims)
	harness.Eventually(t, "extra is gone", func() error {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("extra", false, 2, "x")); a.StatusCode != 404 {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	running.Wait()
}
