package replay

import (
	"cmp"
	"container/list"
	"errors"
	"sync"
	"time"
)

// defaultMaxGenerations is the default of [Registry].Max.
const defaultMaxGenerations = 100_000

var (
	// ErrConflict is the error of Claim when the request id belongs to another request.
	ErrConflict = errors.New("replay: the request id belongs to another request")
	// ErrFull is the error of Claim when the registry is full and every generation in it runs.
	ErrFull = errors.New("replay: too many request ids")
)

// Key identifies a generation. Two tenants may use the same request id for different generations.
type Key struct {
	Tenant string
	ID     string
}

// Registry holds the generations that clients have named by a request id: those that run, and those
// that have ended and can still be replayed. V is a pointer to a generation, or another value that
// no two generations share. Any goroutine may call the methods. The zero Registry is ready to use.
type Registry[V comparable] struct {
	// Max is the greatest number of generations. Beyond it the generation that has ended first is
	// forgotten. 0: 100,000.
	Max int
	// OnForget is called with each generation that is forgotten. It is called with the lock held,
	// so it must be quick and must not use the registry. nil: nobody wants to know.
	OnForget func(V)

	mu      sync.Mutex
	entries map[Key]*registryEntry[V]
	ended   list.List // of *registryEntry[V]; the generation that has ended first is in front
}

type registryEntry[V comparable] struct {
	key   Key
	sum   [32]byte
	value V
	// position in Registry.ended and the timer that forgets the entry are nil while the generation
	// runs.
	position *list.Element
	timer    *time.Timer
}

// Claim returns the generation with the key k. If there is none it creates one, and fresh is true.
// When several goroutines claim the same key at the same time, one of them creates it. sum is a
// hash of the request: ErrConflict says that the key belongs to a request with another hash.
// ErrFull says that the registry has no room.
//
// Claim calls create with the lock held. create must be quick and must not use the registry.
func (r *Registry[V]) Claim(k Key, sum [32]byte, create func() V) (v V, fresh bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[k]; e != nil {
		if e.sum != sum {
			return v, false, ErrConflict
		}
		return e.value, false, nil
	}
	if len(r.entries) >= cmp.Or(r.Max, defaultMaxGenerations) {
		oldest := r.ended.Front()
		if oldest == nil {
			return v, false, ErrFull
		}
		r.forgetLocked(oldest.Value.(*registryEntry[V]))
	}
	if r.entries == nil {
		r.entries = map[Key]*registryEntry[V]{}
	}
	v = create()
	r.entries[k] = &registryEntry[V]{key: k, sum: sum, value: v}
	return v, true, nil
}

// Find returns the generation with the key k, if there is one.
func (r *Registry[V]) Find(k Key) (v V, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[k]
	if e == nil {
		return v, false
	}
	return e.value, true
}

// Expire says that the generation v with the key k has ended, and forgets it after the given time.
// It has no effect if k belongs to another generation now. A second Expire replaces the time.
func (r *Registry[V]) Expire(k Key, v V, after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[k]
	if e == nil || e.value != v {
		return
	}
	r.unexpireLocked(e)
	e.position = r.ended.PushBack(e)
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if e.timer == timer { // else another Expire or Forget came first
			r.forgetLocked(e)
		}
	})
	e.timer = timer
}

// Forget forgets the generation v with the key k at once. It has no effect if k belongs to another
// generation now.
func (r *Registry[V]) Forget(k Key, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[k]; e != nil && e.value == v {
		r.forgetLocked(e)
	}
}

// Len returns the number of generations in the registry.
func (r *Registry[V]) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.entries)
}

func (r *Registry[V]) forgetLocked(e *registryEntry[V]) {
	if r.OnForget != nil {
		r.OnForget(e.value)
	}
	r.unexpireLocked(e)
	delete(r.entries, e.key)
}

// unexpireLocked undoes Expire.
func (r *Registry[V]) unexpireLocked(e *registryEntry[V]) {
	if e.timer == nil {
		return
	}
	e.timer.Stop()
	r.ended.Remove(e.position)
	e.timer, e.position = nil, nil
}
