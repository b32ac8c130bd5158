package admission

import (
	"iter"
	"time"
)

// waiter is a request in a queue. After decided is closed, lease or err says how it ended; before, they belong to the gate.
type waiter struct {
	Request
	deadline time.Time
	decided  chan struct{}
	lease    *Lease
	err      error

	// queued and the links belong to the queue.
	queued     bool
	next, prev *waiter
}

// queue is who waits for one model, and who is next: the one that came first. Every step takes constant time, wherever the
// waiter stands. The zero value is empty.
type queue struct {
	first, last *waiter
	length      int
	tokens      int64
	bytes       int64
}

// push adds w at the end.
func (q *queue) push(w *waiter) {
	w.prev, w.queued = q.last, true
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.length++
	q.tokens += int64(w.Tokens)
	q.bytes += int64(w.Bytes)
}

// remove takes w out, wherever it stands. It must be in.
func (q *queue) remove(w *waiter) {
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.next, w.prev, w.queued = nil, nil, false
	q.length--
	q.tokens -= int64(w.Tokens)
	q.bytes -= int64(w.Bytes)
}

// head is the next to go; nil when nobody waits.
func (q *queue) head() *waiter { return q.first }

// ahead is the sum of the tokens that go before a request that comes now.
func (q *queue) ahead() int64 { return q.tokens }

// all lists the waiters in the order in which they go. The one at hand may be removed.
func (q *queue) all() iter.Seq[*waiter] {
	return func(yield func(*waiter) bool) {
		for w := q.first; w != nil; {
			next := w.next
			if !yield(w) {
				return
			}
			w = next
		}
	}
}
