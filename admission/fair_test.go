package admission

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// referenceDRR is deficit round robin as the paper tells it: flows in a circle, each of which gets
// its credit when the round comes to it. Weights count by the least one that had a credit in the
// round before.
type referenceDRR struct {
	circle      []*referenceFlow // the first is the flow of the current visit
	quantum     int
	least, next int
}

type referenceFlow struct {
	tenant           string
	weight, deficit  int
	fraction         int // in parts of least
	credited         bool
	costs, admission []int
}

func (n *referenceDRR) arrive(tenant string, weight, cost, id int) {
	for _, f := range n.circle {
		if f.tenant == tenant {
			f.costs, f.admission = append(f.costs, cost), append(f.admission, id)
			return
		}
	}
	n.circle = append(n.circle, &referenceFlow{tenant: tenant, weight: weight, costs: []int{cost}, admission: []int{id}})
	if len(n.circle) == 1 {
		n.next = weight
		n.round()
	}
}

func (n *referenceDRR) round() {
	most := 1
	for _, f := range n.circle {
		f.credited = false
		for _, cost := range f.costs {
			for most < cost {
				most *= 2
			}
		}
	}
	n.quantum = most
	n.least, n.next = n.next, math.MaxInt
}

// serve returns the id that is served next.
func (n *referenceDRR) serve() int {
	for {
		f := n.circle[0]
		if !f.credited {
			f.credited = true
			n.next = min(n.next, f.weight)
			parts := f.weight*n.quantum + min(f.fraction, n.least-1)
			f.deficit, f.fraction = f.deficit+parts/n.least, parts%n.least
		}
		if f.costs[0] <= f.deficit {
			id := f.admission[0]
			f.deficit -= f.costs[0]
			f.costs, f.admission = f.costs[1:], f.admission[1:]
			if len(f.costs) == 0 {
				n.circle = n.circle[1:]
				n.startRound()
			}
			return id
		}
		n.circle = append(n.circle[1:], f)
		n.startRound()
	}
}

func (n *referenceDRR) startRound() {
	if len(n.circle) > 0 && n.circle[0].credited {
		n.round()
	}
}

// simulatedBand runs a band without a Controller: the head is served at once.
type simulatedBand struct {
	band    band
	tenants map[string]*tenant
	ids     map[*waiter]int
}

func newSimulatedBand() *simulatedBand {
	return &simulatedBand{tenants: map[string]*tenant{}, ids: map[*waiter]int{}}
}

func (d *simulatedBand) arrive(name string, weight, cost, id int) *waiter {
	t := d.tenants[name]
	if t == nil {
		t = &tenant{name: name, limits: TenantLimits{Weight: weight}}
		d.tenants[name] = t
	}
	w := &waiter{arrival: arrival{cost: int64(cost)}, tenant: t}
	d.ids[w] = id
	d.band.enqueue(w, false)
	return w
}

func (d *simulatedBand) serve() *waiter {
	w := d.band.head()
	if again := d.band.head(); again != w {
		panic("asking has changed the order")
	}
	d.band.dequeue(w, true)
	return w
}

func TestBandAgainstNaive(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 4))
		want, got := &referenceDRR{}, newSimulatedBand()
		waiting, id := 0, 0
		for step := range 400 {
			if waiting == 0 || random.IntN(20) < 9+step/200 {
				k := random.IntN(1 + int(seed%12))
				name, cost := fmt.Sprint(k), 1+random.IntN(1<<random.IntN(14))
				want.arrive(name, 1+k%5, cost, id)
				got.arrive(name, 1+k%5, cost, id)
				waiting++
				id++
				continue
			}
			waiting--
			if a, b := got.ids[got.serve()], want.serve(); a != b {
				t.Fatalf("seed %d, step %d: %d goes, want %d", seed, step, a, b)
			}
		}
	}
}

// TestBandIsFair checks the bound: two flows that always wait differ in tokens by weight by at most
// three largest costs, whatever other flows do meanwhile.
func TestBandIsFair(t *testing.T) {
	t.Parallel()
	const most = 5000
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 5))
		d := newSimulatedBand()
		weights := []int{1 + random.IntN(9), 1 + random.IntN(9), 1 + random.IntN(9)}
		served := make([]float64, len(weights))
		backlog := func(i int) {
			cost := 1 + random.IntN(most)
			if random.IntN(2) == 0 {
				cost = 1 + random.IntN(10)
			}
			d.arrive(fmt.Sprint("always ", i), weights[i], cost, i)
		}
		for i := range weights {
			for range 3 {
				backlog(i)
			}
		}
		var guests []*waiter
		for range 3000 {
			switch random.IntN(4) {
			case 0:
				guests = append(guests, d.arrive(fmt.Sprint("guest ", random.IntN(50)), 1+random.IntN(3), 1+random.IntN(most), -1))
			case 1:
				if len(guests) > 0 {
					at := random.IntN(len(guests))
					d.band.dequeue(guests[at], false)
					guests = slices.Delete(guests, at, at+1)
				}
			}
			w := d.serve()
			i := d.ids[w]
			if i < 0 {
				guests = slices.DeleteFunc(guests, func(g *waiter) bool { return g == w })
				continue
			}
			served[i] += float64(w.cost) / float64(weights[i])
			backlog(i)
			if gap := slices.Max(served) - slices.Min(served); gap > 3*most {
				t.Fatalf("seed %d: %v tokens by weight, more than %d apart", seed, served, 3*most)
			}
		}
	}
}

// TestOnlyRatiosOfWeightsMatter: tenants whose weights are all large take turns as finely as
// tenants with small weights of the same ratios, and get the same shares.
func TestOnlyRatiosOfWeightsMatter(t *testing.T) {
	t.Parallel()
	for _, weights := range [][]int{{1, 1, 1}, {100, 100, 100}, {1000, 2000, 3000}, {300, 400, 700}, {1 << 20, 1 << 20, 1 << 19}} {
		for _, cost := range []int{1, 3, 500} {
			d := newSimulatedBand()
			for i, weight := range weights {
				for range 1000 {
					d.arrive(fmt.Sprint(i), weight, cost, i)
				}
			}
			served, least, last, inRow := make([]float64, len(weights)), slices.Min(weights), -1, 0
			for n := range 1000 {
				i := d.ids[d.serve()]
				if inRow++; i != last {
					last, inRow = i, 1
				}
				if bound := 2 + 2*weights[i]/least; inRow > bound {
					t.Fatalf("weights %v, cost %d: tenant %d is served %d times in a row, want at most %d", weights, cost, i, inRow, bound)
				}
				served[i] += float64(least) / float64(weights[i])
				if gap := slices.Max(served) - slices.Min(served); n > 20 && gap > 3 {
					t.Fatalf("weights %v, cost %d: %v requests by weight, more than 3 apart", weights, cost, served)
				}
			}
		}
	}
}

// TestBandCostsTheSameForAnyFlows: the cursor moves a few steps for each served waiter, and no more
// when there are many flows.
func TestBandCostsTheSameForAnyFlows(t *testing.T) {
	t.Parallel()
	for _, flows := range []int{2, 1000} {
		d := newSimulatedBand()
		for i := range flows {
			for range 3 {
				d.arrive(fmt.Sprint(i), 1, 1+i*7919%4000, i)
			}
		}
		rounds := d.band.round
		for range 2 * flows {
			d.serve()
		}
		if n := d.band.round - rounds; n > 3 {
			t.Errorf("%d flows: %d rounds for two requests of each", flows, n)
		}
	}
}

// TestDebtIsPaidSoon: a flow that was served at other gateways while costs were large is not behind
// for ever when costs are small.
func TestDebtIsPaidSoon(t *testing.T) {
	t.Parallel()
	d := newSimulatedBand()
	for i := range 100 {
		large := d.arrive(fmt.Sprint(i), 1, 1<<20, i)
		for range 50 {
			d.arrive(fmt.Sprint(i), 1, 1, i)
		}
		f := large.flow
		f.deficit = -f.maxDeficit()
		d.band.dequeue(large, false)
	}
	for range 5000 {
		d.serve()
	}
	if d.band.round > 120 {
		t.Errorf("%d rounds for 50 requests of each", d.band.round)
	}
}

// requestOf is a request of a tenant.
func requestOf(tenant string, tokens int) Request { return Request{Tenant: tenant, Tokens: tokens} }

// drainInOrder releases leases one after the other and returns the names in the order of their
// admission.
func (d testController) drainInOrder(first *admitCall, waiting map[string]*admitCall) []string {
	d.t.Helper()
	var order []string
	for current := first; ; {
		current.release()
		synctest.Wait()
		next := ""
		for name, c := range waiting {
			if c.state().ended && !slices.Contains(order, name) {
				if next != "" {
					d.t.Fatalf("%s and %s were admitted at once", name, next)
				}
				next = name
			}
		}
		if next == "" {
			return order
		}
		order, current = append(order, next), waiting[next]
	}
}

func TestTenantsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1})
		d.SetTenants(map[string]TenantLimits{"b": {Weight: 2}})
		first := d.startTokens(8)
		calls := map[string]*admitCall{}
		for _, name := range []string{"a1", "a2", "a3", "b1", "b2", "b3", "c1"} {
			calls[name] = d.start(t.Context(), requestOf(name[:1], 8))
		}
		want := []string{"a1", "b1", "b2", "c1", "a2", "b3", "a3"}
		if got := d.drainInOrder(first, calls); !slices.Equal(got, want) {
			t.Errorf("order %v, want %v", got, want)
		}
	})
}

func TestBandsAreStrict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1})
		first := d.startTokens(8)
		calls := map[string]*admitCall{}
		for i, p := range []Priority{Batch, Default, Interactive, Batch, Interactive, Default, 7, -7} {
			calls[fmt.Sprint(p, " ", i)] = d.start(t.Context(), Request{Priority: p})
		}
		want := []string{"1 2", "1 4", "7 6", "0 1", "0 5", "-1 0", "-1 3", "-7 7"}
		if got := d.drainInOrder(first, calls); !slices.Equal(got, want) {
			t.Errorf("order %v, want %v", got, want)
		}
	})
}

// TestAgeing: while higher bands always have waiters, aged waiters get every eighth admission, the
// two lower bands alternately. No waiter gets one before it has aged.
func TestAgeing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := testController{New(Config{Ageing: time.Minute}), t}
		d.SetLimits("chat", Limits{MaxConcurrent: 1, QueueTimeout: time.Hour})
		current := d.startTokens(1)
		low := map[string]*admitCall{}
		for i := range 2 {
			low[fmt.Sprint("batch ", i)] = d.start(t.Context(), Request{Priority: Batch})
			low[fmt.Sprint("default ", i)] = d.start(t.Context(), Request{})
		}
		var order []string
		high := []*admitCall{d.start(t.Context(), Request{Priority: Interactive})}
		next := func() {
			high = append(high, d.start(t.Context(), Request{Priority: Interactive}))
			current.release()
			synctest.Wait()
			if high[0].state().ended {
				current, high = high[0], high[1:]
				order = append(order, "high")
				return
			}
			for name, c := range low {
				if c.state().ended {
					order, current = append(order, name), c
					delete(low, name)
					return
				}
			}
			t.Fatal("nobody was admitted")
		}
		time.Sleep(time.Minute - 1)
		for range 20 {
			next()
		}
		if len(low) != 4 {
			t.Fatalf("a lower band was served before its time: %v", order)
		}
		time.Sleep(time.Nanosecond)
		order = nil
		for range 25 {
			next()
		}
		want := slices.Repeat([]string{"high"}, 25)
		want[0], want[8], want[16], want[24] = "default 0", "batch 0", "default 1", "batch 1"
		if !slices.Equal(order, want) {
			t.Errorf("order\n%v, want\n%v", order, want)
		}
		d.Remove("chat")
	})
}

// TestLargeOneIsNotPassed: the head waits for its tokens. A smaller request of its band or of a
// lower one does not pass it; a request of a higher band does.
func TestLargeOneIsNotPassed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{TokensPerMinute: 600})
		d.startTokens(595)
		large := d.start(t.Context(), requestOf("large", 20))
		same := d.start(t.Context(), requestOf("small", 1))
		lower := d.start(t.Context(), Request{Priority: Batch, Tokens: 1})
		d.wantWaiting(large, same, lower)
		higher := d.start(t.Context(), Request{Priority: Interactive, Tokens: 5})
		d.wantAdmitted(higher, 0)
		time.Sleep(2100 * time.Millisecond)
		d.wantAdmitted(large, 2*time.Second)
		d.wantAdmitted(same, 2100*time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		d.wantAdmitted(lower, 2200*time.Millisecond)
	})
}

// jain is Jain's index of fairness: 1 means that all shares are equal.
func jain(shares []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// TestFairUnderUnevenLoad: tenants of equal weight get equal tokens, though one asks a hundred
// times as often as another.
func TestFairUnderUnevenLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const tenants = 5
		c := New(Config{})
		c.SetLimits("chat", Limits{MaxConcurrent: 4, MaxQueue: 100, QueueTimeout: time.Hour})
		var served [tenants]atomic.Int64
		ctx := t.Context()
		random := rand.New(rand.NewPCG(6, 6))
		for tick := range 20_000 { // a millisecond each; four run at once, for 100 ms
			for i := range tenants {
				// The first tenant asks every millisecond, the last every hundred.
				if tick%[tenants]int{1, 3, 10, 50, 100}[i] != 0 {
					continue
				}
				tokens := 1 + random.IntN(200)
				go func() {
					lease, err := c.Admit(ctx, Request{Model: "chat", Tenant: fmt.Sprint(i), Tokens: tokens})
					if err != nil {
						return
					}
					served[i].Add(int64(tokens))
					time.Sleep(100 * time.Millisecond)
					lease.Release()
				}()
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		var shares []float64
		for i := range served {
			shares = append(shares, float64(served[i].Load()))
		}
		if index := jain(shares); index < 0.98 {
			t.Errorf("served %v, index %.4f", shares, index)
		}
		c.Remove("chat")
		time.Sleep(time.Second)
	})
}
