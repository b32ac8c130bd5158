package request

import (
	"cmp"
	"time"
)

// maxRetries bounds the retries that a record keeps.
const maxRetries = 8

// Detail is one request, and what has happened to it besides.
type Detail struct {
	Summary
	// Read is from the receipt of the request until its body was read. From then on it waits.
	Read time.Duration
	// Retries are the attempts after which Envoy or the relay has tried again, the first 8 of them.
	Retries []Retry
}

// Retry is an attempt that has failed, or had to give its slot back, and was repeated.
type Retry struct {
	// After is from the receipt of the request until Sluice learned of the failure.
	After time.Duration
	// Reason is ReasonConnect and so on. Replica is where the attempt has failed.
	Reason, Replica string
}

// Find returns a request that runs or is among the last finished ones: that of Envoy's id, else the
// newest one of the client's own id.
func (s *Store) Find(id string) (Detail, bool) {
	if s == nil || id == "" {
		return Detail{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var byClient *Record
	found := s.anyLocked(func(r *Record) bool {
		if byClient == nil && r.summary.ClientID == id {
			byClient = r
		}
		return r.summary.ID == id
	})
	found = cmp.Or(found, byClient)
	if found == nil {
		return Detail{}, false
	}
	d := Detail{Summary: found.summary, Read: max(0, found.waitingSince.Sub(found.summary.Started)), Retries: append([]Retry(nil), found.retries...)}
	if found.element != nil {
		d.Summary = found.soFar(time.Now())
	}
	return d, true
}

// anyLocked returns the first request for which is reports true: of the running and then of the
// finished ones, each newest first.
func (s *Store) anyLocked(is func(*Record) bool) *Record {
	for e := s.running.Back(); e != nil; e = e.Prev() {
		if r := e.Value.(*Record); is(r) {
			return r
		}
	}
	for i := 1; i <= len(s.finished); i++ {
		r := s.finished[(s.next-i+len(s.finished))%len(s.finished)]
		if r == nil || is(r) {
			return r
		}
	}
	return nil
}
