package request

import (
	"errors"
	"testing"
)

// heldBy is a canceller that counts.
type heldBy struct {
	calls int
	gone  bool
}

func (h *heldBy) Cancel() bool { h.calls++; return !h.gone }

// The part that holds a running request is asked to cancel it, and nobody after the end.
func TestO8_Cancel(t *testing.T) {
	t.Parallel()
	s := NewStore(4)
	first, second := &heldBy{}, &heldBy{}
	r := s.Begin(Arrival{ID: "1", Canceller: first})
	s.Begin(Arrival{ID: "2"})
	if err := s.Cancel("1"); err != nil || first.calls != 1 {
		t.Error(err, first.calls)
	}
	r.SetCanceller(second)
	if err := s.Cancel("1"); err != nil || first.calls != 1 || second.calls != 1 {
		t.Error(err, first.calls, second.calls)
	}
	if err := s.Cancel("2"); !errors.Is(err, ErrNotHeld) {
		t.Error("nobody holds it:", err)
	}
	second.gone = true
	if err := s.Cancel("1"); !errors.Is(err, ErrNotHeld) {
		t.Error("its holder does not hold it any more:", err)
	}
	r.Close(nil)
	r.SetCanceller(first)
	if err := s.Cancel("1"); !errors.Is(err, ErrNotRunning) || first.calls != 1 {
		t.Error("it has ended:", err)
	}
	if err := (*Store)(nil).Cancel("1"); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
}
