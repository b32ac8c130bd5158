package replay

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/sluice-gateway/sluice/internal/relay/queue"
)

// Listener is one who hears a [Fan]. Its methods are for one goroutine, but for Detach.
type Listener struct {
	fan   *Fan
	queue *queue.Queue
	ready chan struct{}
	cut   atomic.Pointer[cut]

	// turn is held by who speaks to the client, where there is a short way. It is taken under the fan's lock by TryLock alone.
	turn   sync.Mutex
	direct Direct // nil: there is no short way, or not any more; guarded by turn
	taken  bool   // something was taken since the last Flush; guarded by turn
	behind bool   // the client has not taken all of it; guarded by turn

	// What is kept of before this listener came. It is not in the queue, so that nobody is given up for it.
	// Where there is a short way turn guards it, and base.
	replay []entry
	at     uint64 // number of replay[0]
	base   uint64 // number of the first event in the queue
	err    error  // what has cut it off while it replayed
}

// cut says that a listener was ended before it had everything.
type cut struct {
	err  error
	lost bool // something was lost of the queue; what is left of the replay is lost anyhow
}

func newListener(f *Fan) *Listener {
	return &Listener{fan: f, queue: queue.New(f.limits), ready: make(chan struct{}, 1)}
}

// Ready receives when there may be something to pop. It may also receive when there is nothing.
func (l *Listener) Ready() <-chan struct{} { return l.ready }

// Pop appends the next event to dst and tells its number, of merged ones that of the last part: who has it has all before it. The error is
// queue.ErrEmpty when there is none yet, and after the last one io.EOF or what the fan was ended with; queue.ErrTooSlow when the listener
// was given up.
func (l *Listener) Pop(dst []byte) ([]byte, uint64, error) {
	if len(l.replay) > 0 {
		c := l.cut.Load()
		if c == nil {
			return l.again(dst)
		}
		l.err, l.replay = c.err, nil
	}
	if l.err != nil {
		return dst, 0, l.err
	}
	dst, item, err := l.queue.Pop(dst)
	if err == nil {
		l.fan.roomier()
		return dst, l.base + item.Last, nil
	}
	if errors.Is(err, queue.ErrEmpty) {
		return dst, 0, err
	}
	// A queue that had ended well before it was dropped says that all is well.
	if c := l.cut.Load(); c != nil && c.lost {
		err = c.err
	}
	return dst, 0, err
}

// again gives the next event of those that were kept.
func (l *Listener) again(dst []byte) ([]byte, uint64, error) {
	number := l.at
	dst = append(dst, l.replay[0].raw...)
	l.replay[0] = entry{}
	l.at++
	if l.replay = l.replay[1:]; len(l.replay) == 0 {
		l.replay = nil
	}
	return dst, number, nil
}

// Detach says that the listener has left. What waits for it is lost. It may be called by any goroutine that has not locked the listener, and
// again. When it returns nothing more is handed over.
func (l *Listener) Detach() {
	l.Shorten(nil)
	l.fan.detach(l)
}

func (l *Listener) wake() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

func (l *Listener) end(err error) {
	l.queue.End(err)
	l.wake()
}

// drop cuts the listener off. The mark comes first: who finds the queue empty by this must find it.
func (l *Listener) drop(err error) {
	l.cut.Store(&cut{err: err, lost: l.queue.Len() > 0})
	l.queue.Drop(err)
	l.wake()
}
