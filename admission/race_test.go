package admission

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestExactlyTheBudget: of 2,000 callers at once exactly 100 get in; the others follow as those end, and never more than 100
// are in.
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
	if got, want := c.Stats("chat"), (Stats{budget, callers - budget, 100 * (callers - budget), -1}); got != want {
		t.Errorf("Stats = %+v, want %+v", got, want)
	}
	close(gate)
	wg.Wait()
	if got := c.Stats("chat"); got != (Stats{Tokens: -1}) || entered.Load() != callers {
		t.Errorf("%d of %d entered, in the end %+v", entered.Load(), callers, got)
	}
}

// crowd is a few models with slots, and many callers that come, go, give up and hold on as they like.
type crowd struct {
	*Controller
	t *testing.T
	// most are the concurrency limits of the moment: the larger one while a change is on its way.
	most   [2]atomic.Int64
	inside [2]atomic.Int64
	slots  [2]atomic.Int64
	ended  atomic.Int64
}

const crowdSlots = 60

var crowdModels = [2]string{"chat", "embed"}

// place counts a request in when it is placed, so under the model's lock.
func (c *crowd) place(m int) bool {
	for {
		free := c.slots[m].Load()
		if free == 0 {
			return false
		}
		if c.slots[m].CompareAndSwap(free, free-1) {
			break
		}
	}
	if n := c.inside[m].Add(1); n > c.most[m].Load() {
		c.t.Errorf("%d inside, at most %d may be", n, c.most[m].Load())
	}
	return true
}

func (c *crowd) leave(m int) {
	c.inside[m].Add(-1)
	if c.slots[m].Add(1) > crowdSlots {
		c.t.Error("a slot was given back twice")
	}
}

// call is one caller's visit.
func (c *crowd) call(random *rand.Rand) {
	defer c.ended.Add(1)
	m := random.IntN(2)
	ctx, cancel := context.WithTimeout(c.t.Context(), pause(random, 3*time.Second))
	defer cancel()
	lease, err := c.Admit(ctx, Request{
		Model:   crowdModels[m],
		Tokens:  random.IntN(300),
		Bytes:   random.IntN(5000),
		Timeout: pause(random, 3*time.Second),
		Place:   func() bool { return c.place(m) },
		Unplace: func() { c.leave(m) },
		OnWait:  func() { time.Sleep(pause(random, time.Millisecond)) },
	})
	var limited *RateLimited
	switch {
	case err == nil:
		time.Sleep(pause(random, 200*time.Millisecond))
		c.leave(m)
		lease.Release()
		lease.Release()
	case errors.As(err, &limited) && limited.RetryAfter > 0:
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, ErrQueueFull), errors.Is(err, ErrTimeout), errors.Is(err, ErrNeverFits):
	default:
		c.t.Errorf("unexpected: %v", err)
	}
}

// tune changes a model's limits.
func (c *crowd) tune(random *rand.Rand, m int) {
	before, now := c.most[m].Load(), int64(1+random.IntN(crowdSlots+20))
	c.most[m].Store(max(before, now))
	c.SetLimits(crowdModels[m], Limits{
		MaxConcurrent: int(now), TokensPerMinute: []int{0, 200, 60_000}[random.IntN(3)], MaxQueue: 1 + random.IntN(900),
	})
	c.most[m].Store(now)
}

func pause(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(1 + random.Int64N(int64(most)))
}

// TestCrowd lets everything happen at once, on virtual time: no limit is exceeded at any moment, everybody's call ends, and
// afterwards nothing is left: no lease, no slot, no byte.
func TestCrowd(t *testing.T) {
	t.Parallel()
	const callers = 3000
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{Controller: New(Config{MaxQueueBytes: 1 << 20}), t: t}
		random := rand.New(rand.NewPCG(2, 2))
		for m := range crowdModels {
			c.slots[m].Store(crowdSlots)
			c.tune(random, m)
		}
		var wg sync.WaitGroup
		for i := range uint64(callers) {
			if i%50 == 0 {
				time.Sleep(pause(random, 100*time.Millisecond))
				c.tune(random, random.IntN(2))
				c.Kick(crowdModels[random.IntN(2)])
			}
			wg.Go(func() { c.call(rand.New(rand.NewPCG(i, 3))) })
		}
		wg.Wait()
		if c.ended.Load() != callers {
			t.Errorf("%d of %d calls ended", c.ended.Load(), callers)
		}
		for m, model := range crowdModels {
			got := c.Stats(model)
			if got.InFlight != 0 || got.Queued != 0 || got.QueuedBytes != 0 || c.slots[m].Load() != crowdSlots {
				t.Errorf("%s: left over: %+v, %d of %d slots free", model, got, c.slots[m].Load(), crowdSlots)
			}
		}
		if held := heldNow(c.Controller); held != 0 {
			t.Errorf("%d bytes held in the end", held)
		}
	})
}

// TestAbortRacesWithAdmission: a release and an abort at the same time, for real. Whoever wins, lease and slot come out even.
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
				Model:   "chat",
				Place:   func() bool { placed.Add(1); return true },
				Unplace: func() { unplaced.Add(1) },
				OnWait: func() {
					rivals := []func(){abort, holder.Release}
					wg.Go(rivals[round%2])
					wg.Go(rivals[1-round%2])
					for range round % 7 {
						runtime.Gosched()
					}
				},
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
