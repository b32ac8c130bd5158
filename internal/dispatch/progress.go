package dispatch

import (
	"sync"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
)

// Wait follows one request while it waits: put it into Request.Watch, and Look at it from another
// goroutine. It is good for one Dispatch at a time. The zero value is ready to use.
type Wait struct {
	mu sync.Mutex
	// choice is what the request may go to; empty before it waits. Guarded by mu.
	choice choice
	// spot is admission's own
	spot admission.WaitHandle
}

// Look says what the request waits for: its position in the queue from 1 (0: it does not wait, or
// nobody knows), whether a replica is being started for it, and what that replica has said last (at
// most 200 bytes in one line, without what looks like a secret).
func (w *Wait) Look(d *Dispatcher) (position int, starting bool, note string) {
	w.mu.Lock()
	c := d.table.Load().again(w.choice)
	w.mu.Unlock()
	position = d.admission.Position(&w.spot)
	if starting = len(c.members) > 0 && c.starts(); starting {
		note = c.note()
	}
	return position, starting, note
}

// begin is called when the request is about to ask for its place.
func (w *Wait) begin(c choice) *admission.WaitHandle {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.choice = c
	return &w.spot
}

// note is what the first replica that starts has said last.
func (c choice) note() string {
	for _, t := range c.members {
		for i := range t.source.Replicas {
			if r := &t.source.Replicas[i]; r.Reason != "" && (r.State == engines.Starting || r.State == engines.Pending) {
				return redact(r.Reason)
			}
		}
	}
	return ""
}
