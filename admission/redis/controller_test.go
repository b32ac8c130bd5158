package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/admission/admissiontest"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// controllers returns the Controllers of n gateways of one deployment.
func controllers(t *testing.T, n int, deployment string, servers ...*redistest.Server) []*admission.Controller {
	t.Helper()
	var all []*admission.Controller
	for _, s := range stores(t, n, Config{Deployment: deployment, Timeout: 2 * time.Second}, servers...) {
		all = append(all, admission.New(admission.Config{Shared: s, Gateway: s.cfg.Gateway}))
	}
	return all
}

// TestContract is the contract of every Controller, with this store.
func TestContract(t *testing.T) {
	t.Parallel()
	for name, start := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := start(t)
			var deployments atomic.Int64
			admissiontest.Run(t, func(t *testing.T) *admission.Controller {
				return controllers(t, 1, fmt.Sprint("contract", deployments.Add(1)), all...)[0]
			})
		})
	}
}

// TestLikeInProcess: a Controller with this store answers like one without, for the same requests
// in turn. Buckets fill too slowly to matter meanwhile.
func TestLikeInProcess(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := &controllerPair{Rand: rand.New(rand.NewPCG(seed, 3)), t: t, seen: map[string]int{},
				alone: admission.New(admission.Config{}), shared: controllers(t, 1, fmt.Sprint("like", seed), server)[0]}
			for i := range 400 {
				if i%80 == 0 {
					p.limits()
				}
				p.step(i)
			}
			t.Log(p.seen)
			for _, what := range []string{"lease", admission.TenantRequests.String(), admission.TenantTokens.String()} {
				if p.seen[what] == 0 {
					t.Errorf("never seen: %s", what)
				}
			}
		})
	}
}

// controllerPair is a Controller without a store and one with a store.
type controllerPair struct {
	*rand.Rand
	t             *testing.T
	alone, shared *admission.Controller
	leases        [][2]*admission.Lease
	ended         [][2]*admission.Lease
	seen          map[string]int
}

func (p *controllerPair) both(f func(c *admission.Controller)) { f(p.alone); f(p.shared) }

func (p *controllerPair) limits() {
	for i := range 3 {
		// The sizes of buckets stay: in process a change takes effect at once, in the store with
		// the next claim.
		l := admission.Limits{MaxConcurrent: p.IntN(12), TokensPerMinute: i * 500, MaxQueue: -1}
		p.both(func(c *admission.Controller) { c.SetLimits(fmt.Sprint("m", i), l) })
	}
	tenants := map[string]admission.TenantLimits{}
	for i := range 3 {
		tenants[fmt.Sprint("t", i)] = admission.TenantLimits{RequestsPerMinute: i % 2 * 30, TokensPerMinute: i / 2 * 300, MaxConcurrent: p.IntN(3) * 4}
	}
	p.both(func(c *admission.Controller) { c.SetTenants(tenants) })
}

// pairOutcome is the outcome of a request, without jitter and times.
type pairOutcome struct {
	what  string
	quota admission.Quota
}

func (p *controllerPair) ask(c *admission.Controller, r admission.Request) (*admission.Lease, pairOutcome) {
	lease, err := c.Admit(p.t.Context(), r)
	var refused *admission.Refused
	var o pairOutcome
	switch {
	case err == nil:
		o = pairOutcome{"lease", lease.Quota()}
	case errors.As(err, &refused):
		o = pairOutcome{refused.Reason.String(), refused.Quota}
	default:
		o.what = err.Error()
	}
	// The two are asked milliseconds apart, so one may round to another second.
	o.quota.Requests.Reset, o.quota.Tokens.Reset = 0, 0
	return lease, o
}

func (p *controllerPair) step(i int) {
	p.t.Helper()
	switch {
	case p.IntN(3) > 0 || len(p.leases) == 0:
		r := admission.Request{Model: fmt.Sprint("m", p.IntN(3)), Tenant: fmt.Sprint("t", p.IntN(3)), Tokens: 10}
		alone, want := p.ask(p.alone, r)
		shared, got := p.ask(p.shared, r)
		p.seen[want.what]++
		if got.what == admission.QueueFull.String() && alone == nil {
			// it knows that the model has no tokens, and need not ask about the tenant
			got.what = want.what
		}
		if want.what != got.what || alone != nil && (!near(want.quota.Tokens, got.quota.Tokens) || !near(want.quota.Requests, got.quota.Requests)) {
			p.t.Fatalf("step %d, %+v: in process %+v, shared %+v\n%s", i, r, want, got, cmp.Diff(want.what, got.what))
		}
		if alone != nil {
			p.leases = append(p.leases, [2]*admission.Lease{alone, shared})
		}
	case p.IntN(3) == 0 && len(p.ended) > 0:
		actual := 10 + p.IntN(20) // never less: a gateway does not ask for tokens before their time
		last := p.ended[len(p.ended)-1]
		last[0].Correct(actual)
		last[1].Correct(actual)
	default:
		n := p.IntN(len(p.leases))
		both := p.leases[n]
		p.leases = append(p.leases[:n], p.leases[n+1:]...)
		if p.IntN(2) == 0 {
			// never less: a gateway does not ask for tokens before their time
			actual := 10 + p.IntN(20)
			both[0].Correct(actual)
			both[1].Correct(actual)
		}
		both[0].Release()
		both[1].Release()
		p.ended = append(p.ended, both)
	}
}

// near allows for what a bucket gains between the two questions.
func near(a, b admission.Allowance) bool {
	return a.Limit == b.Limit && a.Remaining-b.Remaining <= 2 && b.Remaining-a.Remaining <= 2
}

// raiseMax makes most at least n.
func raiseMax(most *atomic.Int64, n int64) {
	for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
	}
}

// TestThreeGateways: of 2,000 callers at three gateways never more than 100 run at once, and all
// are admitted in the end.
func TestThreeGateways(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := controllers(t, 3, "three", server)
	for _, c := range all {
		c.SetLimits("chat", admission.Limits{MaxConcurrent: 100, MaxQueue: 5000, QueueTimeout: testPatience})
	}
	var inside, most, served atomic.Int64
	var wg sync.WaitGroup
	for i := range 2000 {
		wg.Go(func() {
			lease, err := all[i%3].Admit(t.Context(), admission.Request{Model: "chat", Tenant: fmt.Sprint(i % 7), Tokens: 5})
			if err != nil {
				t.Error(err)
				return
			}
			raiseMax(&most, inside.Add(1))
			time.Sleep(time.Millisecond)
			inside.Add(-1)
			served.Add(1)
			lease.Release()
		})
	}
	wg.Wait()
	if served.Load() != 2000 || most.Load() > 100 {
		t.Errorf("%d served, %d at once", served.Load(), most.Load())
	}
	t.Logf("at most %d at once", most.Load())
}

// TestSharesOverGateways: two gateways whose tenants want all they can get share tokens by their
// tenants' weights, whichever asks more.
func TestSharesOverGateways(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := controllers(t, 2, "shares", server)
	var served [2]atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, c := range all {
		c.SetLimits("chat", admission.Limits{MaxConcurrent: 4, MaxQueue: 5000, QueueTimeout: testPatience})
		for w := range 40 {
			tenant := w % 2
			wg.Go(func() {
				for ctx.Err() == nil {
					lease, err := c.Admit(ctx, admission.Request{Model: "chat", Tenant: fmt.Sprint(tenant), Tokens: 10})
					if err != nil {
						return
					}
					time.Sleep(2 * time.Millisecond)
					served[tenant].Add(10)
					lease.Release()
				}
			})
		}
	}
	eventually(t, "they are served", func() bool { return served[0].Load()+served[1].Load() > 20_000 })
	stop()
	wg.Wait()
	a, b := served[0].Load(), served[1].Load()
	if a*10 < b*9 || b*10 < a*9 {
		t.Errorf("%d and %d tokens of equal tenants", a, b)
	}
}

// TestPause: two gateways go on through a pause of Redis, each with its part. From the moment when
// both are back the limit holds.
func TestPause(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const limit, workers = 10, 40
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var inside, most, served, slowest atomic.Int64
	both := stores(t, 2, Config{}, server)
	for _, s := range both {
		c := admission.New(admission.Config{Shared: s, Gateway: s.cfg.Gateway})
		c.SetLimits("chat", admission.Limits{MaxConcurrent: limit, QueueTimeout: testPatience})
		for range workers / len(both) {
			wg.Go(func() {
				for ctx.Err() == nil {
					began := time.Now()
					lease, err := c.Admit(ctx, admission.Request{Model: "chat", Tenant: "acme", Tokens: 1})
					if err != nil {
						return
					}
					raiseMax(&slowest, int64(time.Since(began)))
					raiseMax(&most, inside.Add(1))
					time.Sleep(time.Duration(1+rand.IntN(10)) * time.Millisecond)
					inside.Add(-1)
					served.Add(1)
					lease.Release()
				}
			})
		}
	}
	serve := func(n int64) {
		t.Helper()
		before := served.Load()
		eventually(t, "they are served", func() bool { return served.Load() > before+n })
	}
	serve(200)
	t.Logf("before: at most %d inside, slowest %v", most.Load(), time.Duration(slowest.Swap(0)))
	most.Store(0)
	server.Pause()
	eventually(t, "both are alone", func() bool { return !both[0].Status().Up && !both[1].Status().Up })
	serve(200)
	time.Sleep(2 * time.Second) // the pause
	t.Logf("paused: at most %d inside, slowest %v", most.Load(), time.Duration(slowest.Swap(0)))
	server.Resume()
	lost := func() int64 { return both[0].Status().Errors + both[1].Status().Errors }
	eventually(t, "both are back and stay, which a busy machine may prevent", func() bool {
		before := lost()
		if !both[0].Status().Up || !both[1].Status().Up {
			return false
		}
		most.Store(0)
		serve(500)
		return lost() == before
	})
	after := most.Load()
	stop()
	wg.Wait()
	t.Logf("after: at most %d inside, slowest %v", after, time.Duration(slowest.Load()))
	if after > limit {
		t.Errorf("%d inside at once, the limit is %d", after, limit)
	}
	wantInUse(t, server, "chat", 0)
}
