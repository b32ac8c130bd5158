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

// WaitProgress is what a request waits for.
type WaitProgress struct {
	// Position is the position in the queue, from 1. 0 means that the request does not wait or that
	// the position is not known.
	Position int
	// Starting says that a replica is being started for the request.
	Starting bool
	// Note says how far that replica is, in at most 200 bytes: what of its weights has been
	// fetched, or the last line that it logged.
	Note string
	// Public says that every tenant may read Note. A line of a log may name addresses of the fleet,
	// so only some tenants may read it; see authz.Tenant.
	Public bool
}

// Progress returns what the request waits for.
func (w *Wait) Progress(d *Dispatcher) WaitProgress {
	w.mu.Lock()
	c := d.table.Load().refresh(w.choice)
	w.mu.Unlock()
	p := WaitProgress{Position: d.config.Admission.Position(&w.handle)}
	if p.Starting = len(c.members) > 0 && c.starts(); p.Starting {
		p.Note, p.Public = c.note()
	}
	return p
}

// open prepares w for a request that is about to ask for admission.
func (w *Wait) open(c choice) *admission.WaitHandle {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.choice = c
	return &w.handle
}

// note returns how far the first replica of the choice is that starts, and whether every tenant may
// read it.
func (c choice) note() (note string, public bool) {
	for _, t := range c.members {
		for i := range t.source.Replicas {
			if r := &t.source.Replicas[i]; r.Reason != "" && (r.State == engines.Starting || r.State == engines.Pending) {
				return clip(strings.Join(strings.Fields(r.Reason), " ")), r.Fetch.Total > 0
			}
		}
	}
	return "", false
}
