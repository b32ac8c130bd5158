// Package queue stands between an engine and a client that may be slower. It holds events, and what a client gets is what
// the engine sent, in that order.
//
// A client that falls behind gets fewer and larger events: past [Limits.Soft] a chunk of a chat or a completion is merged
// into the one that waits last, when nothing is lost by that. What a client puts together of each choice is the same, and
// no event passes another. In merged chunks text is joined, fragments of a tool call are joined, lists of logprobs are
// joined, the newest usage stands. A chunk may then speak of several choices, as OpenAI's API allows where several were
// asked for. Everything else is never touched: the first and last chunk of a choice, the end marker, comments, events of
// other APIs, and chunks with anything in them that is not known here.
//
// A client that falls too far behind is given up ([ErrTooSlow]), so that one client's slowness is bounded in memory.
package queue

import (
	"errors"
	"io"
	"sync"
	"unsafe"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// Defaults of [Limits].
const (
	DefaultSoft  = 256
	DefaultHard  = 1024
	DefaultBytes = 4 << 20
)

var (
	// ErrTooSlow ends a queue that is full: the client does not read as fast as the engine writes, even merged.
	ErrTooSlow = errors.New("client_too_slow: the client reads more slowly than the engine writes")
	// ErrEmpty is what Pop answers when there is nothing yet.
	ErrEmpty = errors.New("queue: empty")
)

// Limits bound a queue.
type Limits struct {
	// Soft is how many events wait before they are merged. 0: DefaultSoft.
	Soft int
	// Hard is how many events may wait. 0: DefaultHard.
	Hard int
	// Bytes is how much memory the queue may hold before one more event is refused; so it may be passed by one event. An
	// event that finds the queue empty is always taken. 0: DefaultBytes.
	Bytes int
}

// Queue is a bounded queue of events with one producer and one consumer. It copies what is pushed. The lock is held for the
// copy of an event, or for a merge, a few microseconds.
type Queue struct {
	limits Limits
	ready  chan struct{}

	mu    sync.Mutex
	slots []slot // ring; its length is a power of two, or 0
	head  int
	n     int
	held  int // bytes, see Bytes
	free  [][]byte
	next  uint64 // number of the next event to come
	merge *merger
	err   error // io.EOF after a proper end
}

type slot struct {
	raw  []byte
	item Item
}

// Item says what a popped event is made of.
type Item struct {
	// Last is the number of the event, from 0 in the order they were pushed; of a merged one that of its last part. A
	// client that has seen it has seen all before it.
	Last uint64
	// Merged is how many events it is made of: 1, or more.
	Merged int
}

// Buffers that are kept for the next events, while the client keeps up: at most so many, and no larger ones.
const (
	freeBuffers = 4
	freeSize    = 4 << 10
)

// New makes an empty queue.
func New(l Limits) *Queue {
	if l.Soft == 0 {
		l.Soft = DefaultSoft
	}
	if l.Hard == 0 {
		l.Hard = DefaultHard
	}
	if l.Bytes == 0 {
		l.Bytes = DefaultBytes
	}
	return &Queue{limits: l, ready: make(chan struct{}, 1)}
}

// Push adds an event. Its error is ErrTooSlow when the queue was full, which ends it, or what it was ended with before.
func (q *Queue) Push(e *sse.Event) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return q.err
	}
	if q.n > 0 && q.held > q.limits.Bytes {
		q.drop(ErrTooSlow)
		return ErrTooSlow
	}
	if q.n >= q.limits.Soft && q.coalesce(e) {
		return nil
	}
	if q.n >= q.limits.Hard {
		q.drop(ErrTooSlow)
		return ErrTooSlow
	}
	q.add(e.Raw)
	if q.n == 1 {
		q.wake()
	}
	return nil
}

// Skip counts an event that goes past the queue, if nothing waits in it, and tells its number.
func (q *Queue) Skip() (number uint64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n > 0 || q.err != nil {
		return 0, false
	}
	q.next++
	return q.next - 1, true
}

// Pop takes the oldest event and appends it to dst. Its error is ErrEmpty when there is none yet, and after the last one
// what the queue was ended with: io.EOF, or why it failed.
func (q *Queue) Pop(dst []byte) ([]byte, Item, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n == 0 {
		if q.err != nil {
			return dst, Item{}, q.err
		}
		return dst, Item{}, ErrEmpty
	}
	s := &q.slots[q.head]
	dst = append(dst, s.raw...)
	item := s.item
	q.recycle(s.raw)
	*s = slot{}
	q.head = (q.head + 1) & (len(q.slots) - 1)
	q.n--
	if q.n == 0 {
		q.calm()
	}
	return dst, item, nil
}

// Ready receives when there may be something to pop after there was nothing. It is for the consumer alone.
func (q *Queue) Ready() <-chan struct{} { return q.ready }

// End says that nothing more comes; err is why, nil for a proper end. What waits can still be popped.
func (q *Queue) End(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return
	}
	if q.err = err; err == nil {
		q.err = io.EOF
	}
	q.wake()
}

// Drop ends the queue at once and frees its memory: what waits is lost. The client has left, or the stream was cancelled.
// Both sides get err from then on, or what the queue was ended with before.
func (q *Queue) Drop(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drop(err)
}

// Len is how many events wait.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n
}

// Bytes is how much memory the queue holds for events: those that wait, and buffers for the next ones.
func (q *Queue) Bytes() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held
}

func (q *Queue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *Queue) drop(err error) {
	if q.err == nil {
		q.err = err
	}
	q.slots, q.free, q.merge = nil, nil, nil
	q.head, q.n, q.held = 0, 0, 0
	q.wake()
}

// coalesce merges an event into the last one, if it can be.
func (q *Queue) coalesce(e *sse.Event) bool {
	if q.n == 0 || !e.IsPlain() {
		return false
	}
	tail := q.tail()
	if q.merge == nil {
		q.merge = new(merger)
	}
	held := cap(q.merge.out) + cap(tail.raw)
	ok := q.merge.merge(tail.raw, e.Raw)
	if ok {
		tail.replace(q.merge.out)
		tail.item = Item{Last: q.next, Merged: tail.item.Merged + 1}
		q.next++
	}
	q.held += cap(q.merge.out) + cap(tail.raw) - held
	return ok
}

// replace puts other bytes into the slot, and leaves some room: more is likely to be merged.
func (s *slot) replace(raw []byte) {
	if cap(s.raw) < len(raw) {
		s.raw = make([]byte, 0, len(raw)+len(raw)/2)
	}
	s.raw = append(s.raw[:0], raw...)
}

func (q *Queue) tail() *slot { return &q.slots[(q.head+q.n-1)&(len(q.slots)-1)] }

func (q *Queue) add(raw []byte) {
	if q.n == len(q.slots) {
		q.grow()
	}
	buf := q.buffer(len(raw))
	q.n++
	*q.tail() = slot{raw: append(buf, raw...), item: Item{Last: q.next, Merged: 1}}
	q.next++
}

func (q *Queue) grow() {
	larger := make([]slot, max(2*len(q.slots), 8))
	for i := range q.n {
		larger[i] = q.slots[(q.head+i)&(len(q.slots)-1)]
	}
	q.held += (len(larger) - len(q.slots)) * int(unsafe.Sizeof(slot{}))
	q.slots, q.head = larger, 0
}

// buffer gives an empty buffer for size bytes.
func (q *Queue) buffer(size int) []byte {
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

func (q *Queue) recycle(buf []byte) {
	if len(q.free) < freeBuffers && cap(buf) <= freeSize {
		q.free = append(q.free, buf[:0])
		return
	}
	q.held -= cap(buf)
}

// calm lets go of what only a queue under pressure needs.
func (q *Queue) calm() {
	if q.merge != nil {
		q.held -= cap(q.merge.out)
		q.merge = nil
	}
	if len(q.slots) > 64 {
		q.held -= len(q.slots) * int(unsafe.Sizeof(slot{}))
		q.slots, q.head = nil, 0
	}
}
