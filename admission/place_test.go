package admission

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// replicas stands for the slots of a model's replicas.
type replicas struct{ free, asked, returned atomic.Int64 }

func newReplicas(free int64) *replicas {
	s := &replicas{}
	s.free.Store(free)
	return s
}

func (s *replicas) request() Request {
	return Request{
		Place: func(string) (Slot, bool) {
			s.asked.Add(1)
			if s.free.Load() == 0 {
				return Slot{}, false
			}
			s.free.Add(-1)
			return Slot{}, true
		},
		Unplace: func() { s.free.Add(1); s.returned.Add(1) },
	}
}

func TestPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, Limits{MaxConcurrent: 2})
		s := newReplicas(1)
		first := d.ask(t.Context(), s.request())
		d.admitted(first, 0)
		second, third := d.ask(t.Context(), s.request()), d.ask(t.Context(), s.request())
		slotless := d.request(0) // needs no slot, but waits for its turn
		d.waits(second, third, slotless)
		if n := s.asked.Load(); n != 2 {
			t.Errorf("Place called %d times, want 2: only the head asks", n)
		}
		s.free.Add(1) // a replica appeared
		d.Kick("chat")
		d.Kick("nobody")
		d.admitted(second, 0)
		d.waits(third, slotless)
		time.Sleep(time.Second)
		s.free.Add(1) // first gives its slot back
		first.release()
		d.admitted(third, time.Second)
		d.waits(slotless) // two at once are the limit
		asked := s.asked.Load()
		last := d.ask(t.Context(), s.request())
		if d.waits(last); s.asked.Load() != asked {
			t.Error("Place called while the concurrency is used up")
		}
		second.release()
		d.admitted(slotless, time.Second)
		d.Remove("chat")
		d.refused(last, ErrRemoved, 0)
		if n := s.returned.Load(); n != 0 {
			t.Errorf("%d slots returned that nobody had, or that were in use", n)
		}
	})
}

func TestPlaceIsAskedLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, Limits{TokensPerMinute: 60})
		d.request(60)
		s := newReplicas(1)
		r := s.request()
		r.Tokens = 10
		c := d.ask(t.Context(), r)
		if d.Kick("chat"); s.asked.Load() != 0 {
			t.Error("Place called without tokens")
		}
		time.Sleep(10 * time.Second)
		d.admitted(c, 10*time.Second)
	})
}

// TestContextEndsWithAdmission: a request whose context ends in the moment of its admission leaves no trace, and the next
// gets what it had. (Both happen inside OnWait, so that neither can be first.)
func TestContextEndsWithAdmission(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, Limits{MaxConcurrent: 1, TokensPerMinute: 600, QueueTimeout: time.Hour})
		for range 20 { // a select between the two is random
			holder := d.request(100)
			d.admitted(holder, 0)
			s := newReplicas(1)
			ctx, cancel := context.WithCancel(t.Context())
			var next *call
			r := s.request()
			r.Model, r.Tokens = "chat", 500
			r.OnWait = func() {
				next = d.ask(t.Context(), Request{Tokens: 500})
				holder.release()
				d.stats(Stats{InFlight: 1, Queued: 1, Tokens: 0})
				cancel()
			}
			if lease, err := d.Admit(ctx, r); lease != nil || err != context.Canceled {
				t.Fatalf("got %v, %v, want %v", lease, err, context.Canceled)
			}
			d.admitted(next, 0)
			if free, returned := s.free.Load(), s.returned.Load(); free != 1 || returned != 1 {
				t.Fatalf("%d slots free, given back %d times, want 1 and 1", free, returned)
			}
			d.stats(Stats{InFlight: 1, Tokens: 0})
			next.release()
			time.Sleep(time.Minute)
		}
	})
}

// TestTimeoutWithAdmission: an admission in the moment of the timeout is used.
func TestTimeoutWithAdmission(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, Limits{MaxConcurrent: 1})
		for range 20 {
			holder := d.request(0)
			s := newReplicas(1)
			r := s.request()
			r.Timeout = time.Second
			r.OnWait = func() {
				holder.release()
				time.Sleep(2 * time.Second)
			}
			c := d.ask(t.Context(), r)
			time.Sleep(2 * time.Second)
			d.admitted(c, 2*time.Second)
			if s.free.Load() != 0 {
				t.Fatal("the slot of a live lease was given back")
			}
			c.release()
		}
	})
}

// TestPlacePanics: a Place that panics must not leave the model locked or a lease behind.
func TestPlacePanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, Limits{MaxConcurrent: 1})
		func() {
			defer func() { _ = recover() }()
			_, _ = d.Admit(t.Context(), Request{Model: "chat", Place: func(string) (Slot, bool) { panic("no") }})
		}()
		d.admitted(d.request(0), 0)
	})
}
