// Package queue holds the events of a stream between an engine and a client that may be slower. The
// package internal/relay/replay uses one queue for each subscriber.
//
// A client that falls behind receives fewer and larger events. When [Limits].MergeAfter events
// wait, a further chunk of a chat or of a completion is merged into the last event that waits, if
// nothing is lost by that. What a client assembles of each choice stays the same, and no event
// overtakes another. In a merged chunk text is joined, fragments of a tool call are joined, lists
// of logprobs are joined, and the newest usage replaces the older one. A merged chunk may hold
// several choices, as OpenAI's API allows when a request asks for several.
//
// All other events are never changed. These are the first and the last chunk of a choice, the end
// marker, comments, events of other APIs, and chunks with a member that this package does not know.
//
// A client that falls too far behind is cut off with [ErrTooSlow], so that a slow client uses a
// bounded amount of memory.
package queue

import (
	"cmp"
	"errors"
	"io"
	"sync"
	"unsafe"

	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// Defaults of [Limits].
const (
	DefaultMergeAfter = 256
	DefaultMaxEvents  = 1024
	DefaultMaxBytes   = 4 << 20
)

var (
	// ErrTooSlow ends a queue that is full: the client reads more slowly than the engine writes,
	// even though events were merged.
	ErrTooSlow = errors.New("client_too_slow: the client reads more slowly than the engine writes")
	// ErrEmpty is the error of Pop when no event waits and more may come.
	ErrEmpty = errors.New("queue: empty")
)

// Limits bound a queue.
type Limits struct {
	// MergeAfter is the number of waiting events from which on chunks are merged.
	// 0: DefaultMergeAfter.
	MergeAfter int
	// MaxEvents is the greatest number of events that may wait. 0: DefaultMaxEvents.
	MaxEvents int
	// MaxBytes is the memory, in bytes, from which on the queue refuses further events. One event
	// may exceed it, and an empty queue accepts an event of any size. 0: DefaultMaxBytes.
	MaxBytes int
	// Memory is the budget that the bytes of waiting events are reserved from. A queue that it
	// refuses is full. nil: there is no budget.
	Memory *memory.Budget
}

// Queue is a bounded queue of events with one producer and one consumer. It copies the events that
// are pushed. The lock is held while one event is copied or merged, which takes a few microseconds.
type Queue struct {
	limits Limits
	ready  chan struct{}

	// mu guards the fields below.
	mu    sync.Mutex
	slots []slot // a ring; its length is a power of two, or 0
	head  int    // the index of the oldest event in slots
	n     int    // the number of events that wait
	held  int    // bytes of memory: events that wait and free buffers
	hold  memory.Hold
	free  [][]byte
	next  uint64  // the number of the next event
	merge *merger // nil until events are merged
	err   error   // why the queue was closed; io.EOF after a complete stream, nil while it is open
}

// slot holds one event that waits, with its number.
type slot struct {
	raw    []byte
	number uint64
}

// An open queue keeps up to freeBuffers buffers of popped events for the next ones, each of at most
// freeBytes bytes.
const (
	freeBuffers = 4
	freeBytes   = 4 << 10
)

// keptSlots is the greatest length of the ring that an empty queue keeps.
const keptSlots = 64

// New returns an empty queue.
func New(l Limits) *Queue {
	l.MergeAfter = cmp.Or(l.MergeAfter, DefaultMergeAfter)
	l.MaxEvents = cmp.Or(l.MaxEvents, DefaultMaxEvents)
	l.MaxBytes = cmp.Or(l.MaxBytes, DefaultMaxBytes)
	return &Queue{limits: l, ready: make(chan struct{}, 1), hold: l.Memory.Hold(memory.Queues)}
}

// Push adds a copy of an event. The error is ErrTooSlow when the queue is full; the queue is then
// dropped. After Close or Drop it is their error.
func (q *Queue) Push(e *sse.Event) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return q.err
	}
	if q.n > 0 && q.held > q.limits.MaxBytes {
		q.dropLocked(ErrTooSlow)
		return ErrTooSlow
	}
	if !q.hold.Resize(int64(q.held + len(e.Raw))) {
		q.dropLocked(ErrTooSlow)
		return ErrTooSlow
	}
	if q.n >= q.limits.MergeAfter && q.mergeLocked(e) {
		return nil
	}
	if q.n >= q.limits.MaxEvents {
		q.dropLocked(ErrTooSlow)
		return ErrTooSlow
	}
	q.addLocked(e.Raw)
	if q.n == 1 {
		q.Wake()
	}
	return nil
}

// Bypass numbers an event that its producer delivers in another way, and returns its number. ok is
// false, without an effect, when events wait or the queue was closed.
func (q *Queue) Bypass() (number uint64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n > 0 || q.err != nil {
		return 0, false
	}
	q.next++
	return q.next - 1, true
}

// Pop removes the oldest event and appends it to dst. It returns the number of the event, counted
// from 0 in the order of Push. A merged event has the number of its last part: a client that has
// the event has all events before it. The error is ErrEmpty when no event waits. After the last
// event it is the error of Close or Drop.
func (q *Queue) Pop(dst []byte) (event []byte, number uint64, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n == 0 {
		if q.err != nil {
			return dst, 0, q.err
		}
		return dst, 0, ErrEmpty
	}
	s := &q.slots[q.head]
	dst = append(dst, s.raw...)
	number = s.number
	q.recycleLocked(s.raw)
	*s = slot{}
	q.head = (q.head + 1) & (len(q.slots) - 1)
	q.n--
	if q.n == 0 {
		q.shrinkLocked()
	}
	q.hold.Resize(int64(q.held))
	return dst, number, nil
}

// Ready receives when an empty queue has got an event, after Close, Drop and Wake. Only the
// consumer may receive from it.
func (q *Queue) Ready() <-chan struct{} { return q.ready }

// Wake makes Ready receive although no event was pushed.
func (q *Queue) Wake() {
	select {
	case q.ready <- struct{}{}:
	default: // Ready has not been received from yet
	}
}

// Close says that no more events come. err is why; nil means that the stream is complete, and
// stands for io.EOF. Events that wait can still be popped. A second Close has no effect.
func (q *Queue) Close(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return
	}
	if q.err = err; err == nil {
		q.err = io.EOF
	}
	q.Wake()
}

// Drop closes the queue and frees its memory. The events that wait are lost. Push and Pop return
// err from then on, or the error of an earlier Close.
func (q *Queue) Drop(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropLocked(err)
}

// Len returns the number of events that wait.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n
}

func (q *Queue) dropLocked(err error) {
	if q.err == nil {
		q.err = err
	}
	q.slots, q.free, q.merge = nil, nil, nil
	q.head, q.n, q.held = 0, 0, 0
	q.hold.Release()
	q.Wake()
}

// mergeLocked merges an event into the last event that waits. It returns false, without an effect,
// when the two cannot be merged.
func (q *Queue) mergeLocked(e *sse.Event) bool {
	if !e.IsPlain() {
		return false
	}
	tail := q.tailLocked()
	if q.merge == nil {
		q.merge = new(merger)
	}
	held := cap(q.merge.out) + cap(tail.raw)
	ok := q.merge.merge(tail.raw, e.Raw)
	if ok {
		tail.raw = append(tail.raw[:0], q.merge.out...)
		tail.number = q.next
		q.next++
	}
	q.held += cap(q.merge.out) + cap(tail.raw) - held
	return ok
}

// tailLocked returns the last event that waits. There must be one.
func (q *Queue) tailLocked() *slot { return &q.slots[(q.head+q.n-1)&(len(q.slots)-1)] }

func (q *Queue) addLocked(raw []byte) {
	if q.n == len(q.slots) {
		q.growLocked()
	}
	buf := q.bufferLocked(len(raw))
	q.n++
	*q.tailLocked() = slot{append(buf, raw...), q.next}
	q.next++
}

// growLocked doubles the ring.
func (q *Queue) growLocked() {
	larger := make([]slot, max(2*len(q.slots), 8))
	for i := range q.n {
		larger[i] = q.slots[(q.head+i)&(len(q.slots)-1)]
	}
	q.held += (len(larger) - len(q.slots)) * int(unsafe.Sizeof(slot{}))
	q.slots, q.head = larger, 0
}

// bufferLocked returns an empty buffer with a capacity of at least size bytes.
func (q *Queue) bufferLocked(size int) []byte {
	if k := len(q.free); k > 0 {
		buf := q.free[k-1]
		q.free = q.free[:k-1]
		if cap(buf) >= size {
			return buf
		}
		q.held -= cap(buf)
	}
	buf := append([]byte(nil), make([]byte, size)...)[:0]
	q.held += cap(buf)
	return buf
}

// recycleLocked keeps the buffer of a popped event for a later one, or drops it.
func (q *Queue) recycleLocked(buf []byte) {
	if len(q.free) < freeBuffers && cap(buf) <= freeBytes {
		q.free = append(q.free, buf[:0])
		return
	}
	q.held -= cap(buf)
}

// shrinkLocked frees the memory that only a long queue needs.
func (q *Queue) shrinkLocked() {
	if q.merge != nil {
		q.held -= cap(q.merge.out)
		q.merge = nil
	}
	if len(q.slots) > keptSlots {
		q.held -= len(q.slots) * int(unsafe.Sizeof(slot{}))
		q.slots, q.head = nil, 0
	}
}
