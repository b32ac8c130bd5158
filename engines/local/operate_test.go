package local

import (
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// TestO8_ARestartOutlivesTheGateway: a replica that an operator has restarted is replaced also if
// the gateway, or the agent of the node, is killed while the replica finishes its requests.
func TestO8_ARestartOutlivesTheGateway(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	m := w.model("chat", 1)
	l := New(w.config())
	l.Set([]Model{m})
	stop := run(t, l)
	isReady := func() bool { return w.replica("chat-0").State == engines.Ready }
	w.eventually("it is ready", isReady)
	old := w.replica("chat-0").PID
	w.setLoad("chat-0", 1)
	l.Restart("chat-0")
	w.eventually("it drains", func() bool { return w.replica("chat-0").State == engines.Draining })
	w.eventually("the record says so", func() bool { return w.dir.Records()[0].Meta[metaFingerprint] == "" })
	w.crash(stop)
	l = New(w.config())
	l.Adopt([]Model{m})
	run(t, l)
	w.eventually("it drains again", func() bool {
		r := w.replica("chat-0")
		return r.State == engines.Draining && r.Reason == beingRestarted
	})
	if pid := w.replica("chat-0").PID; pid != old {
		t.Errorf("process %d, want %d until its request has ended", pid, old)
	}
	w.setLoad("chat-0", 0)
	w.eventually("its successor is ready", func() bool { return isReady() && w.replica("chat-0").PID != old })
}
