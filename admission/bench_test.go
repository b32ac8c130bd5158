package admission

import (
	"context"
	"runtime"
	"testing"
	"time"
)

func benchController(l Limits) *Controller {
	c := New(Config{})
	c.SetLimits("chat", l)
	return c
}

// One decision is one Admit with its Release.

func BenchmarkUncontended(b *testing.B) {
	ctx := b.Context()
	for name, l := range map[string]Limits{
		"limits=none":        {},
		"limits=concurrency": {MaxConcurrent: 64},
		"limits=both":        {MaxConcurrent: 64, TokensPerMinute: 1 << 36},
	} {
		b.Run(name, func(b *testing.B) {
			c := benchController(l)
			b.ReportAllocs()
			for b.Loop() {
				lease, err := c.Admit(ctx, Request{Model: "chat", Tokens: 1})
				if err != nil {
					b.Fatal(err)
				}
				lease.Release()
			}
		})
	}
}

func BenchmarkParallel(b *testing.B) {
	c := benchController(Limits{MaxConcurrent: 64})
	ctx := b.Context()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			lease, err := c.Admit(ctx, Request{Model: "chat"})
			if err != nil {
				b.Error(err)
				return
			}
			lease.Release()
		}
	})
}

// BenchmarkWaiting has 10,000 callers for 100 places: every Release wakes the head, every Admit joins the end.
func BenchmarkWaiting(b *testing.B) {
	const callers = 10_000
	c := benchController(Limits{MaxConcurrent: 100, MaxQueue: 2 * callers, QueueTimeout: time.Hour})
	ctx := b.Context()
	b.ReportAllocs()
	b.SetParallelism(callers / runtime.GOMAXPROCS(0))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			lease, err := c.Admit(ctx, Request{Model: "chat", Bytes: 1000})
			if err != nil {
				b.Error(err)
				return
			}
			runtime.Gosched() // hold it, so that others have to wait
			lease.Release()
		}
	})
}

// BenchmarkLeaving is an abort in the midst of 10,000 who wait.
func BenchmarkLeaving(b *testing.B) {
	const callers = 10_000
	c := benchController(Limits{MaxConcurrent: 1, MaxQueue: 2 * callers, QueueTimeout: time.Hour})
	holder, err := c.Admit(b.Context(), Request{Model: "chat"})
	if err != nil {
		b.Fatal(err)
	}
	defer holder.Release()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	for range callers {
		go func() { _, _ = c.Admit(ctx, Request{Model: "chat"}) }()
	}
	for c.Stats("chat").Queued < callers {
		runtime.Gosched()
	}
	b.ReportAllocs()
	for b.Loop() {
		leaving, leave := context.WithCancel(ctx)
		_, _ = c.Admit(leaving, Request{Model: "chat", OnWait: leave})
	}
}
