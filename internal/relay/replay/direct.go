package replay

import "github.com/sluice-gateway/sluice/internal/openai/sse"

// Direct is the short way to a client that keeps up: the producer hands over what comes in its own goroutine, and nobody is woken. As soon as
// the client does not take everything at once, events go to the listener's queue, until the listener's goroutine has caught up.
//
// Its methods are called with the listener locked, by the producer, and must not block, nor use the fan.
type Direct interface {
	// Take is the next event; nothing waits before it. It is kept until Flush.
	Take(raw []byte, number uint64)
	// Flush sends what was taken as far as the client takes it now. If something is left, whole is false, and the listener becomes Ready; it is also
	// the answer to a client that has gone.
	Flush() (whole bool)
}

// Shorten gives the listener a short way. The listener's goroutine calls it before anything was popped, and from then on locks the listener
// while it pops, or does with the client what the short way does.
func (l *Listener) Shorten(d Direct) {
	l.turn.Lock()
	l.direct = d
	l.turn.Unlock()
}

// Lock keeps the producer off the short way: what comes meanwhile waits in the queue. Who locks sends everything that was taken before it unlocks.
func (l *Listener) Lock() { l.turn.Lock() }

// Unlock opens the short way again.
func (l *Listener) Unlock() { l.turn.Unlock() }

// CaughtUp says that all that was taken has been sent. The listener is locked.
func (l *Listener) CaughtUp() { l.behind = false }

// short hands an event over by the short way. If that is not open, it does nothing.
func (l *Listener) short(e *sse.Event) (taken bool) {
	if !l.turn.TryLock() {
		return false
	}
	defer l.turn.Unlock()
	if l.direct == nil || l.behind || len(l.replay) > 0 || l.cut.Load() != nil {
		return false
	}
	number, ok := l.queue.Skip()
	if !ok {
		return false
	}
	l.direct.Take(e.Raw, l.base+number)
	l.taken = true
	return true
}

// flush sends what was handed over. Whoever has locked the listener meanwhile has done it.
func (l *Listener) flush() {
	if !l.turn.TryLock() {
		return
	}
	defer l.turn.Unlock()
	if !l.taken || l.direct == nil {
		return
	}
	l.taken = false
	if !l.direct.Flush() {
		l.behind = true
		l.wake()
	}
}

// Flush sends what was pushed since the last time to those who have a short way. The producer calls it when it is about to wait.
func (f *Fan) Flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.listeners {
		l.flush()
	}
}
