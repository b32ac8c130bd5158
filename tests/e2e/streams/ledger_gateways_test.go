package streams

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// ledgerGateways starts two gateways that share a Redis, and the gateway whose replicas are their
// upstreams.
func ledgerGateways(t *testing.T, more string) (third *harness.Gateway, two [2]*harness.Gateway) {
	t.Helper()
	third = harness.Start(t, `
models:
  - {name: chat, engine: sim, launcher: local, replicas: {min: 2, max: 2}, variables: {prefill_rate: 0, token_interval: 1ms, max_num_seqs: 1000}}
  - {name: embed, task: embedding, engine: sim, launcher: local}
`)
	at := func(replica string) string { return third.Replicas()[replica].Address }
	config := fmt.Sprintf(`
auth: {mode: keys}
redis: %s
models:
  - {name: native, launcher: upstream, upstreams: [{url: "http://%s", model: chat}, {url: "http://%s", model: chat}], stream: {mode: native}}
  - {name: managed, launcher: upstream, upstreams: [{url: "http://%s", model: chat}, {url: "http://%s", model: chat}], stream: {mode: managed}}
  - {name: embed, task: embedding, launcher: upstream, upstreams: ["http://%s"]}
%s`, redistest.URL(redistest.Start(t)), at("chat-0"), at("chat-1"), at("chat-0"), at("chat-1"), at("embed-0"), more)
	for i := range two {
		two[i] = harness.Start(t, config)
	}
	for _, g := range two {
		g.AwaitSharedState(true, 2)
	}
	return third, two
}

// mix sends requests of all kinds.
type mix struct {
	t    *testing.T
	keys []string
	// fails is the address of a replica that resets a connection now and then.
	fails string
	// estimates counts the requests that leave early or whose response breaks off, finished those
	// whose clients have had the whole answer.
	estimates, finished atomic.Int64
}

// send sends the n-th request to a gateway.
func (m *mix) send(g *harness.Gateway, n int) {
	key, model := m.keys[n%len(m.keys)], []string{"native", "managed"}[n/2%2]
	text := strings.Repeat(fmt.Sprintf("what everybody should know of subject %d ", n%17), 20) + fmt.Sprint("and request ", n)
	ask := func(path, body string) {
		a, err := g.TryPost(m.t.Context(), path, body, key)
		// The other replica gets no requests for a while after it broke off a response. The one
		// that resets may then be the only one. Clients repeat such a request.
		for n := 0; n < 2 && err == nil && a.StatusCode == http.StatusBadGateway; n++ {
			a, err = g.TryPost(m.t.Context(), path, body, key)
		}
		if err != nil || a.StatusCode != http.StatusOK {
			m.t.Errorf("request %d: %v, %v", n, a, err)
			return
		}
		m.finished.Add(1)
	}
	switch n % 20 {
	case 0:
		m.estimates.Add(1)
		abandon(m.t, g, askForUsage(model, 9, text), key, "x-sim-fault: stall=3")
	case 1:
		m.estimates.Add(1)
		_, _ = g.TryPost(m.t.Context(), harness.ChatPath, askForUsage(model, 9, text), key, "x-sim-fault: cut=3")
	case 2:
		_, _ = g.TryPost(m.t.Context(), harness.ChatPath, harness.ChatBody(model, false, 9, text), key, "x-sim-fault: status=400")
	case 3:
		failOnce(m.t, m.fails)
		ask(harness.ChatPath, harness.ChatBody(model, false, 5, text))
	case 4, 5:
		ask("/v1/embeddings", fmt.Sprintf(`{"model":"embed","input":[%q,"two three"]}`, text))
	case 6:
		ask("/v1/responses", fmt.Sprintf(`{"model":%q,"input":%q,"stream":true,"max_output_tokens":9}`, model, text))
	case 7:
		ask("/v1/messages", fmt.Sprintf(`{"model":%q,"max_tokens":8,"messages":[{"role":"user","content":%q}]}`, model, text))
	case 8, 9, 10, 11, 12:
		ask(harness.ChatPath, harness.ChatBody(model, false, 1+n%30, text))
	default:
		ask(harness.ChatPath, askForUsage(model, 1+n%30, text))
	}
}

// sendAll sends the requests from one number to before another one, a dozen at a time.
func (m *mix) sendAll(from, to int, gateways ...*harness.Gateway) {
	var all sync.WaitGroup
	next := atomic.Int64{}
	next.Store(int64(from))
	for range 12 {
		all.Go(func() {
			for n := int(next.Add(1)) - 1; n < to; n = int(next.Add(1)) - 1 {
				m.send(gateways[n%len(gateways)], n)
			}
		})
	}
	all.Wait()
}

// Two gateways on one Redis answer, whichever is asked, what the engines have counted for all
// finished requests. They do so over aborts, broken streams, retries and a kill -9 of one of them
// under load. SLUICE_LEDGER_REQUESTS is the number of requests.
func TestE2E_B3_O4_LedgerOfTwoGatewaysAgainstTheEngines(t *testing.T) {
	t.Parallel()
	requests := 240
	if n, err := strconv.Atoi(os.Getenv("SLUICE_LEDGER_REQUESTS")); err == nil {
		requests = n
	}
	keys, tenants := harness.TenantKeys("acme", "beta", "gamma", "last")
	third, two := ledgerGateways(t, tenants)
	m := &mix{t: t, fails: third.Replicas()["chat-0"].Address}
	for _, name := range []string{"acme", "beta", "gamma"} {
		m.keys = append(m.keys, "authorization: Bearer "+keys[name])
	}
	begun := time.Now()
	agree := func() {
		t.Helper()
		harness.Eventually(t, "the ledgers and the engines agree", func() error {
			want := engines(t, third)
			for i, g := range two {
				told, estimated := counted(t, g)
				if diff := cmp.Diff(want, told); diff != "" || int64(estimated) != m.estimates.Load() {
					return fmt.Errorf("gateway %d: %d estimates, want %d; engines (-), ledger (+):\n%s", i, estimated, m.estimates.Load(), diff)
				}
			}
			return nil
		})
	}
	m.sendAll(0, requests/2, two[0], two[1])
	agree()
	must(t, two[0].Post("/v1/embeddings", `{"model":"embed","input":"the last of all"}`, "authorization: Bearer "+keys["last"]))
	awaitWritten(t, two[0], "last", "embed")
	var beside sync.WaitGroup
	beside.Go(func() { m.sendAll(requests/2, requests*3/4, two[1]) })
	surviveKill(t, two[0], m.keys[0])
	beside.Wait()
	m.sendAll(requests*3/4, requests, two[0], two[1])
	agree()
	var answer struct {
		Complete bool
		Missing  []string
	}
	harness.Eventually(t, "a complete answer", func() error {
		if err := two[1].TryGet("/api/v1/usage", &answer); err != nil || !answer.Complete {
			return fmt.Errorf("%v: %+v", err, answer)
		}
		return nil
	})
	used := engines(t, third)
	t.Logf("%d requests in %s: the engines have finished %+v, and so say both ledgers; %d requests are estimates", requests,
		time.Since(begun).Round(time.Second), used, m.estimates.Load())
}
