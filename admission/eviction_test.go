package admission

import (
	"testing"
	"testing/synctest"
	"time"
)

var errEvicted = &Refused{Reason: Evicted}

func TestEvictLowerBand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1, MaxQueue: 3})
		d.startTokens(0)
		ask := func(p Priority) *admitCall {
			time.Sleep(time.Second)
			return d.start(t.Context(), Request{Priority: p, Tenant: "t"})
		}
		batch1, batch2, normal := ask(Batch), ask(Batch), ask(Default)
		d.wantRefused(ask(Batch), errQueueFull, 0) // a tenant does not evict its own waiters
		high := ask(Interactive)
		d.wantRefused(batch2, errEvicted, 3*time.Second) // the youngest of the lowest band
		next := ask(Default)
		d.wantRefused(batch1, errEvicted, 5*time.Second)
		d.wantRefused(ask(Default), errQueueFull, 0)
		last := ask(Interactive)
		d.wantRefused(next, errEvicted, 2*time.Second)
		d.wantWaiting(normal, high, last)
		d.wantStats(Stats{InFlight: 1, Queued: 3, Tokens: -1})
		if got := d.Tenant("t").Queued; got != 3 {
			t.Errorf("%d queued of the tenant, want 3", got)
		}
		d.Remove("chat")
	})
}

func TestEvictLongestFlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1, MaxQueue: 6})
		d.SetTenants(map[string]TenantLimits{"heavy": {Weight: 2}})
		d.startTokens(0)
		var crowd []*admitCall
		for range 6 {
			crowd = append(crowd, d.start(t.Context(), requestOf("crowd", 0)))
		}
		d.wantRefused(d.start(t.Context(), requestOf("crowd", 0)), errQueueFull, 0)
		a := d.start(t.Context(), requestOf("a", 0))
		d.wantRefused(crowd[5], errEvicted, 0)
		b := d.start(t.Context(), requestOf("heavy", 0))
		d.wantRefused(crowd[4], errEvicted, 0)
		c := d.start(t.Context(), requestOf("heavy", 0))
		d.wantRefused(crowd[3], errEvicted, 0)
		e := d.start(t.Context(), requestOf("heavy", 0))
		d.wantRefused(crowd[2], errEvicted, 0)
		// its tenant would have no fewer waiters than the longest flow
		d.wantRefused(d.start(t.Context(), requestOf("a", 0)), errQueueFull, 0)
		d.wantWaiting(crowd[0], crowd[1], a, b, c, e)
		d.Remove("chat")
	})
}

// TestEvictDoesNotSwap: a tenant without a waiter does not evict the only waiter of another.
func TestEvictDoesNotSwap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1, MaxQueue: 2})
		d.startTokens(0)
		a, b := d.start(t.Context(), requestOf("a", 0)), d.start(t.Context(), requestOf("b", 0))
		d.wantRefused(d.start(t.Context(), requestOf("c", 0)), errQueueFull, 0)
		d.wantWaiting(a, b)
		d.Remove("chat")
	})
}

func TestEvictForBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := testController{New(Config{MaxQueueBytes: 100}), t}
		d.SetLimits("chat", Limits{MaxConcurrent: 1})
		d.SetLimits("embed", Limits{MaxConcurrent: 1})
		d.startTokens(0)
		d.start(t.Context(), Request{Model: "embed"})
		embed := d.start(t.Context(), Request{Model: "embed", Priority: Batch, Bytes: 40})
		low := []*admitCall{}
		for range 6 {
			low = append(low, d.start(t.Context(), Request{Priority: Batch, Bytes: 10}))
		}
		d.wantRefused(d.start(t.Context(), Request{Bytes: 61}), errQueueFull, 0)
		d.wantWaiting(low...) // a request that fits in no case evicts nobody
		high := d.start(t.Context(), Request{Bytes: 25})
		for i := range 3 {
			d.wantRefused(low[5-i], errEvicted, 0)
		}
		d.wantWaiting(high, embed, low[0], low[1], low[2])
		if got := waitingBytesOf(d.Controller); got != 95 {
			t.Errorf("%d bytes held, want 95", got)
		}
		d.Remove("chat")
		d.Remove("embed")
	})
}

// TestAdviceIsLearned: a request that finds a full queue is told how long the queue will take at
// the model's pace.
func TestAdviceIsLearned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1, MaxQueue: 5, QueueTimeout: time.Hour})
		current := d.startTokens(0)
		var waiting []*admitCall
		for range 5 {
			waiting = append(waiting, d.startTokens(0))
		}
		for range 50 {
			time.Sleep(2 * time.Second)
			current.release()
			synctest.Wait()
			current, waiting = waiting[0], append(waiting[1:], d.startTokens(0))
		}
		got := d.startTokens(0).state().err.(*Refused)
		if got.Reason != QueueFull || got.RetryAfter < 10*time.Second || got.RetryAfter > 10500*time.Millisecond {
			t.Errorf("%v, want 10 s and a quarter more at most", got)
		}
		time.Sleep(30 * time.Minute)
		if got := d.startTokens(0).state().err.(*Refused); got.RetryAfter < time.Minute || got.RetryAfter > 61*time.Second {
			t.Errorf("%v, want one minute and a quarter more at most", got)
		}
		d.Remove("chat")
	})
}
