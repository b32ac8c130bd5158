package admission

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// newPoolController has a pool "auto" of the models m0, m1, … with these weights.
func newPoolController(t *testing.T, l Limits, weights ...int) testController {
	d := testController{New(Config{}), t}
	var models []string
	for i, w := range weights {
		l.Weight = w
		models = append(models, fmt.Sprint("m", i))
		d.SetLimits(models[i], l)
	}
	d.SetPools(map[string][]string{"auto": models})
	return d
}

func (d testController) startInPool(tokens int) *admitCall {
	d.t.Helper()
	return d.start(d.t.Context(), Request{Pool: "auto", Tokens: tokens})
}

// shares returns the fractions of the sum.
func shares(tokens []int) []float64 {
	sum, parts := 0, make([]float64, len(tokens))
	for _, n := range tokens {
		sum += n
	}
	for i, n := range tokens {
		parts[i] = float64(n) / float64(sum)
	}
	return parts
}

func wantShares(t *testing.T, got []int, want ...float64) {
	t.Helper()
	for i, part := range shares(got) {
		if math.Abs(part-want[i]) > 0.02 {
			t.Errorf("%v tokens are shares of %.3f, want %v", got, shares(got), want)
			return
		}
	}
}

// referencePool is weighted deficit round robin over models as the paper tells it. quantum is that
// of the round.
type referencePool struct {
	weights, deficits []int
	at                int
	visited           bool
	quantum, largest  int
}

func (n *referencePool) choose(cost int, room func(int) bool) int {
	n.largest = max(n.largest-(n.largest+63)/64, cost)
	at, visited := n.at, n.visited
	if !slices.ContainsFunc([]int{0, 1, 2, 3}, room) {
		return -1
	}
	for range 1000 {
		if n.at == 0 && !n.visited || n.quantum == 0 {
			n.quantum = n.largest
		}
		if room(n.at) {
			visit := n.quantum * n.weights[n.at] / slices.Min(n.weights)
			if !n.visited {
				n.deficits[n.at] = max(min(n.deficits[n.at]+visit, 2*visit), n.deficits[n.at])
			}
			n.visited = true
			if n.deficits[n.at] >= cost {
				n.deficits[n.at] -= cost
				return n.at
			}
		}
		n.at, n.visited = (n.at+1)%len(n.weights), false
	}
	n.at, n.visited = at, visited
	return -1
}

func TestPoolAgainstNaive(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 7))
		n := &referencePool{deficits: make([]int, 4)}
		p := &pool{minWeight: maxWeight}
		for range 4 {
			w := 1 + random.IntN(6)
			n.weights = append(n.weights, w)
			g := &gate{}
			g.usage.limits.Weight = w
			p.memberships = append(p.memberships, &membership{gate: g})
			p.minWeight = min(p.minWeight, int64(w))
		}
		for step := range 500 {
			cost := 1 + random.IntN(1<<random.IntN(12))
			rooms := random.IntN(16) | random.IntN(16)
			want := n.choose(cost, func(i int) bool { return rooms>>i&1 == 1 })
			index := func(g *gate) int {
				return slices.IndexFunc(p.memberships, func(m *membership) bool { return m.gate == g })
			}
			got := -1
			if m := p.pick(int64(cost), func(g *gate) bool { return rooms>>index(g)&1 == 1 }, func(*gate) bool { return true }); m != nil {
				got = index(m.gate)
			}
			if got != want {
				t.Fatalf("seed %d, step %d: model %d, want %d", seed, step, got, want)
			}
		}
	}
}

func TestPoolShares(t *testing.T) {
	t.Parallel()
	for name, cost := range map[string]func(*rand.Rand) int{
		"equal":  func(*rand.Rand) int { return 1000 },
		"random": func(r *rand.Rand) int { return 1 + r.IntN(2000) },
		"mixed":  func(r *rand.Rand) int { return []int{1, 5, 30, 10_000}[r.IntN(4)] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newPoolController(t, Limits{MaxConcurrent: 1000}, 5, 3, 2)
				random := rand.New(rand.NewPCG(8, 8))
				got := make([]int, 3)
				for range 4000 {
					n := cost(random)
					l, err := d.Admit(t.Context(), Request{Pool: "auto", Tokens: n})
					if err != nil {
						t.Fatal(err)
					}
					got[l.Model()[1]-'0'] += n
					l.Release()
				}
				wantShares(t, got, 0.5, 0.3, 0.2)
			})
		})
	}
}

// TestPoolPollers has two callers of Schedule, of which one asks ten times as often as the other.
// Every model has one lease, so most calls are refused. No refused call may change what comes next.
func TestPoolPollers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newPoolController(t, Limits{MaxConcurrent: 2}, 5, 3, 2)
		got := make([]int, 3)
		tokens := [2]int{}
		for tick := range 6_000 {
			caller := 0
			if tick%11 == 0 {
				caller = 1
			}
			task, wait, err := d.Schedule(t.Context(), TaskRequest{Pool: "auto", Tenant: fmt.Sprint(caller), Tokens: 100})
			if err != nil || (wait > 0) == (task.ID != "") {
				t.Fatalf("%+v, %v, %v", task, wait, err)
			}
			if wait > 0 {
				continue
			}
			tokens[caller] += 100
			got[task.Model[1]-'0'] += 100
			if err := d.Complete(t.Context(), task.Tenant, task.ID, -1); err != nil {
				t.Fatal(err)
			}
			for i := range 10 { // always refused: there is never room for so many tokens
				_, wait, err := d.Schedule(t.Context(), TaskRequest{Pool: "auto", Tokens: 100, Allowed: func(string) bool { return false }})
				if wait <= 0 || err != nil {
					t.Fatal(i, wait, err)
				}
			}
		}
		wantShares(t, got, 0.5, 0.3, 0.2)
	})
}

// TestPoolFaults checks for five known faults of textbook weighted deficit round robin.
func TestPoolFaults(t *testing.T) {
	t.Parallel()
	hold := func(d testController, model string) *Lease {
		l, err := d.Admit(d.t.Context(), Request{Model: model})
		if err != nil {
			d.t.Fatal(err)
		}
		return l
	}
	count := func(d testController, n int) []int {
		got := make([]int, 3)
		for range n {
			l, err := d.Admit(d.t.Context(), Request{Pool: "auto", Tokens: 100})
			if err != nil {
				d.t.Fatal(err)
			}
			got[l.Model()[1]-'0'] += 100
			l.Release()
		}
		return got
	}
	t.Run("calls mint nothing", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			d := newPoolController(t, Limits{MaxConcurrent: 1, MaxQueue: -1}, 5, 3, 2)
			got := make([]int, 3)
			for range 2000 {
				for i, n := range count(d, 1) {
					got[i] += n
				}
				held := []*Lease{hold(d, "m0"), hold(d, "m1"), hold(d, "m2")}
				d.wantRefused(d.startInPool(100), errQueueFull, 0)
				for _, l := range held {
					l.Release()
				}
			}
			wantShares(t, got, 0.5, 0.3, 0.2)
		})
	})
	t.Run("idle deficits stay bounded", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			d := newPoolController(t, Limits{MaxConcurrent: 1}, 1, 1, 1)
			l := hold(d, "m2") // has no room for a long time
			count(d, 5000)
			l.Release()
			if got := count(d, 30); got[2] > 1300 {
				t.Errorf("after a long time without room it got %v", got)
			}
			for _, m := range d.pools["auto"].memberships {
				if m.deficit < 0 || m.deficit > 200 {
					t.Errorf("%s has a deficit of %d", m.gate.model, m.deficit)
				}
			}
		})
	})
	t.Run("the first does not win", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			wantShares(t, count(newPoolController(t, Limits{}, 5, 3, 2), 1000), 0.5, 0.3, 0.2)
			wantShares(t, count(newPoolController(t, Limits{}, 2, 3, 5), 1000), 0.2, 0.3, 0.5)
		})
	})
	t.Run("many models cost no more", func(t *testing.T) {
		t.Parallel()
		p := &pool{minWeight: 1}
		for range 512 {
			p.memberships = append(p.memberships, &membership{gate: &gate{}})
		}
		asked := 0
		for range 5120 {
			p.pick(100, func(*gate) bool { asked++; return true }, func(*gate) bool { return true })
		}
		if asked > 3*5120 {
			t.Errorf("%d looks for 5,120 decisions", asked)
		}
	})
	t.Run("what never fits is told so", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			d := newPoolController(t, Limits{TokensPerMinute: 60}, 1, 1)
			d.wantRefused(d.startInPool(61), ErrNeverFits, 0)
			d.SetLimits("m1", Limits{TokensPerMinute: 100})
			c := d.startInPool(61) // the larger bucket has the level of the smaller one
			time.Sleep(time.Second)
			d.wantAdmitted(c, 600*time.Millisecond)
			if got := c.state().lease.Model(); got != "m1" {
				t.Errorf("went to %s, which never has so many tokens", got)
			}
		})
	})
}

// TestPoolQueue: a request that finds no model with room waits for all of them, beside the waiters
// of each model.
func TestPoolQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newPoolController(t, Limits{MaxConcurrent: 1}, 1, 1)
		held := []*admitCall{d.startInPool(1), d.startInPool(1)}
		if a, b := held[0].state().lease.Model(), held[1].state().lease.Model(); a == b {
			t.Fatalf("both went to %s", a)
		}
		own := []*admitCall{}
		for range 4 {
			own = append(own, d.start(t.Context(), Request{Model: "m0", Tokens: 10}))
		}
		pooled := []*admitCall{d.startInPool(20), d.startInPool(10), d.startInPool(10)}
		d.wantWaiting(append(own, pooled...)...)
		only1 := d.start(t.Context(), Request{Pool: "auto", Locked: LockedHooks{Allowed: func(m string) bool { return m == "m1" }}})
		at := func(model string) *admitCall {
			for _, c := range append(append(held, own...), append(pooled, only1)...) {
				if l := c.state().lease; l != nil && l.Model() == model && !l.released {
					return c
				}
			}
			t.Fatal("nobody is at " + model)
			return nil
		}
		// m0 shares by tokens: 10 of its own, 20 of the pool, 10 and 10 of its own …
		for _, want := range []*admitCall{own[0], pooled[0], own[1], own[2], pooled[1]} {
			at("m0").release()
			synctest.Wait()
			if at("m0") != want {
				t.Fatal("not in turn")
			}
		}
		at("m1").release()
		d.wantAdmitted(pooled[2], 0)
		at("m0").release()
		d.wantAdmitted(own[3], 0)
		at("m0").release() // the last waiter of the pool may not go there
		d.wantWaiting(only1)
		at("m1").release()
		d.wantAdmitted(only1, 0)
	})
}

func TestPoolsChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newPoolController(t, Limits{MaxConcurrent: 1}, 1, 1)
		d.wantRefused(d.start(t.Context(), Request{Pool: "nobody"}), ErrUnknownModel, 0)
		d.startInPool(1)
		d.startInPool(1)
		waiting := d.startInPool(1)
		d.Remove("m0")
		d.wantWaiting(waiting)
		d.SetLimits("m2", Limits{})
		d.wantWaiting(waiting)
		d.SetPools(map[string][]string{"auto": {"m1", "m2", "unknown", "m2"}})
		d.wantAdmitted(waiting, 0)
		d.SetPools(map[string][]string{"auto": {"m1"}})
		second := d.startInPool(1)
		d.wantWaiting(second)
		d.Remove("m1")
		d.wantRefused(second, ErrRemoved, 0)
		d.wantRefused(d.startInPool(1), ErrUnknownModel, 0)
		d.SetLimits("m1", Limits{MaxConcurrent: 1})
		third := d.startInPool(1)
		d.wantWaiting(third)
		d.SetPools(nil)
		d.wantRefused(third, ErrRemoved, 0)
		d.wantRefused(d.startInPool(1), ErrUnknownModel, 0)
	})
}

// TestPoolWaitsForReplicas: no model is allowed now, because none has a replica. Then one is.
func TestPoolWaitsForReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newPoolController(t, Limits{}, 1, 1)
		ready := ""
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		r := Request{Pool: "auto", Locked: LockedHooks{Allowed: func(m string) bool { return m == ready }}}
		one, two := d.start(ctx, r), d.start(t.Context(), r)
		d.wantWaiting(one, two)
		leave()
		d.wantRefused(one, context.Canceled, 0)
		time.Sleep(time.Second)
		ready = "m1"
		d.RetryWaiters("m0")
		d.wantWaiting(two)
		d.RetryWaiters("m1")
		d.wantAdmitted(two, time.Second)
	})
}
