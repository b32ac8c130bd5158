// Package replay stands between one generation and those who listen to it.
//
// A [Fan] takes the events of a generation from one producer and gives each [Listener] all of them, in their order. Each has its own
// queue, so that one who reads slowly gets merged events, or is given up, and the others notice nothing. A fan that keeps its events
// also has a log of the last ones: who comes back names the last event that he has seen and goes on from there, without gap or double.
// A fan that keeps none has one listener.
//
// [Sessions] are the generations that clients have given an id, so that a start that is repeated finds the one that runs.
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/queue"
)

// DefaultKeepBytes is the default of [Limits].KeepBytes.
const DefaultKeepBytes = 4 << 20

var (
	// ErrNobody is what the producer of a fan that keeps nothing gets when its listener has gone. It wraps queue.ErrTooSlow when the
	// listener was given up.
	ErrNobody = errors.New("replay: nobody listens")
	// ErrGone is what Attach answers when it cannot go on at that event. It wraps what the fan was dropped with, if it was.
	ErrGone = errors.New("replay: the events asked for are not kept")
	// ErrDetached is what a listener gets that is used after its Detach.
	ErrDetached = errors.New("replay: the listener has left")
)

// Limits bound a [Fan].
type Limits struct {
	// Queue bounds what waits for each listener.
	Queue queue.Limits
	// Keep is how old an event of a running stream may be and still be had. It is looked at when an event comes, so that the last events
	// of a stream that stands still, or has ended, stay. 0: nothing is kept, and there is one listener.
	Keep time.Duration
	// KeepBytes bounds the kept events of one stream; the oldest are let go first. An event counts with its bytes and 32 more; memory is up
	// to a third above that, and a listener holds what it has still to replay. 0: DefaultKeepBytes.
	KeepBytes int
}

// Fan hands the events of one generation to all who listen. Push, Flush, Await and End are for one goroutine, the producer's; the other
// methods are for any.
type Fan struct {
	limits queue.Limits
	onIdle func(idle bool)

	room     chan struct{} // wakes Await
	awaiting atomic.Bool   // Await may sleep

	mu        sync.Mutex
	log       *log        // nil: nothing is kept
	listeners []*Listener // in the order they came
	// spare is the listener of a fan that keeps nothing, until it is asked for: what comes before waits in its queue.
	spare   *Listener
	next    uint64
	err     error // why there is no more; io.EOF after a proper end
	dropped bool
	nobody  error // what Push answers when nothing is kept and the listener has gone
	had     bool  // somebody has listened
	told    bool  // what onIdle was told last
	telling bool  // onIdle runs
}

// NewFan makes a fan without events.
func NewFan(l Limits) *Fan {
	f := &Fan{limits: l.Queue, room: make(chan struct{}, 1), nobody: ErrNobody}
	if l.Keep > 0 {
		f.log = newLog(l)
		return f
	}
	f.spare = newListener(f)
	f.listeners = []*Listener{f.spare}
	return f
}

// OnIdle sets what is told that the last listener has gone, and that one has come back. It is called outside the lock, by whoever
// caused it, and by one goroutine at a time: of changes that follow each other quickly it may see only the last, but what it was told
// last is so. Whoever acts on it later should look at Listeners again. It must be set before the fan is used.
func (f *Fan) OnIdle(fn func(idle bool)) { f.onIdle = fn }

// Push copies an event to the log and gives it to all listeners. A listener that is too slow is given up: it gets queue.ErrTooSlow, and the others
// nothing of it. A fan that keeps its events lets comments fall, so that its numbers are those of events that mean something.
//
// The error is ErrNobody when nothing is kept and the listener has gone, and after Drop or End what those said; io.EOF for a proper end.
func (f *Fan) Push(e *sse.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.pushLocked(e)
	f.tellLocked()
	return err
}

func (f *Fan) pushLocked(e *sse.Event) error {
	if f.err != nil {
		return f.err
	}
	if f.log == nil && len(f.listeners) == 0 {
		return f.nobody
	}
	if f.log != nil {
		if e.IsComment() {
			return nil
		}
		f.log.add(e.Raw)
	}
	f.next++
	slow := 0
	for _, l := range f.listeners {
		if l.short(e) {
			continue
		}
		if err := l.queue.Push(e); err != nil {
			l.cut.Store(&cut{err: err, lost: true})
			slow++
		}
		l.wake()
	}
	if slow == 0 {
		return nil
	}
	f.listeners = slices.DeleteFunc(f.listeners, func(l *Listener) bool { return l.cut.Load() != nil })
	if f.log == nil {
		f.spare = nil
		f.nobody = fmt.Errorf("%w: %w", ErrNobody, queue.ErrTooSlow)
		return f.nobody
	}
	return nil
}

// Await blocks while there is a listener for whom that many events wait, or more; what it has to replay does not count. With nobody there
// it does not block. The error is why the context has ended.
func (f *Fan) Await(ctx context.Context, below int) error {
	if !f.full(below) {
		return nil
	}
	f.awaiting.Store(true)
	defer f.awaiting.Store(false)
	for f.full(below) { // again: what was taken before awaiting was set has woken nobody
		select {
		case <-f.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (f *Fan) full(below int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.listeners, func(l *Listener) bool { return l.queue.Len() >= max(below, 1) })
}

// roomier wakes Await after something was taken, or somebody has gone.
func (f *Fan) roomier() {
	if !f.awaiting.Load() {
		return
	}
	select {
	case f.room <- struct{}{}:
	default:
	}
}

// End says that nothing more comes; err is why, nil when the stream is whole. All who listen, and who come later, get what waits and then
// io.EOF, or err. What the fan was ended with first stays.
func (f *Fan) End(err error) {
	if err == nil {
		err = io.EOF
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	f.err = err
	for _, l := range f.listeners {
		l.end(err)
	}
}

// Drop ends the fan at once and lets go of its memory: what waits and what is kept is lost. A listener that has missed something by that
// gets err, after End too. err says why, and is not nil.
func (f *Fan) Drop(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dropped {
		return
	}
	f.dropped, f.err = true, err
	f.log.clear()
	for _, l := range f.listeners {
		l.drop(err)
	}
	f.roomier()
}

// Attach adds a listener that goes on after an event, the last that it has seen; -1: from the beginning. It first gets what is kept, then
// what comes. The error is ErrGone when the event after that one is not kept any more, or when the stream has not come so far; and for
// everybody but the first when nothing is kept.
func (f *Fan) Attach(after int64) (*Listener, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, err := f.attachLocked(uint64(after + 1))
	f.tellLocked()
	return l, err
}

func (f *Fan) attachLocked(from uint64) (*Listener, error) {
	if f.dropped {
		return nil, fmt.Errorf("%w: %w", ErrGone, f.err)
	}
	if f.log == nil {
		if f.spare == nil || from != 0 {
			return nil, ErrGone
		}
		l := f.spare
		f.spare, f.had = nil, true
		return l, nil
	}
	if from < f.log.first || from > f.next {
		return nil, ErrGone
	}
	l := newListener(f)
	l.base = f.next
	if from < f.next {
		l.replay, l.at = f.log.after(from), from
		l.wake()
	}
	if f.err != nil {
		l.end(f.err)
	}
	f.had = true
	f.listeners = append(f.listeners, l)
	return l, nil
}

func (f *Fan) detach(l *Listener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.listeners, l)
	if i < 0 {
		return
	}
	f.listeners = slices.Delete(f.listeners, i, i+1)
	l.drop(ErrDetached)
	f.roomier()
	f.tellLocked()
}

// Listeners is how many listen: who has come and neither left nor was given up.
func (f *Fan) Listeners() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spare != nil {
		return 0
	}
	return len(f.listeners)
}

// Next is the number that the next event will get. When nothing is kept comments have numbers, too.
func (f *Fan) Next() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.next
}

// tellLocked calls onIdle until it knows what is so, and lets go of the lock meanwhile. Who comes while another one tells leaves it to him.
func (f *Fan) tellLocked() {
	for f.onIdle != nil && !f.telling && f.told != f.idleLocked() {
		f.told, f.telling = !f.told, true
		f.call(f.told)
		f.telling = false
	}
}

// call calls onIdle without the lock, which is held before and after.
func (f *Fan) call(idle bool) {
	f.mu.Unlock()
	defer f.mu.Lock()
	f.onIdle(idle)
}

func (f *Fan) idleLocked() bool { return f.had && len(f.listeners) == 0 }
