package dispatch

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestB1_HoldsOutForABetterReplica: a request whose long prompt is cached on a full replica waits
// for a slot there, if that is sooner than to compute the prompt elsewhere. Others pass it.
func TestB1_HoldsOutForABetterReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{LoadFloor: 8, PrefillRate: 1000, MaxPerReplica: 1})
		s.put("m", replicas("a", "b")...)
		long := words("document", 20_000) // twenty seconds and more to compute
		first := s.must(t, ask(t, nil, long))
		home := first.Replica()
		time.Sleep(2 * time.Second)
		first.Release() // so a slot is usually held for 2 s

		busy := s.must(t, ask(t, nil, long+" one"))
		if busy.Replica() != home {
			t.Fatalf("went to %s, not to %s", busy.Replica(), home)
		}
		dispatch := func(text string) chan *Ticket {
			got := make(chan *Ticket, 1)
			go func() {
				ticket, fault := s.Dispatch(t.Context(), ask(t, nil, text))
				if fault != nil {
					t.Error(fault)
				}
				got <- ticket
			}()
			synctest.Wait()
			return got
		}
		second := dispatch(long + " two")
		if len(second) != 0 {
			t.Fatalf("it went to %s, and did not wait for %s", (<-second).Replica(), home)
		}
		other := dispatch("hi") // is not held up
		if len(other) != 1 {
			t.Fatal("a request behind it waits although a replica is free")
		}
		if at := (<-other); at.Replica() == home {
			t.Errorf("it went to %s, which is full", home)
		} else {
			at.Release()
		}
		time.Sleep(time.Second)
		busy.Release()
		if at := (<-second); at.Replica() != home {
			t.Errorf("it waited, and went to %s", at.Replica())
		} else {
			at.Release()
		}

		s.must(t, ask(t, nil, long+" three")) // never ends
		start := time.Now()
		if at := <-dispatch(long + " four"); at.Replica() == home {
			t.Error("one slot, two requests")
		}
		if waited := time.Since(start); waited < time.Second || waited > maxHold+time.Second {
			t.Errorf("it held out for %v", waited)
		}
	})
}
