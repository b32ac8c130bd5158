package relay

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/sim"
)

// forwarderTo returns a Forwarder to the handler for other processes of a relay.
func forwarderTo(t *testing.T, h *harness) Forwarder {
	tenant := func(name, _ string) (*authz.Tenant, bool) {
		return &authz.Tenant{Name: name, Models: []string{"*"}}, true
	}
	server := httptest.NewServer(h.relay.PeerHandler(tenant, 1<<20))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(address)
	proxy.FlushInterval = -1
	proxy.Transport = &http.Transport{DisableKeepAlives: true}
	return func(w http.ResponseWriter, r *http.Request) *openai.Error {
		proxy.ServeHTTP(w, r)
		return nil
	}
}

// When a process retires, calls that wait move to its successor, with and without a request id. A
// stream that has begun stays to its end, and later calls go to the successor.
func TestX20_WaitingCallsMove(t *testing.T) {
	slow := options{limits: admission.Limits{MaxConcurrent: 1}, engine: sim.Config{TokenInterval: 50 * time.Millisecond}}
	old, next := newHarness(t, slow), newHarness(t, options{})
	var clients sync.WaitGroup
	answers := make([]string, 5)
	ask := func(i int, more ...string) {
		clients.Go(func() { _, answers[i] = old.sendAndRead(hello, more...) })
	}
	ask(0)
	for old.admission.Stats("m").InFlight == 0 {
		time.Sleep(time.Millisecond)
	}
	ask(1)
	ask(2, "id: one")
	ask(3, "id: one")
	old.waitQueued(2) // the third of them joins
	old.relay.Retire(forwarderTo(t, next))
	old.dispatcher.Retire()
	ask(4)
	clients.Wait()
	for i, a := range answers {
		if !strings.HasSuffix(a, "data: [DONE]\n\n") || strings.Contains(a, `"error"`) {
			t.Errorf("answer %d: %.300q", i, a)
		}
	}
	if old.relay.Carries() || old.relay.Keeps() {
		t.Error("the old relay still carries or keeps a call")
	}
}
