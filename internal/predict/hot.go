package predict

import (
	"math"
	"sync"
	"time"
)

// Hot remembers the beginnings of prompts that requests wait for. Such a request goes to a replica
// that has the beginning, although another one is free. It is faster to wait than to compute the
// beginning once more. When many requests have waited, another copy of the beginning would have
// been better for all of them. So a request computes it elsewhere once the others have waited, in
// sum, for as long as the beginning takes to compute. This costs at most twice what would have been
// best: whoever hires skis buys them when the hire has cost as much.
//
// The zero value remembers nothing. A Hot is safe for concurrent use.
type Hot struct {
	mu         sync.Mutex
	beginnings [hotBeginnings]hotBeginning
}

const (
	// hotBeginnings is how many beginnings are remembered, at most.
	hotBeginnings = 256
	// hotHalfLife is the time after which what was waited counts half.
	hotHalfLife = time.Minute
)

// hotBeginning is what requests with one beginning have waited in sum, as of at.
type hotBeginning struct {
	hash   uint64
	waited time.Duration
	at     time.Time
}

// as returns what was waited as it counts now.
func (b *hotBeginning) as(now time.Time) time.Duration {
	if b.waited == 0 {
		return 0
	}
	return time.Duration(float64(b.waited) * math.Exp2(-max(now.Sub(b.at).Seconds(), 0)/hotHalfLife.Seconds()))
}

// waited returns what requests with this beginning have waited.
func (h *Hot) waited(beginning uint64, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := &h.beginnings[beginning%hotBeginnings]; b.hash == beginning {
		return b.as(now)
	}
	return 0
}

// add adds what one more request waits. Of two beginnings with one place, the one for which more
// was waited keeps it.
func (h *Hot) add(beginning uint64, now time.Time, waits time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := &h.beginnings[beginning%hotBeginnings]
	before := b.as(now)
	switch {
	case b.hash == beginning:
		waits += before
	case waits < before:
		return
	}
	*b = hotBeginning{beginning, waits, now}
}

// forget forgets what was waited, because the beginning is computed once more.
func (h *Hot) forget(beginning uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := &h.beginnings[beginning%hotBeginnings]; b.hash == beginning {
		*b = hotBeginning{}
	}
}
