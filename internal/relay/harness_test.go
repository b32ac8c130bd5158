package relay

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/http1"
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/sim"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness is a relay with simulated engines behind it.
type harness struct {
	t          testing.TB
	relay      *Relay
	dispatcher *dispatch.Dispatcher
	admission  *admission.Controller
	engines    []*httptest.Server
	server     *http1.Server
	// url is that of server.
	url string

	mu      sync.Mutex
	results []Result
	retries []string
	// failedAt are the attempts that were repeated, as the call's entry was told them.
	failedAt []string
	// failures are the failures that a replica was blamed for.
	failures []string
	// usedLate is what calls have used whose entry had its outcome before.
	usedLate []request.Usage
	// rests are the replicas that had too much to do, with their Retry-After. closing are those
	// that ended a response by closing their connection.
	rests, closing []string
}

// options configure a harness.
type options struct {
	replicas int
	engine   sim.Config
	policy   Policy
	rules    []Moderation
	// limits are those of the model, slots those of each replica.
	limits admission.Limits
	slots  int
	// handler takes the place of the simulated engine. nil: none does.
	handler http.Handler
	// write is Config.WriteTimeout.
	write time.Duration
	// memory is Config.Memory, and maxAnswer Config.MaxAnswer.
	memory    *memory.Budget
	maxAnswer int64
	// maxDuration is that of the model.
	maxDuration time.Duration
}

func newHarness(t testing.TB, o options) *harness {
	t.Helper()
	h := &harness{t: t}
	fleet := engines.NewFleet()
	part := engines.Part{Models: []engines.Model{{Name: "m", Aliases: []string{"alias"}}}}
	routable := map[string]netip.AddrPort{}
	o.slots = cmp.Or(o.slots, 1000)
	o.engine.Models = []string{"m"}
	for i := range max(o.replicas, 1) {
		handler := o.handler
		if handler == nil {
			handler = sim.New(o.engine)
		}
		server := httptest.NewServer(handler)
		h.engines = append(h.engines, server)
		address := netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://"))
		id := fmt.Sprint("m-", i)
		part.Replicas = append(part.Replicas, engines.Replica{ID: id, Model: "m", State: engines.Ready, Slots: o.slots, Address: address})
		routable[id] = address
	}
	fleet.Set("test", part)
	h.admission = admission.New(admission.Config{})
	h.dispatcher = dispatch.New(dispatch.Config{Fleet: fleet, Admission: h.admission})
	h.dispatcher.SetRules(dispatch.Rules{Default: dispatch.Policy{Limits: o.limits, Strategy: dispatch.RoundRobin, MaxDuration: o.maxDuration}})
	h.dispatcher.SetRoutable("model/m", routable)
	h.relay = New(Config{Dispatcher: h.dispatcher, WriteTimeout: o.write, Memory: o.memory, MemoryWait: 50 * time.Millisecond, MaxAnswer: o.maxAnswer, Retried: func(_, _, reason string) {
		h.mu.Lock()
		h.retries = append(h.retries, reason)
		h.mu.Unlock()
	}, Failed: func(_, replica string, _ dispatch.Failure, reason string) {
		h.mu.Lock()
		h.failures = append(h.failures, replica+" "+reason)
		h.mu.Unlock()
	}, Rest: func(replica string, after time.Duration) {
		h.mu.Lock()
		h.rests = append(h.rests, fmt.Sprint(replica, " ", after))
		h.mu.Unlock()
	}, CloseDelimited: func(_, replica string) {
		h.mu.Lock()
		h.closing = append(h.closing, replica)
		h.mu.Unlock()
	}})
	h.relay.SetRules(&Rules{Models: map[string]Policy{"m": o.policy}, Moderation: o.rules})
	h.listenAndServe()
	t.Cleanup(func() {
		h.relay.Close(t.Context())
		if err := h.server.Close(); err != nil {
			t.Error(err)
		}
		for _, e := range h.engines {
			e.Close()
		}
	})
	return h
}

// listenAndServe serves the relay as the gateway does.
func (h *harness) listenAndServe() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	h.url = "http://" + l.Addr().String()
	h.server = &http1.Server{Handler: h.relay.Handler(), Other: &http.Server{Handler: h.relay.Handler(), ReadHeaderTimeout: time.Minute}}
	go h.server.Serve(l) //nolint:errcheck // it ends when it is closed
}

// acme is the tenant of all calls.
var acme = &authz.Tenant{Name: "acme", Models: []string{"*"}}

// SetDispatched, SetTrace and SetOutcome implement Entry.
func (h *harness) SetDispatched(string, string, time.Duration) {}
func (h *harness) SetPrediction(request.Prediction)            {}
func (h *harness) SetTrace(string, string)                     {}
func (h *harness) AddRetry(reason, replica string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failedAt = append(h.failedAt, reason+" at "+replica)
}
func (h *harness) SetCanceller(request.Canceller) {}
func (h *harness) SetUsage(u request.Usage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.usedLate = append(h.usedLate, u)
}
func (h *harness) SetOutcome(r Result) {
	h.mu.Lock()
	h.results = append(h.results, r)
	h.mu.Unlock()
}

// result waits for the n-th result, counted from 1.
func (h *harness) result(n int) Result {
	h.t.Helper()
	var found Result
	testutil.Eventually(h.t, fmt.Sprintf("%d. result", n), func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.results) < n {
			return false
		}
		found = h.results[n-1]
		return true
	})
	return found
}

// offer offers a request to the relay, as ext_proc does, and returns its token.
func (h *harness) offer(body, id, path string) string {
	h.t.Helper()
	scan, fault := openai.Scan(openai.Chat, "application/json", []byte(body))
	if fault != nil {
		h.t.Fatal(fault)
	}
	if id != "" {
		scan.RequestID = id
	}
	return h.relay.config.Handoff.Offer(&dispatch.Offer{Tenant: acme, Priority: admission.Default, Path: path, Scan: scan,
		Received: time.Now(), Record: h})
}

// send offers a request and sends it. more has headers, and "id: …" and "query: …".
func (h *harness) send(body string, more ...string) *http.Response {
	h.t.Helper()
	id, query := "", ""
	request, err := http.NewRequestWithContext(h.t.Context(), http.MethodPost, h.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, h := range more {
		name, value, _ := strings.Cut(h, ": ")
		switch name {
		case "id":
			id = value
			continue
		case "query":
			query = "?" + value
			request.URL.RawQuery = value
			continue
		}
		request.Header.Set(name, value)
	}
	request.Header.Set(headers.Handoff, h.offer(body, id, "/v1/chat/completions"+query))
	request.Header.Set("content-type", "application/json")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		h.t.Fatal(err)
	}
	return response
}

// sendAndRead sends a request and reads the response to its end.
func (h *harness) sendAndRead(body string, more ...string) (int, string) {
	h.t.Helper()
	r := h.send(body, more...)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// waitIdle waits until no request is in flight.
func (h *harness) waitIdle() {
	h.t.Helper()
	testutil.Eventually(h.t, "no request is in flight", func() bool {
		busy := 0
		for i := range h.engines {
			busy += h.dispatcher.Load(fmt.Sprint("m-", i))
		}
		return busy == 0
	})
}

const hello = `{"model":"m","stream":true,"ignore_eos":true,"max_tokens":10,"messages":[{"role":"user","content":"hello"}]}`

// endingOf returns how the text of a stream ends: "whole", "error" or "cut".
func endingOf(text string) string {
	switch {
	case strings.HasSuffix(text, "data: [DONE]\n\n") && strings.Contains(text, `"finish_reason":"`):
		return "whole"
	case strings.Contains(text[bytes.LastIndex([]byte(text), []byte("data: ")):], `"error"`):
		return "error"
	}
	return "cut"
}

// runConcurrently runs work n times and each of the others once, all at the same time.
func runConcurrently(n int, work func(n int), others ...func()) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { work(i) })
	}
	for _, other := range others {
		all.Go(other)
	}
	all.Wait()
}
