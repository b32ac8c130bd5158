package relay

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// Nobody sees the first token of an answer that is no stream: it makes room for nobody. A stream
// does, until its first token, and its client notices nothing; what was done in vain is not charged
// and counts as one more attempt.
func TestWhoMakesRoom(t *testing.T) {
	for _, stream := range []bool{true, false} {
		var calls atomic.Int64
		arrived, release := make(chan struct{}, 3), make(chan struct{})
		h := newHarness(t, options{limits: admission.Limits{MaxConcurrent: 1}, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			n := calls.Add(1)
			arrived <- struct{}{}
			if n == 1 {
				select {
				case <-r.Context().Done():
					return
				case <-release:
				}
			}
			writeEvents(w, roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent)
		})})
		begin := func(p admission.Priority, stream bool) funcSink {
			body := hello
			if !stream {
				body = strings.Replace(hello, `"stream":true,`, "", 1)
			}
			c := h.newCall(body)
			c.Priority = p
			sink := funcSink{event: func([]byte) {}, ended: make(chan Result, 1)}
			go h.relay.Generate(t.Context(), c, sink)
			return sink
		}
		first := begin(admission.Batch, stream)
		<-arrived
		urgent := begin(admission.Interactive, true)
		if !stream {
			h.waitQueued(1)
			close(release)
		}
		u, f := <-urgent.ended, <-first.ended
		want := map[bool]int{true: 2, false: 1}[stream]
		if u.Fault != nil || f.Fault != nil || f.Attempts != want || int(calls.Load()) != want+1 {
			t.Errorf("stream %v: %v, %v after %d attempts, %d calls", stream, u.Fault, f.Fault, f.Attempts, calls.Load())
		}
		h.waitIdle()
	}
}

// waitQueued waits until n requests are queued.
func (h *harness) waitQueued(n int) {
	h.t.Helper()
	testutil.Eventually(h.t, fmt.Sprint(n, " requests wait"), func() bool { return h.admission.Stats("m").Queued == n })
}

// A place that is given up before it was used gives back what it was charged.
func TestAbandonedPlaceCostsNothing(t *testing.T) {
	h := newHarness(t, options{limits: admission.Limits{TokensPerMinute: 150}})
	for i := range 3 {
		c := h.newCall(strings.Replace(hello, `"max_tokens":10`, `"max_tokens":100`, 1))
		asked := c.Asked()
		ticket, pending, fault := h.relay.config.Dispatcher.Begin(t.Context(), &asked)
		if pending != nil {
			pending.Cancel()
			t.Fatalf("the %d. waits for tokens that nobody has used", i+1)
		}
		if fault != nil {
			t.Fatal(fault)
		}
		granted := dispatch.Granted(ticket)
		granted.Cancel()
		granted.Cancel()
	}
}

// A wait that was handed on is given up with its ticket, with its client, or with the relay, and
// leaves nothing.
func TestPendingIsNotForgotten(t *testing.T) {
	h := newHarness(t, options{limits: admission.Limits{MaxConcurrent: 1}, handler: engineThatHangs(roleEvent, tokenEvent("a"))})
	busy := h.send(hello)
	defer busy.Body.Close()
	io.ReadFull(busy.Body, make([]byte, 10))
	pending := func() (*dispatch.Pending, *Call) {
		asked := h.newCall(hello).Asked()
		asked.Watch = new(dispatch.Wait)
		_, p, fault := h.relay.config.Dispatcher.Begin(t.Context(), &asked)
		if p == nil {
			t.Fatal("it does not wait: ", fault)
		}
		return p, h.newCall(hello)
	}
	p, c := pending()
	ticket := h.relay.config.Handoff.Offer(&dispatch.Offer{Tenant: c.Tenant, Path: c.Path, Scan: c.Scan, Pending: p})
	h.waitQueued(1)
	h.relay.config.Handoff.Cancel(ticket)
	h.relay.config.Handoff.Cancel(ticket)
	h.waitQueued(0)

	p, c = pending()
	ctx, leave := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		h.relay.carry(ctx, c, p, subscription{sink: funcSink{event: func([]byte) {}, ended: make(chan Result, 1)}, after: -1, foreseen: true})
		close(over)
	}()
	h.waitQueued(1)
	leave()
	<-over
	h.waitQueued(0)

	for header, body := range map[string]string{"x-last": "short", "last-event-id": hello} {
		p, c = pending()
		c.Scan.RequestID = "r1"
		post, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		post.Header.Set(header, "no number")
		post.Header.Set(headers.Handoff, h.relay.config.Handoff.Offer(&dispatch.Offer{Tenant: c.Tenant, Path: c.Path, Scan: c.Scan, Pending: p, Record: h}))
		h.waitQueued(1)
		response, err := http.DefaultTransport.RoundTrip(post)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != 400 {
			t.Errorf("%s: %d", header, response.StatusCode)
		}
		h.waitQueued(0)
	}

	p, c = pending()
	h.waitQueued(1)
	h.relay.Close(t.Context())
	sink := funcSink{event: func([]byte) {}, ended: make(chan Result, 1)}
	h.relay.carry(t.Context(), c, p, subscription{sink: sink, after: -1})
	if r := <-sink.ended; r.Fault == nil || r.Fault.HTTPStatus() != 503 {
		t.Errorf("%+v", r)
	}
	h.waitQueued(0)
	h.waitIdle()
}
