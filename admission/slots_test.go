package admission

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// slotCounter stands for the slots of a model's replicas.
type slotCounter struct{ free, asked, returned atomic.Int64 }

func newSlotCounter(free int64) *slotCounter {
	s := &slotCounter{}
	s.free.Store(free)
	return s
}

func (s *slotCounter) request() Request {
	return Request{
		Locked: LockedHooks{ReserveSlot: func(string) (Slot, bool) {
			s.asked.Add(1)
			if s.free.Load() == 0 {
				return Slot{}, false
			}
			s.free.Add(-1)
			return Slot{}, true
		}},
		Unlocked: UnlockedHooks{ReleaseSlot: func() { s.free.Add(1); s.returned.Add(1) }},
	}
}

func TestPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 2})
		s := newSlotCounter(1)
		first := d.start(t.Context(), s.request())
		d.wantAdmitted(first, 0)
		second, third := d.start(t.Context(), s.request()), d.start(t.Context(), s.request())
		slotless := d.startTokens(0) // needs no slot, but waits in order
		d.wantWaiting(second, third, slotless)
		if n := s.asked.Load(); n != 2 {
			t.Errorf("Place called %d times, want 2: only the head asks", n)
		}
		s.free.Add(1) // a replica appeared
		d.RetryWaiters("chat")
		d.RetryWaiters("nobody")
		d.wantAdmitted(second, 0)
		d.wantWaiting(third, slotless)
		time.Sleep(time.Second)
		s.free.Add(1) // first releases its slot
		first.release()
		d.wantAdmitted(third, time.Second)
		d.wantWaiting(slotless) // the limit is two at once
		asked := s.asked.Load()
		last := d.start(t.Context(), s.request())
		if d.wantWaiting(last); s.asked.Load() != asked {
			t.Error("Place called while the concurrency is used up")
		}
		second.release()
		d.wantAdmitted(slotless, time.Second)
		d.Remove("chat")
		d.wantRefused(last, ErrRemoved, 0)
		if n := s.returned.Load(); n != 0 {
			t.Errorf("%d slots returned that nobody had, or that were in use", n)
		}
	})
}

func TestPlaceIsAskedLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{TokensPerMinute: 60})
		d.startTokens(60)
		s := newSlotCounter(1)
		r := s.request()
		r.Tokens = 10
		c := d.start(t.Context(), r)
		if d.RetryWaiters("chat"); s.asked.Load() != 0 {
			t.Error("Place called without tokens")
		}
		time.Sleep(10 * time.Second)
		d.wantAdmitted(c, 10*time.Second)
	})
}

// TestContextEndsWithAdmission: a request whose context ends at the moment of its admission leaves
// nothing behind, and the next waiter gets what it had. Both happen inside OnWait, so neither can
// be first.
func TestContextEndsWithAdmission(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1, TokensPerMinute: 600, QueueTimeout: time.Hour})
		for range 20 { // the select between the two is random
			holder := d.startTokens(100)
			d.wantAdmitted(holder, 0)
			s := newSlotCounter(1)
			ctx, cancel := context.WithCancel(t.Context())
			var next *admitCall
			r := s.request()
			r.Model, r.Tokens = "chat", 500
			r.Unlocked.OnWait = func() {
				next = d.start(t.Context(), Request{Tokens: 500})
				holder.release()
				d.wantStats(Stats{InFlight: 1, Queued: 1, Tokens: 0})
				cancel()
			}
			if lease, err := d.Admit(ctx, r); lease != nil || err != context.Canceled {
				t.Fatalf("got %v, %v, want %v", lease, err, context.Canceled)
			}
			d.wantAdmitted(next, 0)
			if free, returned := s.free.Load(), s.returned.Load(); free != 1 || returned != 1 {
				t.Fatalf("%d slots free, given back %d times, want 1 and 1", free, returned)
			}
			d.wantStats(Stats{InFlight: 1, Tokens: 0})
			next.release()
			time.Sleep(time.Minute)
		}
	})
}

// TestTimeoutWithAdmission: an admission at the moment of the timeout is used.
func TestTimeoutWithAdmission(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1})
		for range 20 {
			holder := d.startTokens(0)
			s := newSlotCounter(1)
			r := s.request()
			r.Timeout = time.Second
			r.Unlocked.OnWait = func() {
				holder.release()
				time.Sleep(2 * time.Second)
			}
			c := d.start(t.Context(), r)
			time.Sleep(2 * time.Second)
			d.wantAdmitted(c, 2*time.Second)
			if s.free.Load() != 0 {
				t.Fatal("the slot of a live lease was given back")
			}
			c.release()
		}
	})
}

// TestPlacePanics: a ReserveSlot that panics must not leave the Controller locked or a lease
// behind.
func TestPlacePanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1})
		func() {
			defer func() { _ = recover() }()
			_, _ = d.Admit(t.Context(), Request{Model: "chat", Locked: LockedHooks{ReserveSlot: func(string) (Slot, bool) { panic("no") }}})
		}()
		d.wantAdmitted(d.startTokens(0), 0)
	})
}

// TestB1_OthersPassAHeadThatHoldsOut: a head that waits for a better slot holds nobody up, neither
// those that wait nor those that come.
func TestB1_OthersPassAHeadThatHoldsOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{})
		s := newSlotCounter(1)
		var out atomic.Bool
		out.Store(true)
		picky := s.request()
		any := picky.Locked.ReserveSlot
		picky.Locked.ReserveSlot = func(model string) (Slot, bool) {
			if out.Load() {
				return Slot{}, false
			}
			return any(model)
		}
		picky.Locked.HoldsOut = out.Load
		head := d.start(t.Context(), picky)
		d.wantWaiting(head)
		second := d.start(t.Context(), s.request())
		d.wantAdmitted(second, 0)
		third := d.start(t.Context(), s.request())
		d.wantWaiting(head, third)
		time.Sleep(time.Second)
		s.free.Add(1)
		second.release()
		d.wantAdmitted(third, time.Second)
		d.wantWaiting(head)
		out.Store(false)
		s.free.Add(1)
		third.release()
		d.wantAdmitted(head, time.Second)
		head.release()
	})
}
