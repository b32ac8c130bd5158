package redis

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// BenchmarkOutage stops a Redis for 10 s under load and reports what that adds to an admission. 32
// callers, each of whom holds a lease for a millisecond, go through a Controller. Its model has
// room for all of them. The benchmark measures before the outage, during it and after it. The
// figures are of the slowest of a hundred and of the slowest of all. over counts moments with more
// leases than the limit.
func BenchmarkOutage(b *testing.B) {
	const limit, callers = 64, 32
	for range b.N {
		server := redistest.Start(b)
		s := stores(b, 1, Config{Timeout: defaultTimeout}, server)[0]
		c := admission.New(admission.Config{Shared: s, Gateway: "bench"})
		c.SetLimits("m", admission.Limits{MaxConcurrent: limit})
		for _, phase := range []struct {
			name  string
			begin func()
			lasts time.Duration
		}{
			{"before", func() {}, 2 * time.Second},
			{"stopped", server.Pause, 10 * time.Second},
			{"after", server.Resume, 2 * time.Second},
		} {
			took, over := load(b, c, phase.begin, callers, limit, phase.lasts)
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms-"+phase.name)
			b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "most-ms-"+phase.name)
			b.ReportMetric(float64(over), "over-"+phase.name)
		}
	}
}

// load has callers come and go, and says how long each admission took and how often there were too
// many.
func load(b *testing.B, c *admission.Controller, begin func(), callers, limit int, lasts time.Duration) (all []time.Duration, over int64) {
	b.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var running, exceeded atomic.Int64
	stop := make(chan struct{})
	for range callers {
		wg.Go(func() {
			var own []time.Duration
			defer func() {
				mu.Lock()
				all = append(all, own...)
				mu.Unlock()
			}()
			for {
				select {
				case <-stop:
					return
				default:
				}
				began := time.Now()
				lease, err := c.Admit(context.Background(), admission.Request{Model: "m", Tenant: "t", Tokens: 1})
				if err != nil {
					b.Error(fmt.Errorf("not admitted: %w", err))
					return
				}
				own = append(own, time.Since(began))
				if running.Add(1) > int64(limit) {
					exceeded.Add(1)
				}
				time.Sleep(time.Millisecond)
				running.Add(-1)
				lease.Release()
			}
		})
	}
	begin()
	time.Sleep(lasts)
	close(stop)
	wg.Wait()
	return all, exceeded.Load()
}
