package relay

import (
	"bytes"
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
	"github.com/sluice-gateway/sluice/internal/http1/server"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a relay with simulated engines behind it.
type bench struct {
	t          testing.TB
	relay      *Relay
	dispatcher *dispatch.Dispatcher
	admission  *admission.Controller
	engines    []*httptest.Server
	server     *h1server.Server
	// url is the server's
	url string

	mu      sync.Mutex
	results []Result
	retries []string
	// failures are those that a replica was blamed for
	failures []string
}

// setup is what a bench is made of.
type setup struct {
	replicas int
	engine   sim.Config
	policy   Policy
	rules    []Moderation
	// limits of the model, slots of each replica
	limits admission.Limits
	slots  int
	// handler in the place of the simulated engine
	handler http.Handler
	// write is the WriteTimeout
	write time.Duration
}

func newBench(t testing.TB, s setup) *bench {
	t.Helper()
	b := &bench{t: t}
	fleet := engines.NewFleet()
	part := engines.Part{Models: []engines.Model{{Name: "m"}}}
	routable := map[string]netip.AddrPort{}
	if s.slots == 0 {
		s.slots = 1000
	}
	s.engine.Models = []string{"m"}
	for i := range max(s.replicas, 1) {
		handler := s.handler
		if handler == nil {
			handler = sim.New(s.engine)
		}
		server := httptest.NewServer(handler)
		b.engines = append(b.engines, server)
		address := netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://"))
		id := fmt.Sprint("m-", i)
		part.Replicas = append(part.Replicas, engines.Replica{ID: id, Model: "m", State: engines.Ready, Slots: s.slots, Address: address})
		routable[id] = address
	}
	fleet.Set("test", part)
	b.admission = admission.New(admission.Config{})
	b.dispatcher = dispatch.New(dispatch.Config{Fleet: fleet, Admission: b.admission,
		Default: dispatch.Policy{Limits: s.limits, Strategy: dispatch.RoundRobin}})
	b.dispatcher.SetRoutable("model/m", routable)
	b.relay = New(Config{Dispatcher: b.dispatcher, WriteTimeout: s.write, Retried: func(reason string) {
		b.mu.Lock()
		b.retries = append(b.retries, reason)
		b.mu.Unlock()
	}, Failed: func(replica string, _ dispatch.Failure, reason string) {
		b.mu.Lock()
		b.failures = append(b.failures, replica+" "+reason)
		b.mu.Unlock()
	}})
	b.relay.SetRules(&Rules{Models: map[string]Policy{"m": s.policy}, Moderation: s.rules})
	b.serve()
	t.Cleanup(func() {
		b.relay.Close(t.Context())
		if err := b.server.Close(); err != nil {
			t.Error(err)
		}
		for _, e := range b.engines {
			e.Close()
		}
	})
	return b
}

// serve serves the relay as cmd/sluice does.
func (b *bench) serve() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	b.url = "http://" + l.Addr().String()
	b.server = &h1server.Server{Handler: b.relay.Handler(), Other: &http.Server{Handler: b.relay.Handler(), ReadHeaderTimeout: time.Minute}}
	go b.server.Serve(l) //nolint:errcheck // it ends when it is closed
}

// tenant of all calls.
var acme = &authz.Tenant{Name: "acme", Models: []string{"*"}}

// Decided and Carried implement Entry.
func (b *bench) Decided(string, string, time.Duration) {}
func (b *bench) Carried(r Result) {
	b.mu.Lock()
	b.results = append(b.results, r)
	b.mu.Unlock()
}

// last waits for the n-th result, from 1.
func (b *bench) last(n int) Result {
	b.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		b.mu.Lock()
		if len(b.results) >= n {
			defer b.mu.Unlock()
			return b.results[n-1]
		}
		b.mu.Unlock()
	}
	b.t.Fatalf("no %d. result", n)
	return Result{}
}

// offer has the relay expect a request, as ext_proc does.
func (b *bench) offer(body, id, path string) string {
	b.t.Helper()
	scan, fault := openai.Scan(openai.Chat, "application/json", []byte(body))
	if fault != nil {
		b.t.Fatal(fault)
	}
	if id != "" {
		scan.RequestID = id
	}
	return b.relay.config.Handoff.Offer(&dispatch.Offer{Tenant: acme, Priority: admission.Default, Path: path, Scan: scan,
		Received: time.Now(), Record: b})
}

// open sends a request that the relay expects.
func (b *bench) open(body string, more ...string) *http.Response {
	b.t.Helper()
	id, query := "", ""
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
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
	request.Header.Set(headers.Handoff, b.offer(body, id, "/v1/chat/completions"+query))
	request.Header.Set("content-type", "application/json")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		b.t.Fatal(err)
	}
	return response
}

// read sends a request and reads the response to its end.
func (b *bench) read(body string, more ...string) (int, string) {
	b.t.Helper()
	r := b.open(body, more...)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// idle waits until nothing is in flight.
func (b *bench) idle() {
	b.t.Helper()
	busy := 0
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		busy = 0
		for i := range b.engines {
			busy += b.dispatcher.Load(fmt.Sprint("m-", i))
		}
		if busy == 0 {
			return
		}
	}
	b.t.Fatalf("%d requests are still in flight", busy)
}

const hello = `{"model":"m","stream":true,"ignore_eos":true,"max_tokens":10,"messages":[{"role":"user","content":"hello"}]}`

// ends says how a stream's text ends.
func ends(text string) string {
	switch {
	case strings.HasSuffix(text, "data: [DONE]\n\n") && strings.Contains(text, `"finish_reason":"`):
		return "whole"
	case strings.Contains(text[bytes.LastIndex([]byte(text), []byte("data: ")):], `"error"`):
		return "error"
	}
	return "cut"
}

// crowd runs work n times and the others once, all at the same time.
func crowd(n int, work func(n int), others ...func()) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { work(i) })
	}
	for _, other := range others {
		all.Go(other)
	}
	all.Wait()
}
