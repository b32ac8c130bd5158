package request

import (
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/beat"
)

const (
	// tellMany is how many requests are told without waiting for more.
	tellMany = 256
	// tellMost is how many requests wait to be told at most. The goroutine that ends one more tells
	// all of them.
	tellMost = 4096
)

// teller tells the subscribers of requests that have ended. It keeps the requests for a while and
// tells all of them together. The code of the subscribers costs several times as much for a single
// request, because it is then in no cache of the processor.
type teller struct {
	to    []func(Summary)
	delay time.Duration

	// telling is held while subscribers are told, so that flush returns when all are. It comes
	// before mu.
	telling sync.Mutex
	// spare is memory for waiting; guarded by telling.
	spare []Summary

	mu sync.Mutex
	// waiting are the requests of which nobody was told; guarded by mu.
	waiting []Summary
	// timer calls flush; nil until the first request. Guarded by mu.
	timer *time.Timer
}

// finished tells of a request after the delay, or at once if there is none.
func (t *teller) finished(q *Summary) {
	if t.delay <= 0 {
		for _, tell := range t.to {
			tell(*q)
		}
		return
	}
	t.mu.Lock()
	t.waiting = append(t.waiting, *q)
	n := len(t.waiting)
	switch {
	case t.timer == nil:
		t.timer = time.AfterFunc(beat.Until(t.delay), t.flush)
	case n == 1:
		t.timer.Reset(beat.Until(t.delay))
	case n == tellMany:
		t.timer.Reset(0)
	}
	t.mu.Unlock()
	if n >= tellMost {
		t.flush()
	}
}

// flush tells of all requests that wait. It returns when the subscribers were told.
func (t *teller) flush() {
	t.telling.Lock()
	defer t.telling.Unlock()
	t.mu.Lock()
	all := t.waiting
	t.waiting = t.spare[:0]
	t.mu.Unlock()
	// One subscriber after the other, so that its code and its series stay in the caches.
	for _, tell := range t.to {
		for i := range all {
			tell(all[i])
		}
	}
	t.spare = nil
	if cap(all) <= 2*tellMany {
		clear(all) // the texts of the requests
		t.spare = all
	}
}
