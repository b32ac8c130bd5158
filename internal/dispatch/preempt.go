package dispatch

// mostPreempted is how often one request is preempted.
const mostPreempted = 3

// preempts is what admission calls to preempt the request.
func (t *Ticket) preempts(preempt func()) func() {
	return func() {
		t.mu.Lock()
		t.preempted = true
		t.mu.Unlock()
		preempt()
	}
}

// helps reports whether another request of the model would find a slot if this one gave back its
// own. Called under the lock of admission.
func (t *Ticket) helps() bool {
	t.mu.Lock()
	held, prefill, model, counter := t.held, t.prefill, t.route.Name, t.route.replicas[t.at].counter
	t.mu.Unlock()
	now, ok := t.dispatcher.table.Load().routes[model]
	if !held || !ok {
		return false
	}
	for _, r := range now.replicas {
		if r.counter == counter {
			return r.spares(prefill)
		}
	}
	return false // it may not be picked any more
}

// spares reports whether one request less, in prefill or not, leaves a free slot.
func (r replica) spares(prefill bool) bool {
	n := r.prefill.Load()
	if prefill {
		n--
	}
	return (r.limit <= 0 || r.load.Load() <= int64(r.limit)) && (r.mostPrefill <= 0 || n < int64(r.mostPrefill))
}
