package dispatch

// MaxPreempted bounds how often one request is preempted.
const MaxPreempted = 3

// onPreempt returns the function that admission calls to preempt the request.
func (t *Ticket) onPreempt(preempt func()) func() {
	return func() {
		t.mu.Lock()
		t.preempted = true
		t.mu.Unlock()
		preempt()
	}
}

// wouldFreeSlot reports whether the release of this ticket would free a slot for another request of
// the model. Admission calls it with Controller.mu held.
func (t *Ticket) wouldFreeSlot() bool {
	t.mu.Lock()
	held, prefill, model, counter := t.held, t.prefill, t.route.Name, t.replicaLocked().counter
	t.mu.Unlock()
	now, ok := t.dispatcher.table.Load().routes[model]
	if !held || !ok {
		return false
	}
	i := now.indexOf(counter)
	return i >= 0 && now.replicas[i].isFreeWithoutOne(prefill)
}

// isFreeWithoutOne reports whether the replica has a free slot when one request fewer runs on it.
// prefill says whether that request is in prefill.
func (r *replica) isFreeWithoutOne(prefill bool) bool {
	n := r.prefill.Load()
	if prefill {
		n--
	}
	return (r.limit <= 0 || r.load.Load() <= int64(r.limit)) && (r.maxPrefill <= 0 || n < int64(r.maxPrefill))
}
