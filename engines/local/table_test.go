package local

import (
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
)

// A report of a runner that does not know of the stop yet, or that is gone, must not bring a
// replica back into rotation.
func TestLateNewsIsIgnored(t *testing.T) {
	t.Parallel()
	fleet := engines.NewFleet()
	table := newTable(Config{Fleet: fleet, Log: zap.NewNop()})
	l := New(Config{Fleet: fleet})
	m := Model{Model: engines.Model{Name: "chat", Desired: 1}}
	wanted := []desiredModel{{Model: m}}
	table.reconcile(wanted, l.newRunner)
	first := table.entries["chat-0"].runner
	ready := first.replica
	ready.State = engines.Ready
	state := func() engines.State {
		table.publish(wanted)
		replicas := fleet.Snapshot().Models["chat"].Replicas
		if len(replicas) == 0 {
			return ""
		}
		return replicas[0].State
	}
	table.apply(event{first, ready})
	if got := state(); got != engines.Ready {
		t.Fatalf("state = %q, want ready", got)
	}
	table.reconcile([]desiredModel{}, nil)
	table.apply(event{first, ready})
	if got := state(); got != engines.Draining {
		t.Errorf("state = %q after late news of a replica that leaves", got)
	}
	left := ready
	left.State = engines.Stopped
	table.apply(event{first, left})
	if got := state(); got != "" {
		t.Errorf("state = %q of a replica that has left", got)
	}
	table.reconcile(wanted, l.newRunner)
	table.apply(event{first, ready})
	if got := state(); got != engines.Pending {
		t.Errorf("state = %q after news from the predecessor", got)
	}
}
