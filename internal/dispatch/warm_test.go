package dispatch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

const slow = 10 * time.Second

// warmStage has four warm replicas with so many requests each, and one, "new", that has just come
// beside them.
func warmStage(t *testing.T, p Policy, load int) stage {
	t.Helper()
	s := newStage(p)
	old := replicas("a", "b", "c", "d")
	s.put("m", old...)
	time.Sleep(time.Hour)
	for _, r := range old {
		s.counters[r.ID].load.Store(int64(load))
	}
	s.put("m", replicas("a", "b", "c", "d", "new")...)
	return s
}

// arrivals sends so many requests, none of which ends, and says how many of them each replica got.
func (s stage) arrivals(t *testing.T, n int) map[string]int {
	t.Helper()
	got := map[string]int{}
	for key := range n {
		got[s.must(t, newRequest("m", fmt.Sprint("key ", key))).Replica()]++
	}
	return got
}

// TestSlowStart: of the next 32 requests, what a replica gets that has just come beside four which
// have 8 each.
func TestSlowStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		strategy Strategy
		slow     time.Duration
		age      time.Duration
		least    int
		most     int
	}{
		{LeastConnections, 0, 0, 12, 13}, // it is filled up to the others first
		{LeastConnections, slow, 0, 1, 1},
		{LeastConnections, slow, slow / 2, 6, 8},
		{LeastConnections, slow, slow, 12, 13},
		{RoundRobin, 0, 0, 6, 7},
		{RoundRobin, slow, 0, 0, 0},
		{RoundRobin, slow, slow / 2, 3, 4},
		{RoundRobin, slow, slow, 6, 7},
		{CHWBL, 0, 0, 10, 16}, // it alone is within the bound at first
		{CHWBL, slow, 0, 1, 4},
		{Prefix, slow, 0, 1, 4},
	} {
		t.Run(fmt.Sprint(c.strategy, " ", c.slow, " after ", c.age), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := warmStage(t, Policy{Strategy: c.strategy, SlowStart: c.slow, LoadFloor: 4}, 8)
				time.Sleep(c.age)
				got := s.arrivals(t, 32)
				t.Logf("%d of 32: %v", got["new"], got)
				if got["new"] < c.least || got["new"] > c.most {
					t.Errorf("it got %d of 32, want %d to %d", got["new"], c.least, c.most)
				}
				for id, n := range got {
					if c.strategy == RoundRobin && id != "new" && (n < 6 || n > 8) {
						t.Errorf("%s got %d: what passes one must go round", id, n)
					}
				}
			})
		})
	}
}

// TestSlowStartRespectsTheBound: no replica gets more than the ring's rule allows when the new one
// counts for as much as an average one more than it has.
func TestSlowStartRespectsTheBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := warmStage(t, Policy{Strategy: CHWBL, SlowStart: slow}, 8)
		for key := range 200 {
			ticket := s.must(t, newRequest("m", fmt.Sprint(key)))
			warm := -1 // without the request itself
			if ticket.Replica() == "new" {
				warm = 0
			}
			for _, id := range []string{"a", "b", "c", "d"} {
				warm += s.Load(id)
			}
			raiseWarmingLoads := int(float64(warm)/4 + 0.5)
			id, bound := ticket.Replica(), 1.25*float64(warm+s.Load("new")+raiseWarmingLoads+1)/5
			has := s.Load(id)
			if id == "new" {
				has, bound = has+raiseWarmingLoads, bound-0.25 // it was counted twice
			}
			if float64(has) > bound+1e-9 {
				t.Fatalf("%s has %d of %d on four, the bound is %.2f", id, has, warm, bound)
			}
		}
	})
}

// TestSlowStartNeverMakesWait: where the others are full, the new one takes what comes, whatever
// its age.
func TestSlowStartNeverMakesWait(t *testing.T) {
	t.Parallel()
	for _, strategy := range []Strategy{LeastConnections, RoundRobin, CHWBL, Prefix} {
		synctest.Test(t, func(t *testing.T) {
			s := warmStage(t, Policy{Strategy: strategy, SlowStart: slow, MaxPerReplica: 8}, 8)
			if got := s.arrivals(t, 8); got["new"] != 8 {
				t.Errorf("%s: %v", strategy, got)
			}
		})
	}
}

// TestWhoIsNew: replicas that come together, after none, have no slow start; one that comes back
// has, under another address too.
func TestWhoIsNew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{Strategy: LeastConnections, SlowStart: slow})
		s.put("m", replicas("a", "b")...)
		if got := s.arrivals(t, 8); got["a"] != 4 {
			t.Errorf("all new: %v", got)
		}
		time.Sleep(slow)
		if s.arrivals(t, 1); s.table.Load().routes["m"].warming.Load() {
			t.Error("picks go on asking for the time although all are warm")
		}
		back := replicas("a", "b")
		back[1].State = engines.Failed
		s.put("m", back...)
		if s.table.Load().routes["m"].warming.Load() {
			t.Error("one that is alone warms up")
		}
		s.counters["b"].load.Store(0)
		s.counters["a"].load.Store(8)
		s.put("m", replicas("a", "b")...)
		if got := s.arrivals(t, 4); got["b"] != 1 {
			t.Errorf("it came back: %v", got)
		}
		time.Sleep(slow)
		s.counters["b"].load.Store(0)
		elsewhere := append(replicas("a", "b"), replicas("c")...)
		elsewhere[1], elsewhere[2] = elsewhere[2], elsewhere[1] // b gets another address
		s.put("m", elsewhere...)
		if got := s.arrivals(t, 4); got["b"] > 1 {
			t.Errorf("it came back elsewhere: %v", got)
		}
	})
}

// TestExplainMovesNothing: an operator who asks takes no turn from anybody.
func TestExplainMovesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := warmStage(t, Policy{Strategy: RoundRobin, SlowStart: slow}, 0)
		time.Sleep(slow / 2)
		for range 20 {
			told, _ := s.Explain("m", Question{})
			s.Explain("m", Question{})
			if got := s.must(t, newRequest("m", "k")).Replica(); got != told.Picked {
				t.Errorf("told %s, picked %s", told.Picked, got)
			}
		}
	})
}
