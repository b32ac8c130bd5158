package admission

import (
	"testing"
	"testing/synctest"
	"time"
)

var evicted = &Refused{Reason: Evicted}

func TestEvictLowerBand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, Limits{MaxConcurrent: 1, MaxQueue: 3})
		d.request(0)
		ask := func(p Priority) *call {
			time.Sleep(time.Second)
			return d.ask(t.Context(), Request{Priority: p, Tenant: "t"})
		}
		batch1, batch2, normal := ask(Batch), ask(Batch), ask(Default)
		d.refused(ask(Batch), full, 0) // does not push out its own
		high := ask(Interactive)
		d.refused(batch2, evicted, 3*time.Second) // the youngest of the lowest
		next := ask(Default)
		d.refused(batch1, evicted, 5*time.Second)
		d.refused(ask(Default), full, 0)
		last := ask(Interactive)
		d.refused(next, evicted, 2*time.Second)
		d.waits(normal, high, last)
		d.stats(Stats{InFlight: 1, Queued: 3, Tokens: -1})
		if got := d.Tenant("t").Queued; got != 3 {
			t.Errorf("%d queued of the tenant, want 3", got)
		}
		d.Remove("chat")
	})
}

func TestEvictLongestFlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, Limits{MaxConcurrent: 1, MaxQueue: 6})
		d.SetTenants(map[string]TenantLimits{"heavy": {Weight: 2}})
		d.request(0)
		var crowd []*call
		for range 6 {
			crowd = append(crowd, d.ask(t.Context(), from("crowd", 0)))
		}
		d.refused(d.ask(t.Context(), from("crowd", 0)), full, 0)
		a := d.ask(t.Context(), from("a", 0))
		d.refused(crowd[5], evicted, 0)
		b := d.ask(t.Context(), from("heavy", 0))
		d.refused(crowd[4], evicted, 0)
		c := d.ask(t.Context(), from("heavy", 0))
		d.refused(crowd[3], evicted, 0)
		e := d.ask(t.Context(), from("heavy", 0))
		d.refused(crowd[2], evicted, 0)
		d.refused(d.ask(t.Context(), from("a", 0)), full, 0) // would have no fewer than the longest
		d.waits(crowd[0], crowd[1], a, b, c, e)
		d.Remove("chat")
	})
}

// TestEvictDoesNotSwap: a tenant without a place does not get it from one that has only one.
func TestEvictDoesNotSwap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, Limits{MaxConcurrent: 1, MaxQueue: 2})
		d.request(0)
		a, b := d.ask(t.Context(), from("a", 0)), d.ask(t.Context(), from("b", 0))
		d.refused(d.ask(t.Context(), from("c", 0)), full, 0)
		d.waits(a, b)
		d.Remove("chat")
	})
}

func TestEvictForBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := desk{New(Config{MaxQueueBytes: 100}), t}
		d.SetLimits("chat", Limits{MaxConcurrent: 1})
		d.SetLimits("embed", Limits{MaxConcurrent: 1})
		d.request(0)
		d.ask(t.Context(), Request{Model: "embed"})
		elsewhere := d.ask(t.Context(), Request{Model: "embed", Priority: Batch, Bytes: 40})
		low := []*call{}
		for range 6 {
			low = append(low, d.ask(t.Context(), Request{Priority: Batch, Bytes: 10}))
		}
		d.refused(d.ask(t.Context(), Request{Bytes: 61}), full, 0)
		d.waits(low...) // who does not fit either way evicts nobody
		high := d.ask(t.Context(), Request{Bytes: 25})
		for i := range 3 {
			d.refused(low[5-i], evicted, 0)
		}
		d.waits(high, elsewhere, low[0], low[1], low[2])
		if got := heldNow(d.Controller); got != 95 {
			t.Errorf("%d bytes held, want 95", got)
		}
		d.Remove("chat")
		d.Remove("embed")
	})
}

// TestAdviceIsLearned: who finds a full queue is told how long the queue will take at the model's pace.
func TestAdviceIsLearned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, Limits{MaxConcurrent: 1, MaxQueue: 5, QueueTimeout: time.Hour})
		current := d.request(0)
		var waiting []*call
		for range 5 {
			waiting = append(waiting, d.request(0))
		}
		for range 50 {
			time.Sleep(2 * time.Second)
			current.release()
			synctest.Wait()
			current, waiting = waiting[0], append(waiting[1:], d.request(0))
		}
		got := d.request(0).get().err.(*Refused)
		if got.Reason != QueueFull || got.RetryAfter < 10*time.Second || got.RetryAfter > 12500*time.Millisecond {
			t.Errorf("%v, want 10 s and a quarter more at most", got)
		}
		time.Sleep(30 * time.Minute)
		if got := d.request(0).get().err.(*Refused); got.RetryAfter < time.Minute || got.RetryAfter > 75*time.Second {
			t.Errorf("%v, want one minute and a quarter more at most", got)
		}
		d.Remove("chat")
	})
}
