package admission

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestExactlyTheBudget: of 2,000 callers at once exactly 100 are admitted. The others follow as
// those end, and never more than 100 run.
func TestExactlyTheBudget(t *testing.T) {
	t.Parallel()
	const callers, budget = 2000, 100
	c := New(Config{})
	c.SetLimits("chat", Limits{MaxConcurrent: budget, MaxQueue: callers, QueueTimeout: time.Hour})
	var inside, entered atomic.Int64
	gate := make(chan struct{})
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			lease, err := c.Admit(t.Context(), Request{Model: "chat", Bytes: 100})
			if err != nil {
				t.Error(err)
				return
			}
			if n := inside.Add(1); n > budget {
				t.Errorf("%d inside", n)
			}
			entered.Add(1)
			<-gate
			inside.Add(-1)
			lease.Release()
			lease.Release()
		})
	}
	for c.Stats("chat").Queued != callers-budget || entered.Load() != budget {
		if t.Failed() {
			break
		}
		runtime.Gosched()
	}
	if got, want := c.Stats("chat"), (Stats{InFlight: budget, Queued: callers - budget, QueuedBytes: 100 * (callers - budget), Tokens: -1, Share: budget}); got != want {
		t.Errorf("Stats = %+v, want %+v", got, want)
	}
	close(gate)
	wg.Wait()
	if got := c.Stats("chat"); got != (Stats{Tokens: -1}) || entered.Load() != callers {
		t.Errorf("%d of %d entered, in the end %+v", entered.Load(), callers, got)
	}
}

// stressTest is two models with slots, and many callers that come, end, time out and cancel at
// random.
type stressTest struct {
	*Controller
	t *testing.T
	// most are the limits of concurrency: the larger one while a change is under way.
	most   [2]atomic.Int64
	inside [2]atomic.Int64
	slots  [2]atomic.Int64
	// tenants counts the running requests of each tenant. maxPerTenant is their limit.
	tenants [stressTenants]atomic.Int64
	ended   atomic.Int64
	// reasons counts refusals.
	reasons [Stale + 1]atomic.Int64
	// preempted counts preempted leases.
	preempted atomic.Int64
}

const (
	stressSlots   = 60
	stressTenants = 5
	maxPerTenant  = 40
)

var stressModels = [2]string{"chat", "embed"}

// reserve counts a request when it gets its slot, which is with Controller.mu held.
func (c *stressTest) reserve(m int) (Slot, bool) {
	for {
		free := c.slots[m].Load()
		if free == 0 {
			return Slot{}, false
		}
		if c.slots[m].CompareAndSwap(free, free-1) {
			break
		}
	}
	if n := c.inside[m].Add(1); n > c.most[m].Load() {
		c.t.Errorf("%d inside, at most %d may be", n, c.most[m].Load())
	}
	return Slot{}, true
}

func (c *stressTest) releaseSlot(m int) {
	c.inside[m].Add(-1)
	if c.slots[m].Add(1) > stressSlots {
		c.t.Error("a slot was given back twice")
	}
}

// runRequest is one request, which comes again while it is preempted.
func (c *stressTest) runRequest(random *rand.Rand) {
	defer c.ended.Add(1)
	m, tenant := random.IntN(2), random.IntN(stressTenants)
	ctx, cancel := context.WithTimeout(c.t.Context(), pause(random, 3*time.Second))
	defer cancel()
	r := Request{
		Model:    stressModels[m],
		Tenant:   name("tenant", tenant),
		Priority: Priority(random.IntN(3) - 1),
		Tokens:   random.IntN(300),
		Bytes:    random.IntN(5000),
		Timeout:  pause(random, 3*time.Second),
		Prefill:  random.IntN(2) == 0,
		Locked:   LockedHooks{ReserveSlot: func(model string) (Slot, bool) { m = slices.Index(stressModels[:], model); return c.reserve(m) }},
		Unlocked: UnlockedHooks{ReleaseSlot: func() { c.releaseSlot(m) },
			OnWait: func() { time.Sleep(pause(random, time.Millisecond)) }},
	}
	if random.IntN(3) == 0 {
		r.Model, r.Pool = "", "auto"
		if random.IntN(3) == 0 {
			only := stressModels[random.IntN(2)]
			r.Locked.Allowed = func(model string) bool { return model == only }
		}
	}
	preemptible := random.IntN(2) == 0
	for c.admitOnce(ctx, random, r, stressCaller{tenant, &m, preemptible}) {
		c.preempted.Add(1)
		r.Preempted = true
	}
}

// stressCaller is the tenant of a request, the model that it got, and whether it may be preempted.
type stressCaller struct {
	tenant      int
	model       *int
	preemptible bool
}

// admitOnce gets one lease, or none. It returns true if that was preempted.
func (c *stressTest) admitOnce(ctx context.Context, random *rand.Rand, r Request, v stressCaller) (preempted bool) {
	asked := make(chan struct{}, 1)
	if v.preemptible {
		r.Unlocked.OnPreempt = func() {
			select {
			case asked <- struct{}{}:
			default:
				c.t.Error("preempted twice")
			}
		}
	}
	lease, err := c.Admit(ctx, r)
	var refused *Refused
	switch {
	case err == nil:
		if n := c.tenants[v.tenant].Add(1); n > maxPerTenant {
			c.t.Errorf("%d of a tenant at once", n)
		}
		select {
		case <-time.After(pause(random, 200*time.Millisecond)):
		case <-asked:
		}
		preempted = !lease.FirstToken()
		lease.Correct(random.IntN(400))
		c.tenants[v.tenant].Add(-1)
		c.releaseSlot(*v.model)
		lease.Release()
		lease.Release()
		return preempted
	case errors.As(err, &refused) && refused.RetryAfter > 0:
		if c.reasons[refused.Reason].Add(1); r.Preempted {
			c.t.Errorf("a preempted one was refused: %v", refused.Reason)
		}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, ErrTimeout), errors.Is(err, ErrNeverFits):
	default:
		c.t.Errorf("unexpected: %v", err)
	}
	return false
}

// runTask schedules a task, and completes it, renews it or lets it expire.
func (c *stressTest) runTask(random *rand.Rand) {
	defer c.ended.Add(1)
	r := TaskRequest{Model: "task", Tenant: name("tenant", random.IntN(stressTenants)), Tokens: random.IntN(50), Lease: pause(random, time.Second)}
	if random.IntN(2) == 0 {
		r.MaxWait = pause(random, time.Second)
	}
	task, wait, err := c.Schedule(c.t.Context(), r)
	switch {
	case err != nil || wait < 0 || (wait == 0) == (task.ID == ""):
		c.t.Errorf("%+v, %v, %v", task, wait, err)
	case wait == 0 && random.IntN(3) > 0:
		time.Sleep(pause(random, 700*time.Millisecond))
		if err := c.Complete(c.t.Context(), r.Tenant, task.ID, random.IntN(80)); err != nil && time.Now().Before(task.Expires) {
			c.t.Error(err)
		}
	}
}

// changeLimits changes a model's limits.
func (c *stressTest) changeLimits(random *rand.Rand, m int) {
	before, now := c.most[m].Load(), int64(1+random.IntN(stressSlots+20))
	c.most[m].Store(max(before, now))
	c.SetLimits(stressModels[m], Limits{
		Weight: random.IntN(4), MaxConcurrent: int(now), TokensPerMinute: []int{0, 200, 60_000}[random.IntN(3)], MaxQueue: 1 + random.IntN(550),
	})
	c.most[m].Store(now)
}

func pause(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(1 + random.Int64N(int64(most)))
}

// TestCrowd lets everything happen at once, in virtual time. No limit is exceeded at any moment,
// every call ends, and afterwards no lease, slot or byte is left.
func TestCrowd(t *testing.T) {
	t.Parallel()
	const callers = 3000
	synctest.Test(t, func(t *testing.T) {
		c := &stressTest{Controller: New(Config{MaxQueueBytes: 1 << 20, Ageing: 100 * time.Millisecond}), t: t}
		c.SetLimits("task", Limits{MaxConcurrent: 5, TokensPerMinute: 5000})
		c.SetPools(map[string][]string{"auto": stressModels[:]})
		limits := map[string]TenantLimits{}
		for i := range stressTenants {
			limits[name("tenant", i)] = TenantLimits{Weight: i, MaxConcurrent: maxPerTenant, MaxPrefill: 8, RequestsPerMinute: 1000 * i, MaxQueueBytes: 1 << 18}
		}
		c.SetTenants(limits)
		random := rand.New(rand.NewPCG(2, 2))
		for m := range stressModels {
			c.slots[m].Store(stressSlots)
			c.changeLimits(random, m)
		}
		var wg sync.WaitGroup
		for i := range uint64(callers) {
			if i%50 == 0 {
				time.Sleep(pause(random, 100*time.Millisecond))
				c.changeLimits(random, random.IntN(2))
				c.RetryWaiters(stressModels[random.IntN(2)])
			}
			own := rand.New(rand.NewPCG(i, 3))
			wg.Go(func() {
				if own.IntN(10) == 0 {
					c.runTask(own)
				} else {
					c.runRequest(own)
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second) // tasks expire
		for _, r := range []Reason{TenantStreams, QueueFull, Evicted, ModelTokens} {
			if c.reasons[r].Load() == 0 {
				t.Errorf("nobody was refused because: %v", r)
			}
		}
		for i := range stressTenants {
			got := c.Tenant(name("tenant", i))
			if got.Quota = (Quota{}); got != (TenantStats{}) {
				t.Errorf("tenant %d: left over: %+v", i, got)
			}
		}
		if got := c.Stats("task"); got.InFlight != 0 || len(c.tasks.byID)+len(c.tasks.expiring) != 0 {
			t.Errorf("tasks left over: %+v", got)
		}
		if c.preempted.Load() == 0 {
			t.Error("nobody was preempted")
		}
		if c.ended.Load() != callers {
			t.Errorf("%d of %d calls ended", c.ended.Load(), callers)
		}
		for m, model := range stressModels {
			got := c.Stats(model)
			if got.InFlight != 0 || got.Queued != 0 || got.QueuedBytes != 0 || c.slots[m].Load() != stressSlots {
				t.Errorf("%s: left over: %+v, %d of %d slots free", model, got, c.slots[m].Load(), stressSlots)
			}
		}
		if held := waitingBytesOf(c.Controller); held != 0 {
			t.Errorf("%d bytes held in the end", held)
		}
	})
}

// TestAbortRacesWithAdmission: a release and a cancellation race in real time. Whichever is first,
// leases and slots balance.
func TestAbortRacesWithAdmission(t *testing.T) {
	t.Parallel()
	const rounds = 3000
	c := New(Config{})
	c.SetLimits("chat", Limits{MaxConcurrent: 1})
	var placed, unplaced, admitted atomic.Int64
	for round := range rounds {
		holder, err := c.Admit(t.Context(), Request{Model: "chat"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, abort := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			lease, err := c.Admit(ctx, Request{
				Model:  "chat",
				Locked: LockedHooks{ReserveSlot: func(string) (Slot, bool) { placed.Add(1); return Slot{}, true }},
				Unlocked: UnlockedHooks{ReleaseSlot: func() { unplaced.Add(1) },
					OnWait: func() {
						rivals := []func(){abort, holder.Release}
						wg.Go(rivals[round%2])
						wg.Go(rivals[1-round%2])
						for range round % 7 {
							runtime.Gosched()
						}
					}},
			})
			if err == nil {
				admitted.Add(1)
				lease.Release()
			} else if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		wg.Wait()
		abort()
		if got := c.Stats("chat"); got != (Stats{Tokens: -1}) {
			t.Fatalf("left over: %+v", got)
		}
	}
	if placed.Load() != unplaced.Load()+admitted.Load() {
		t.Errorf("%d placed, but %d given back and %d used", placed.Load(), unplaced.Load(), admitted.Load())
	}
	t.Logf("of %d: %d admitted, %d given back, %d never placed", rounds, admitted.Load(), unplaced.Load(), rounds-placed.Load())
}
