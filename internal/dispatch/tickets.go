package dispatch

import "sync"

// HeldRequest is what the successor of this process must know of a ticket that this process holds.
type HeldRequest struct {
	// Model and Replica say where the slot is. Tenant is who makes the request.
	Model, Replica, Tenant string
	// APIKey is the name of the caller's key if it has limits of its own.
	APIKey string
	// SlotOnly says that the request belongs to a task, which has the lease. Task is the id of the
	// task. A release before this one does not tell it.
	SlotOnly bool
	Task     string
}

// TicketWatcher is told of the tickets of a Dispatcher. Its methods are called in the order of the
// events, with a lock held: they must be quick and must not call the Dispatcher.
type TicketWatcher interface {
	// Holds tells that a ticket is held, or that its slot has moved to another replica.
	Holds(t *Ticket, r HeldRequest)
	// Corrected tells what a ticket has really cost, in tokens; negative: it is not known. The
	// ticket may have been released before, and r describes it.
	Corrected(t *Ticket, r HeldRequest, tokens int)
	// Released tells that a ticket is held no more.
	Released(t *Ticket)
}

// heldTickets lists the tickets that are held. The zero value is ready to use. A ticket costs no
// allocation here.
type heldTickets struct {
	mu sync.Mutex
	// first is the ticket that was granted last. Tickets are linked by Ticket.next and
	// Ticket.previous; guarded by mu
	first *Ticket
	// watcher is nil while nobody watches; guarded by mu
	watcher TicketWatcher
}

// WatchTickets tells w of all tickets that are held now, and then of every change. nil ends that.
func (d *Dispatcher) WatchTickets(w TicketWatcher) {
	h := &d.held
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watcher = w
	for t := h.first; t != nil && w != nil; t = t.next {
		w.Holds(t, t.heldRequest())
	}
}

// add lists a ticket that was granted.
func (h *heldTickets) add(t *Ticket) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.next = h.first; t.next != nil {
		t.next.previous = t
	}
	h.first, t.listed = t, true
	if h.watcher != nil {
		h.watcher.Holds(t, t.heldRequest())
	}
}

// remove unlists a ticket that is about to be released.
func (h *heldTickets) remove(t *Ticket) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !t.listed {
		return
	}
	t.listed = false
	if t.previous != nil {
		t.previous.next = t.next
	} else {
		h.first = t.next
	}
	if t.next != nil {
		t.next.previous = t.previous
	}
	t.next, t.previous = nil, nil
	if h.watcher != nil {
		h.watcher.Released(t)
	}
}

// moved tells the watcher that the slot of a ticket is on another replica now.
func (h *heldTickets) moved(t *Ticket) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.listed && h.watcher != nil {
		h.watcher.Holds(t, t.heldRequest())
	}
}

// corrected tells the watcher what a ticket has really cost.
func (h *heldTickets) corrected(t *Ticket, tokens int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watcher != nil {
		h.watcher.Corrected(t, t.heldRequest(), tokens)
	}
}

// heldRequest describes the ticket to another process.
func (t *Ticket) heldRequest() HeldRequest {
	t.mu.Lock()
	defer t.mu.Unlock()
	return HeldRequest{Model: t.Model, Replica: t.replicaLocked().id, Tenant: t.estimate.tenant, APIKey: t.apiKey,
		SlotOnly: t.task != "", Task: t.task}
}
