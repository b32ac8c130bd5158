package replay

import (
	"container/list"
	"errors"
	"sync"
	"time"
)

// DefaultMaxSessions is the default of [SessionsConfig].Max.
const DefaultMaxSessions = 100_000

var (
	// ErrConflict is what Claim answers to an id that stands for another request.
	ErrConflict = errors.New("replay: the request id belongs to another request")
	// ErrFull is what Claim answers when there are as many sessions as there may be and all of them run.
	ErrFull = errors.New("replay: too many request ids")
)

// SessionsConfig bounds [Sessions].
type SessionsConfig struct {
	// Max is how many are known at a time. Past it those that have ended are forgotten, the oldest end first. 0: DefaultMaxSessions.
	Max int
}

// Key is a request id. Tenants have their own, which do not meet.
type Key struct{ Tenant, ID string }

// Sessions are the generations that have a request id: those that run, and those that have ended and can still be asked for. A value
// is known by itself, so it is a pointer, or something else that no two generations share. All methods are for any goroutine.
type Sessions[V comparable] struct {
	most int

	mu    sync.Mutex
	known map[Key]*session[V]
	ended list.List // of *session[V], the oldest end first
}

type session[V comparable] struct {
	key   Key
	sum   [32]byte
	value V
	// Both are nil while it runs.
	place *list.Element // in ended
	timer *time.Timer
}

// NewSessions makes one without sessions.
func NewSessions[V comparable](c SessionsConfig) *Sessions[V] {
	if c.Max == 0 {
		c.Max = DefaultMaxSessions
	}
	return &Sessions[V]{most: c.Max, known: map[Key]*session[V]{}}
}

// Claim gives the session with that id; fresh says that there was none, and that it was made. Of those who claim an id at the same time one
// makes it. sum is a hash of the request: the same id with another one is ErrConflict. ErrFull says that there is no room.
//
// fresh ones are made under the lock: create must be quick and leave the sessions alone.
func (s *Sessions[V]) Claim(k Key, sum [32]byte, create func() V) (v V, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.known[k]; old != nil {
		if old.sum != sum {
			return v, false, ErrConflict
		}
		return old.value, false, nil
	}
	if len(s.known) >= s.most {
		oldest := s.ended.Front()
		if oldest == nil {
			return v, false, ErrFull
		}
		s.forgetLocked(oldest.Value.(*session[V]))
	}
	v = create()
	s.known[k] = &session[V]{key: k, sum: sum, value: v}
	return v, true, nil
}

// Find gives the session with that id, if there is one.
func (s *Sessions[V]) Find(k Key) (v V, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.known[k]
	if found == nil {
		return v, false
	}
	return found.value, true
}

// Expire says that the session with that id has ended, if it is still this one, and lets it be forgotten after that time. Said again, the
// newer word holds.
func (s *Sessions[V]) Expire(k Key, v V, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.known[k]
	if e == nil || e.value != v {
		return
	}
	s.runLocked(e)
	e.place = s.ended.PushBack(e)
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.timer == timer { // else it came too late to be stopped
			s.forgetLocked(e)
		}
	})
	e.timer = timer
}

// Forget forgets the session with that id at once, if it is still this one.
func (s *Sessions[V]) Forget(k Key, v V) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.known[k]; e != nil && e.value == v {
		s.forgetLocked(e)
	}
}

// Len is how many sessions are known.
func (s *Sessions[V]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.known)
}

func (s *Sessions[V]) forgetLocked(e *session[V]) {
	s.runLocked(e)
	delete(s.known, e.key)
}

// runLocked takes back that a session has ended.
func (s *Sessions[V]) runLocked(e *session[V]) {
	if e.timer == nil {
		return
	}
	e.timer.Stop()
	s.ended.Remove(e.place)
	e.timer, e.place = nil, nil
}
