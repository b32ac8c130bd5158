package admission

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
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

// BenchmarkWaiting has 10,000 callers for 100 leases: each Release admits the head, each Admit
// joins the end of the queue.
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
			runtime.Gosched() // others have to wait while it holds the lease
			lease.Release()
		}
	})
}

// BenchmarkLeaving cancels a waiter in the middle of 10,000.
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
		_, _ = c.Admit(leaving, Request{Model: "chat", Unlocked: UnlockedHooks{OnWait: leave}})
	}
}

// BenchmarkThousands has 10,000 requests of 1,000 tenants that wait for 512 models. One decision is
// a Release, which admits the next waiter, or an Admit that joins the queue. It reports the 99th
// percentile of the time of a decision.
func BenchmarkThousands(b *testing.B) {
	const models, tenants, waiting = 512, 1000, 10_000
	c := New(Config{})
	limits := map[string]TenantLimits{}
	for i := range tenants {
		limits[name("tenant", i)] = TenantLimits{Weight: 1 + i%4, MaxConcurrent: 1 << 20, TokensPerMinute: 1 << 34, RequestsPerMinute: 1 << 34}
	}
	c.SetTenants(limits)
	for i := range models {
		c.SetLimits(name("model", i), Limits{MaxConcurrent: 2, TokensPerMinute: 1 << 34, QueueTimeout: time.Hour})
	}
	ctx, cancel := context.WithCancel(b.Context())
	random := rand.New(rand.NewPCG(1, 1))
	leases := make(chan *Lease, 2*waiting)
	var wg sync.WaitGroup
	ask := func() time.Duration {
		r := Request{Model: name("model", random.IntN(models)), Tenant: name("tenant", random.IntN(tenants)), Tokens: 1 + random.IntN(4000), Bytes: 1000}
		a := newArrival(r)
		start := time.Now()
		lease, w, err := c.admitOrEnqueue(&a)
		took := time.Since(start)
		switch {
		case err != nil:
			b.Fatal(err)
		case lease != nil:
			leases <- lease
		default:
			wg.Go(func() {
				if lease, err := c.await(ctx, w); err == nil {
					leases <- lease
				}
			})
		}
		return took
	}
	for range waiting + 2*models {
		ask()
	}
	b.ReportAllocs()
	took := make([]time.Duration, 0, 1<<20)
	for b.Loop() {
		lease := <-leases
		start := time.Now()
		lease.Release()
		took = append(took, time.Since(start), ask())
	}
	b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
	cancel()
	wg.Wait()
}

func name(kind string, i int) string { return kind + strconv.Itoa(i) }

// BenchmarkPool is a decision about a pool, with room at all models and with room at none.
func BenchmarkPool(b *testing.B) {
	for _, models := range []int{8, 512} {
		for _, busy := range []bool{false, true} {
			b.Run("models="+strconv.Itoa(models)+"/busy="+strconv.FormatBool(busy), func(b *testing.B) {
				c := New(Config{})
				names := make([]string, models)
				for i := range names {
					names[i] = name("model", i)
					c.SetLimits(names[i], Limits{MaxConcurrent: 1, TokensPerMinute: 1 << 30})
				}
				c.SetPools(map[string][]string{"auto": names})
				for range models {
					if busy {
						_, _, _ = c.Schedule(b.Context(), TaskRequest{Pool: "auto", Tokens: 100, Lease: time.Hour})
					}
				}
				b.ReportAllocs()
				for b.Loop() {
					task, wait, err := c.Schedule(b.Context(), TaskRequest{Pool: "auto", Tokens: 100})
					if err != nil || (wait > 0) != busy {
						b.Fatal(wait, err)
					}
					_ = c.Complete(b.Context(), "", task.ID, -1)
				}
			})
		}
	}
}
