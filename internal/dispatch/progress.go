package dispatch

import (
	"strings"
	"sync"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
)

// Wait reports the progress of one request while the request waits. The caller puts it into
// Request.Watch, and any goroutine may then call Progress. A Wait serves one Dispatch at a time.
// The zero value is ready to use.
type Wait struct {
	mu sync.Mutex
	// choice is what the request may go to. It is empty before the request waits. Guarded by mu.
	choice choice
	// handle identifies the waiter to admission
	handle admission.WaitHandle
}

// Progress returns what the request waits for. position is its position in the queue, from 1; 0
// means that the request does not wait or that the position is not known. starting says that a
// replica is being started for the request. note is then the last line that this replica logged, of
// at most 200 bytes. It may name addresses of the fleet, so only some tenants may read it; see
// authz.Tenant.
func (w *Wait) Progress(d *Dispatcher) (position int, starting bool, note string) {
	w.mu.Lock()
	c := d.table.Load().refresh(w.choice)
	w.mu.Unlock()
	position = d.admission.Position(&w.handle)
	if starting = len(c.members) > 0 && c.starts(); starting {
		note = c.note()
	}
	return position, starting, note
}

// open prepares w for a request that is about to ask for admission.
func (w *Wait) open(c choice) *admission.WaitHandle {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.choice = c
	return &w.handle
}

// note returns the last line of the first replica of the choice that starts.
func (c choice) note() string {
	for _, t := range c.members {
		for i := range t.source.Replicas {
			if r := &t.source.Replicas[i]; r.Reason != "" && (r.State == engines.Starting || r.State == engines.Pending) {
				return clip(strings.Join(strings.Fields(r.Reason), " "))
			}
		}
	}
	return ""
}
