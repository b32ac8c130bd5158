package relay

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/sim"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// ledger notes what a harness is told of usage.
type ledger struct {
	mu   sync.Mutex
	uses []string
}

// keepLedger has a harness note what requests use.
func keepLedger(h *harness) *ledger {
	l := new(ledger)
	h.relay.config.Requests = request.NewStore(0)
	h.relay.config.Requests.Subscribe(request.Subscribers{Used: func(q *request.Summary) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.uses = append(l.uses, q.Tenant+" "+q.Model+" "+usageText(q))
	}})
	return l
}

func usageText(q *request.Summary) string {
	switch {
	case q.PromptTokens > 0 && q.CompletionTokens > 0:
		return "used both"
	case q.PromptTokens > 0 || q.CompletionTokens > 0 || q.Attempts > 0:
		return "used a part"
	}
	return "used nothing"
}

// entries returns what was noted, in order.
func (l *ledger) entries() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.uses)
	slices.Sort(all)
	return all
}

// A request that another gateway forwards, and that starts here, is counted here, once.
func TestB3_TheUsageOfForwardedRequests(t *testing.T) {
	h := newHarness(t, options{})
	l := keepLedger(h)
	s := httptest.NewServer(h.relay.PeerHandler(func(string, string) (*authz.Tenant, bool) { return acme, true }, 1<<20))
	defer s.Close()
	r, err := http.NewRequest(http.MethodPost, s.URL+"/v1/chat/completions", strings.NewReader(hello))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"content-type": "application/json", headers.Tenant: "acme", headers.IdempotencyKey: "x", headers.Forwarded: "other"} {
		r.Header.Set(name, value)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), "[DONE]") {
		t.Errorf("%v: %d %s", err, resp.StatusCode, text)
	}
	if d := cmp.Diff([]string{"acme m used both"}, l.entries()); d != "" {
		t.Error(d)
	}
}

// Requests that move to the next process while they wait are counted there, once for a generation,
// and also if their clients leave. The process before counts none of them.
func TestX20_TheUsageOfRequestsThatMove(t *testing.T) {
	whole := `{"model":"m","ignore_eos":true,"max_tokens":10,"messages":[{"role":"user","content":"hello"}]}`
	moved := make(chan struct{})
	old := newHarness(t, options{limits: admission.Limits{MaxConcurrent: 1}, handler: engineThatWaits(moved)})
	next := newHarness(t, options{engine: sim.Config{TokenInterval: 20 * time.Millisecond}})
	l := keepLedger(next)
	var clients sync.WaitGroup
	clients.Go(func() { old.sendAndRead(hello) })
	testutil.Eventually(t, "a request runs", func() bool { return old.admission.Stats("m").InFlight > 0 })
	clients.Go(func() { old.sendAndRead(hello, "id: shared") })
	old.waitQueued(1)
	clients.Go(func() { old.sendAndRead(hello, "id: shared") }) // joins
	clients.Go(func() { old.sendAndRead(whole, "id: plain") })
	clients.Go(func() { // leaves in the middle
		resp := old.send(hello)
		defer resp.Body.Close()
		events := bufio.NewReader(resp.Body)
		for range 8 {
			if _, err := events.ReadString('\n'); err != nil {
				t.Error(err)
			}
		}
	})
	old.waitQueued(3)
	old.relay.Retire(forwarderTo(t, next))
	old.dispatcher.Retire()
	close(moved)
	clients.Wait()
	testutil.Eventually(t, "all have an outcome", func() bool {
		old.mu.Lock()
		defer old.mu.Unlock()
		return len(old.results) == 5
	})
	for _, r := range old.results {
		if r.UsedElsewhere == (r.Attempts > 0) {
			t.Errorf("counted elsewhere: %v, with %d attempts", r.UsedElsewhere, r.Attempts)
		}
	}
	want := []string{"acme m used both", "acme m used both", "acme m used both", "acme m used nothing"}
	testutil.Eventually(t, "the next process has counted", func() bool { return len(l.entries()) == len(want) })
	if d := cmp.Diff(want, l.entries()); d != "" {
		t.Error(d)
	}
}
