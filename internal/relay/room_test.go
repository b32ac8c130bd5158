package relay

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/dispatch"
)

// Nobody sees the first token of an answer that is no stream: it makes room for nobody. A stream does, until its first token, and its client
// notices nothing; what was done in vain is not charged and counts as one more attempt.
func TestWhoMakesRoom(t *testing.T) {
	for _, stream := range []bool{true, false} {
		var calls atomic.Int64
		arrived, release := make(chan struct{}, 3), make(chan struct{})
		b := newBench(t, setup{limits: admission.Limits{MaxConcurrent: 1}, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			arrived <- struct{}{}
			if calls.Add(1) == 1 {
				select {
				case <-r.Context().Done():
					return
				case <-release:
				}
			}
			write(w, role, say("a"), finish("", "stop"), done)
		})})
		begin := func(p admission.Priority, stream bool) taker {
			body := hello
			if !stream {
				body = strings.Replace(hello, `"stream":true,`, "", 1)
			}
			c := b.call(body)
			c.Priority = p
			sink := taker{event: func([]byte) {}, ended: make(chan Result, 1)}
			go b.relay.Generate(t.Context(), c, sink)
			return sink
		}
		first := begin(admission.Batch, stream)
		<-arrived
		urgent := begin(admission.Interactive, true)
		if !stream {
			b.queued(1)
			close(release)
		}
		u, f := <-urgent.ended, <-first.ended
		want := map[bool]int{true: 2, false: 1}[stream]
		if u.Fault != nil || f.Fault != nil || f.Attempts != want || int(calls.Load()) != want+1 {
			t.Errorf("stream %v: %v, %v after %d attempts, %d calls", stream, u.Fault, f.Fault, f.Attempts, calls.Load())
		}
		b.idle()
	}
}

// queued waits until so many requests wait for their turn.
func (b *bench) queued(n int) {
	b.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		waiting := b.admission.Stats("m").Queued
		switch {
		case waiting == n:
			return
		case time.Now().After(end):
			b.t.Fatalf("%d wait", waiting)
		}
	}
}

// A place that is given up before it was used gives back what it was charged.
func TestAbandonedPlaceCostsNothing(t *testing.T) {
	b := newBench(t, setup{limits: admission.Limits{TokensPerMinute: 150}})
	for i := range 3 {
		c := b.call(strings.Replace(hello, `"max_tokens":10`, `"max_tokens":100`, 1))
		asked := c.Asked()
		ticket, pending, fault := b.relay.config.Dispatcher.Begin(t.Context(), &asked)
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

// A wait that was handed on is given up with its ticket, with its client, or with the relay, and leaves nothing.
func TestPendingIsNotForgotten(t *testing.T) {
	b := newBench(t, setup{limits: admission.Limits{MaxConcurrent: 1}, handler: hangs(role, say("a"))})
	busy := b.open(hello)
	defer busy.Body.Close()
	io.ReadFull(busy.Body, make([]byte, 10))
	pending := func() (*dispatch.Pending, *Call) {
		asked := b.call(hello).Asked()
		asked.Watch = new(dispatch.Wait)
		_, p, fault := b.relay.config.Dispatcher.Begin(t.Context(), &asked)
		if p == nil {
			t.Fatal("it does not wait: ", fault)
		}
		return p, b.call(hello)
	}
	p, c := pending()
	ticket := b.relay.config.Handoff.Offer(&dispatch.Offer{Tenant: c.Tenant, Path: c.Path, Scan: c.Scan, Pending: p})
	b.queued(1)
	b.relay.config.Handoff.Cancel(ticket)
	b.relay.config.Handoff.Cancel(ticket)
	b.queued(0)

	p, c = pending()
	ctx, leave := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		b.relay.generate(ctx, c, p, listening{sink: taker{event: func([]byte) {}, ended: make(chan Result, 1)}, after: -1, foreseen: true})
		close(over)
	}()
	b.queued(1)
	leave()
	<-over
	b.queued(0)

	p, c = pending()
	b.queued(1)
	b.relay.Close(t.Context())
	sink := taker{event: func([]byte) {}, ended: make(chan Result, 1)}
	b.relay.generate(t.Context(), c, p, listening{sink: sink, after: -1})
	if r := <-sink.ended; r.Fault == nil || r.Fault.HTTPStatus() != 503 {
		t.Errorf("%+v", r)
	}
	b.queued(0)
	b.idle()
}
