package local

import (
	"context"
	"io"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/loglines"
	"github.com/sluice-gateway/sluice/internal/redact"
)

// Restart replaces the process of a replica, once the replica has finished its requests. A replica
// that waits for its next start is started now. An unknown id is ignored.
func (l *Launcher) Restart(id string) {
	l.mu.Lock()
	if l.restarts == nil {
		l.restarts = map[string]bool{}
	}
	l.restarts[id] = true
	l.mu.Unlock()
	notify(l.wake)
}

// takeRestarts returns the ids that Restart was called with since the last call.
func (l *Launcher) takeRestarts() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.restarts
	l.restarts = nil
	return taken
}

// beingRestarted is the reason of a replica that drains because of Restart.
const beingRestarted = "is being restarted"

// restart drains the replicas with these ids. The reconcile after their end creates their
// successors.
func (t *table) restart(ids map[string]bool) {
	for id := range ids {
		if s := t.entries[id]; s != nil {
			s.fingerprint = "" // what is desired differs, so that the drain is not cancelled
			s.runner.restarted.Store(true)
			t.drain(s, beingRestarted)
		}
	}
}

// Log writes the wanted lines of a replica's log to w, without the secrets of its model. It goes on
// over restarts of the replica. The error is that of the file or of w.
func (l *Launcher) Log(ctx context.Context, w io.Writer, id string, q loglines.Query) error {
	return loglines.CopyFile(ctx, w, l.config.Dir.LogFile(purpose+"/"+id), q, l.redactorOf(id))
}

// redactorOf returns what hides the secrets of the replica's model.
func (l *Launcher) redactorOf(id string) *redact.Redactor {
	for _, m := range l.desired() {
		for _, index := range m.Numbers() {
			if engines.ReplicaID(m.Name, index) == id {
				return m.redactor()
			}
		}
	}
	return nil
}
