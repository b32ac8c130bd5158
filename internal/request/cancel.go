package request

import "errors"

// Canceller ends a request before its end, for an operator. The part that holds the request
// implements it.
type Canceller interface {
	// Cancel ends the request, wherever it is. It returns false if the part does not hold it any
	// more. It must not block for long.
	Cancel() bool
}

// Errors of Store.Cancel.
var (
	// ErrNotRunning tells that no request with the id runs.
	ErrNotRunning = errors.New("no such request runs")
	// ErrNotHeld tells that this process does not hold the request. It began under an earlier
	// process of the gateway, which still carries it or has died, or it is ending right now.
	ErrNotHeld = errors.New("this process does not hold the request")
)

// SetCanceller implements Follower.
func (r *Record) SetCanceller(c Canceller) {
	if r == nil {
		return
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if !r.closed {
		r.canceller = c
	}
}

// Cancel ends the running request with this id of Envoy's. It walks all that run, because an
// operator does it. The error is ErrNotRunning or ErrNotHeld.
func (s *Store) Cancel(id string) error {
	c, running := s.cancellerOf(id)
	switch {
	case !running:
		return ErrNotRunning
	case c == nil || !c.Cancel():
		return ErrNotHeld
	}
	return nil
}

// cancellerOf returns the canceller of a running request, which may be nil.
func (s *Store) cancellerOf(id string) (c Canceller, running bool) {
	if s == nil {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.running.Front(); e != nil; e = e.Next() {
		if r := e.Value.(*Record); r.summary.ID == id {
			return r.canceller, true
		}
	}
	return nil, false
}
