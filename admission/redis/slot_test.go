package redis

import (
	"slices"
	"testing"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// TestASlotThatMoves: while the slot of the state moves to another master of a cluster, no gateway
// begins the state anew there. Afterwards the state is there as it was.
func TestASlotThatMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	all := stores(t, 2, Config{}, cluster...)
	wantReasons(t, acquire(all[0], limited("a", 2)), admission.Granted)
	wantReasons(t, acquire(all[1], limited("b", 2)), admission.Granted)
	const epoch = "{sluice}:epoch"
	slot := redistest.MoveSlot(t, cluster, epoch)
	slot.Move(t, epoch)
	for _, s := range all {
		eventually(t, "the store is lost", func() bool { return !s.Status().Up })
		before := s.Status().Errors
		eventually(t, "it has tried again", func() bool { return s.Status().Up || s.Status().Errors > before+3 })
		if answer := s.Status().LastError; s.Status().Up || Remedy(answer) == "" {
			t.Errorf("shared: %v, %q has the remedy %q", s.Status().Up, answer, Remedy(answer))
		}
	}
	if moved := slot.Moved(t); !slices.Equal(moved, []string{epoch}) {
		t.Fatalf("the new master has %q, and %q alone has moved", moved, epoch)
	}
	slot.End(t)
	for _, s := range all {
		eventually(t, "the store is shared again", func() bool { return s.Status().Up })
	}
	wantReasons(t, acquire(all[0], limited("c", 2)), admission.ModelConcurrency)
	all[1].Release("b", 0, false)
	wantReasons(t, acquire(all[1], limited("c", 2)), admission.Granted)
}

// TestAClusterWithOneName: the name of a node that stands twice in the URL leads to the whole
// cluster.
func TestAClusterWithOneName(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	s := stores(t, 1, Config{}, cluster[1], cluster[1])[0] // the state is at cluster[0]
	wantReasons(t, acquire(s, limited("a", 1)), admission.Granted)
}
