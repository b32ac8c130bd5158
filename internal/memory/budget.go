// Package memory bounds the memory of the gateway. The package internal/gateway uses it to make and
// watch the [Budget], and internal/relay reserves from it. The Budget has the bytes of everything
// that the relay keeps for clients and engines. The package also sets the soft limit of the
// process's own heap.
package memory

import (
	"context"
	"sync"
	"sync/atomic"
)

// Kind is what bytes are kept for.
type Kind uint8

// The kinds, by how soon they give way. Each may only use the budget up to its share, so that a
// kind that others can do without leaves room for the rest.
const (
	// Requests are the bodies of requests that run, and the conversations of WebSockets.
	Requests Kind = iota
	// Answers are whole answers of engines that are no streams.
	Answers
	// Queues hold the events of clients that read slowly.
	Queues
	// Replays are the events that are kept for clients that come back.
	Replays

	kinds = 4
)

// kindTable has a row for each kind.
var kindTable = [kinds]struct {
	name string
	// share is how much of the budget may be in use, in percent, when the kind reserves.
	share int64
}{
	Requests: {"requests", 100},
	Answers:  {"answers", 90},
	Queues:   {"queues", 75},
	Replays:  {"replays", 50},
}

// String returns the kind as in a metric's label.
func (k Kind) String() string { return kindTable[k].name }

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Requests, Answers, Queues, Replays} }

// Budget counts bytes that are in use and refuses what does not fit. A nil Budget refuses nothing.
// Any goroutine may call its methods.
type Budget struct {
	limit   int64
	total   atomic.Int64
	peak    atomic.Int64
	used    [kinds]atomic.Int64
	refused [kinds]atomic.Int64

	// waiting counts the goroutines in Await, so that a release without one costs nothing.
	waiting atomic.Int64
	mu      sync.Mutex
	freed   chan struct{} // closed when bytes were released; mu guards it
}

// NewBudget returns a budget of limit bytes. 0: there is no limit.
func NewBudget(limit int64) *Budget {
	return &Budget{limit: limit, freed: make(chan struct{})}
}

// Limit returns the limit in bytes. 0: there is none.
func (b *Budget) Limit() int64 {
	if b == nil {
		return 0
	}
	return b.limit
}

// LimitOf returns how many bytes may be in use when a kind reserves. 0: any number.
func (b *Budget) LimitOf(k Kind) int64 { return b.Limit() / 100 * kindTable[k].share }

// Used returns how many bytes are in use for a kind.
func (b *Budget) Used(k Kind) int64 {
	if b == nil {
		return 0
	}
	return b.used[k].Load()
}

// Total returns how many bytes are in use.
func (b *Budget) Total() int64 {
	if b == nil {
		return 0
	}
	return b.total.Load()
}

// Refused returns how often a kind was refused.
func (b *Budget) Refused(k Kind) int64 {
	if b == nil {
		return 0
	}
	return b.refused[k].Load()
}

// Reserve reserves n bytes and reports whether they fit.
func (b *Budget) Reserve(k Kind, n int64) bool {
	if b == nil || n <= 0 {
		return true
	}
	if !b.reserve(k, n) {
		b.refused[k].Add(1)
		return false
	}
	return true
}

func (b *Budget) reserve(k Kind, n int64) bool {
	limited, most := b.limit > 0, b.LimitOf(k)
	var total int64
	// A sum that is taken back afterwards would be too large for a moment, and refuse others.
	for swapped := false; !swapped; swapped = b.total.CompareAndSwap(total-n, total) {
		if total = b.total.Load() + n; limited && total > most {
			return false
		}
	}
	b.used[k].Add(n)
	for peak := b.peak.Load(); total > peak && !b.peak.CompareAndSwap(peak, total); {
		peak = b.peak.Load()
	}
	return true
}

// Await is Reserve, but it waits until the bytes fit or ctx ends.
func (b *Budget) Await(ctx context.Context, k Kind, n int64) bool {
	if b == nil || n <= 0 || b.reserve(k, n) {
		return true
	}
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	for {
		b.mu.Lock()
		freed := b.freed
		b.mu.Unlock()
		if b.reserve(k, n) {
			return true
		}
		select {
		case <-freed:
		case <-ctx.Done():
			b.refused[k].Add(1)
			return false
		}
	}
}

// Release gives n bytes back.
func (b *Budget) Release(k Kind, n int64) {
	if b == nil || n <= 0 {
		return
	}
	b.used[k].Add(-n)
	b.total.Add(-n)
	if b.waiting.Load() == 0 {
		return
	}
	b.mu.Lock()
	close(b.freed)
	b.freed = make(chan struct{})
	b.mu.Unlock()
}

// resetPeak returns the highest total since the last call.
func (b *Budget) resetPeak() int64 { return b.peak.Swap(b.total.Load()) }

// step is the granularity in which a Hold reserves, in bytes, so that what grows by single events
// seldom touches the budget.
const step = 4 << 10

// Hold is a reservation that changes. The zero Hold reserves from no budget. It is for one
// goroutine at a time.
type Hold struct {
	budget   *Budget
	kind     Kind
	reserved int64
}

// Hold returns an empty reservation.
func (b *Budget) Hold(k Kind) Hold { return Hold{budget: b, kind: k} }

// Resize makes the reservation at least n bytes, and reports whether they fit. A reservation that
// is more than twice as large as needed shrinks.
func (h *Hold) Resize(n int64) bool {
	if h.budget == nil || n <= h.reserved && n >= h.reserved/2-step {
		return true
	}
	n = (n + step - 1) / step * step
	if n > h.reserved {
		if !h.budget.Reserve(h.kind, n-h.reserved) {
			return false
		}
	} else {
		h.budget.Release(h.kind, h.reserved-n)
	}
	h.reserved = n
	return true
}

// Await is Resize for a reservation that grows. It waits until the bytes fit or ctx ends.
func (h *Hold) Await(ctx context.Context, n int64) bool {
	if h.budget == nil || n <= h.reserved {
		return true
	}
	if !h.budget.Await(ctx, h.kind, n-h.reserved) {
		return false
	}
	h.reserved = n
	return true
}

// Release gives everything back. A second call has no effect, nor has one for nil.
func (h *Hold) Release() {
	if h == nil {
		return
	}
	h.budget.Release(h.kind, h.reserved)
	h.reserved = 0
}
