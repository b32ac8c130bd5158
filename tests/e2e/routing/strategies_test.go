package routing

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// holdingServer is an upstream that holds the requests whose prompt says so until they are
// released.
type holdingServer struct {
	url  string
	held chan string // a prompt that is held
	free chan struct{}

	mu sync.Mutex
	// broken says that the list of models answers 503; guarded by mu
	broken bool
}

// startHolder starts a holdingServer with these models. It names itself in x-served-by.
func startHolder(t *testing.T, name string, models ...string) *holdingServer {
	h := &holdingServer{held: make(chan string, 100), free: make(chan struct{}, 100)}
	h.url = harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		broken := h.broken
		h.mu.Unlock()
		if broken {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if harness.ServeModelList(w, r, models...) {
			return
		}
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "hold") {
			h.held <- name
			select {
			case <-h.free:
			case <-r.Context().Done():
			}
		}
		w.Header().Set("x-served-by", name)
		io.WriteString(w, `{"choices":[{"text":"ok"}]}`)
	})
	return h
}

func (h *holdingServer) setBroken(broken bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = broken
}

// served returns who answers n requests, one after the other.
func served(g *harness.Gateway, model string, n int) (order []string) {
	g.T.Helper()
	for i := range n {
		a := g.Post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"%d"}`, model, i))
		if a.StatusCode != 200 {
			g.T.Fatalf("%s", a)
		}
		order = append(order, a.Header.Get("x-served-by"))
	}
	return order
}

// servedApart is served for a model on which so many requests are held. It sends a request when the
// ones before have freed their slots.
func servedApart(g *harness.Gateway, model string, n, held int) (order []string) {
	g.T.Helper()
	for range n {
		order = append(order, served(g, model, 1)...)
		harness.Eventually(g.T, "the slot is free", func() error {
			running, all := 0, g.Replicas()
			for _, r := range all {
				running += r.InFlight
			}
			if running != held {
				return fmt.Errorf("%+v", all)
			}
			return nil
		})
	}
	return order
}

// hold sends a request to model m that is held. The request must be answered in the end.
func hold(g *harness.Gateway, callers *sync.WaitGroup) {
	callers.Go(func() {
		if a := g.Post("/v1/completions", `{"model":"m","prompt":"hold"}`); a.StatusCode != 200 {
			g.T.Errorf("%s", a)
		}
	})
}

// count counts the names.
func count(order []string) map[string]int {
	n := map[string]int{}
	for _, name := range order {
		n[name]++
	}
	return n
}

// TestE2E_N6_RoundRobin: the replicas take turns, whatever runs on them.
func TestE2E_N6_RoundRobin(t *testing.T) {
	t.Parallel()
	a, b, c := startHolder(t, "a", "m"), startHolder(t, "b", "m"), startHolder(t, "c", "m")
	g := harness.Start(t, fmt.Sprintf(`
models:
  - {name: m, launcher: upstream, upstreams: [%s, %s, %s], routing: {strategy: round_robin, slow_start: 0s}, admission: {max_per_replica: 8}}
`, a.url, b.url, c.url))
	var callers sync.WaitGroup
	hold(g, &callers)
	var busy *holdingServer
	select {
	case <-a.held:
		busy = a
	case <-b.held:
		busy = b
	case <-c.held:
		busy = c
	}
	order := served(g, "m", 30)
	for i := 3; i < len(order); i++ {
		if order[i] != order[i-3] {
			t.Fatalf("they do not take turns: %v", order)
		}
	}
	if n := count(order); len(n) != 3 {
		t.Errorf("%v", n)
	}
	busy.free <- struct{}{}
	callers.Wait()
}

// TestE2E_N6_T2_LeastConnectionsAndItsTies: a request goes to a replica with the fewest requests.
// Of several, the one that has served the fewest gets it.
func TestE2E_N6_T2_LeastConnectionsAndItsTies(t *testing.T) {
	t.Parallel()
	all := map[string]*holdingServer{}
	for _, name := range []string{"a", "b", "c"} {
		all[name] = startHolder(t, name, "m")
	}
	g := harness.Start(t, fmt.Sprintf(`
models:
  - {name: m, launcher: upstream, upstreams: [%s, %s, %s], routing: {strategy: least_connections, slow_start: 0s}, admission: {max_per_replica: 8}}
`, all["a"].url, all["b"].url, all["c"].url))
	var callers sync.WaitGroup
	hold(g, &callers)
	var busy string
	select {
	case busy = <-all["a"].held:
	case busy = <-all["b"].held:
	case busy = <-all["c"].held:
	}
	n := count(servedApart(g, "m", 20, 1))
	if n[busy] != 0 || slices.Max(slices.Collect(maps.Values(n))) != 10 {
		t.Errorf("%s has a request, and of the next 20 the replicas get %v", busy, n)
	}
	all[busy].free <- struct{}{}
	callers.Wait()
	harness.Eventually(t, "its slot is free", func() error {
		if r := g.Replicas()[strings.TrimPrefix(all[busy].url, "http://")]; r.InFlight != 0 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	// Now nobody has a request, and the one that was busy has served 1 and the others 10 each.
	if n = count(servedApart(g, "m", 9, 0)); n[busy] != 9 {
		t.Errorf("%s has served the fewest, and of the next 9 the replicas get %v", busy, n)
	}
	if n = count(servedApart(g, "m", 30, 0)); len(n) != 3 || slices.Max(slices.Collect(maps.Values(n))) != 10 {
		t.Errorf("all have served ten, and of the next 30 the replicas get %v", n)
	}
}

// TestE2E_T4_UnequalListsAndSeveralAtOnce: servers that list different models and work on several
// requests. One that answers its list with 503 gets no more requests, and comes back with the next
// good answer; the model that only it has waits for it.
func TestE2E_T4_UnequalListsAndSeveralAtOnce(t *testing.T) {
	t.Parallel()
	a, b := startHolder(t, "a", "m", "n"), startHolder(t, "b", "m", "o")
	g := harness.Start(t, fmt.Sprintf("upstreams: [{url: %s, slots: 2}, {url: %s, slots: 3}]\n", a.url, b.url))
	for model, replicas := range map[string]int{"m": 2, "n": 1, "o": 1} {
		g.AwaitReadyReplicas(model, replicas)
	}
	var callers sync.WaitGroup
	for range 5 {
		hold(g, &callers)
	}
	for range 2 {
		harness.Receive(t, a.held, "the first server holds a request")
	}
	for range 3 {
		harness.Receive(t, b.held, "the second server holds a request")
	}
	hold(g, &callers)
	g.AwaitQueued("m", 1) // each works on as many as it says
	for range 4 {
		a.free <- struct{}{}
		b.free <- struct{}{}
	}
	callers.Wait()

	b.setBroken(true)
	g.AwaitReadyReplicas("m", 1)
	g.AwaitCondition(condition.UpstreamUnreachable, b.url)
	if n := count(served(g, "m", 6)); n["a"] != 6 {
		t.Errorf("b is unhealthy, and the requests go to %v", n)
	}
	if got := served(g, "n", 1)[0]; got != "a" {
		t.Errorf("n is served by %q", got)
	}
	b.setBroken(false)
	g.AwaitReadyReplicas("m", 2)
	if got := served(g, "o", 1)[0]; got != "b" {
		t.Errorf("o is served by %q", got)
	}
}

// TestE2E_T7_LatencyPerUpstream: the time of responses is measured for each upstream.
func TestE2E_T7_LatencyPerUpstream(t *testing.T) {
	t.Parallel()
	a, b := startHolder(t, "a", "m"), startHolder(t, "b", "m")
	g := harness.Start(t, fmt.Sprintf(`
models:
  - {name: m, launcher: upstream, upstreams: [%s, %s], routing: {strategy: round_robin, slow_start: 0s}}
`, a.url, b.url))
	served(g, "m", 10)
	harness.Eventually(t, "five requests of each are measured", func() error {
		text := g.AdminText("/metrics")
		for _, h := range []*holdingServer{a, b} {
			series := fmt.Sprintf("sluice_upstream_request_duration_seconds_count{model=%q,upstream=%q} 5\n", "m", strings.TrimPrefix(h.url, "http://"))
			if !strings.Contains(text, series) {
				return fmt.Errorf("%s is missing", series)
			}
		}
		return nil
	})
}
