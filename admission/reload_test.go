package admission

import (
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestWaitersOfATenantAreFoundAmongMany: finding the waiters of one tenant takes no longer when
// others have many. A reload finds those of each tenant while all requests wait for the lock.
func TestWaitersOfATenantAreFoundAmongMany(t *testing.T) {
	few, many := findingTime(t, 10), findingTime(t, 50_000)
	if most := 20 * few; many > most {
		t.Errorf("%v beside 10 waiters of others, %v beside 50,000, want at most %v", few, many, most)
	}
}

// findingTime returns how long it takes to find the waiters of one tenant 100 times beside others.
// It is the shortest time of some.
func findingTime(t *testing.T, others int) time.Duration {
	t.Helper()
	c := New(Config{})
	c.SetLimits("chat", Limits{MaxConcurrent: 1, MaxQueue: 1 << 20, QueueTimeout: time.Hour})
	for i := range others {
		askOnce(t, c, Request{Model: "chat", Tenant: name("tenant", i%1000)})
		if i%(others/2) == 0 {
			askOnce(t, c, Request{Model: "chat", Tenant: "acme"})
		}
	}
	return shortest(t, 100, func() {
		for range 100 {
			if found := c.waitersOf(c.tenants["acme"]); len(found) != 2 || found[0].arrived.Before(found[1].arrived) {
				t.Fatalf("found %d waiters, want two, the youngest first", len(found))
			}
		}
	})
}

// TestTokensAheadAreKnownAmongMany: what a refused waiter is told takes no longer when many tenants
// wait. A lower limit of tokens refuses thousands while all requests wait for the lock.
func TestTokensAheadAreKnownAmongMany(t *testing.T) {
	few, many := tokensAheadTime(t, 10), tokensAheadTime(t, 10_000)
	if most := 100 * few; many > most {
		t.Errorf("%v beside 10 tenants, %v beside 10,000, want at most %v", few, many, most)
	}
}

// tokensAheadTime returns how long it takes to find out 100 times what goes before a waiter beside
// those of other tenants. It is the shortest time of some.
func tokensAheadTime(t *testing.T, others int) time.Duration {
	t.Helper()
	c := New(Config{})
	c.SetLimits("chat", Limits{MaxConcurrent: 1, MaxQueue: 1 << 20, QueueTimeout: time.Hour})
	askOnce(t, c, Request{Model: "chat"})
	for i := range others {
		askOnce(t, c, Request{Model: "chat", Tenant: name("tenant", i), Tokens: 10})
	}
	askOnce(t, c, Request{Model: "chat", Tenant: "acme", Tokens: 10})
	acme := c.tenants["acme"]
	g, w := c.gates["chat"], c.waitersOf(acme)[0]
	return shortest(t, 100, func() {
		for range 100 {
			if n := g.tokensAheadLikely(acme, &w.arrival, 0); n != int64(10+10*others) {
				t.Fatalf("%d tokens beside %d tenants", n, others)
			}
		}
	})
}

// TestAPoolArrivalLooksAtModelsThatCanServeIt: a request that waits for a pool takes no longer when
// thousands wait which one of the pool's models cannot serve.
func TestAPoolArrivalLooksAtModelsThatCanServeIt(t *testing.T) {
	few, many := poolArrivalTime(t, 10), poolArrivalTime(t, 2000)
	if most := 50 * few; many > most {
		t.Errorf("%v beside 10 tenants, %v beside 2,000, want at most %v", few, many, most)
	}
}

// poolArrivalTime returns how long a request takes to join the queue of a pool in which other
// tenants wait. It is the shortest time of some.
func poolArrivalTime(t *testing.T, others int) time.Duration {
	t.Helper()
	c := New(Config{})
	c.SetLimits("large", Limits{MaxConcurrent: 1, MaxQueue: 1 << 20, QueueTimeout: time.Hour})
	c.SetLimits("small", Limits{TokensPerMinute: 50})
	c.SetPools(map[string][]string{"auto": {"large", "small"}})
	i := 0
	arrive := func() {
		askOnce(t, c, Request{Pool: "auto", Tenant: name("tenant", i%others), Tokens: 100})
		i++
	}
	for range 7 * others {
		arrive()
	}
	return shortest(t, others, arrive)
}

// shortest returns the shortest time of a processor that one of n calls takes.
func shortest(t *testing.T, n int, call func()) time.Duration {
	t.Helper()
	least := time.Hour
	for range n {
		least = min(least, testutil.ProcessorTime(t, call))
	}
	return least
}

// askOnce makes a request ask, which then waits unless it is the first.
func askOnce(t *testing.T, c *Controller, r Request) {
	t.Helper()
	a := newArrival(r)
	if _, _, err := c.admitOrEnqueue(&a); err != nil {
		t.Fatal(err)
	}
}
