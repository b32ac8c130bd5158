package replay

import "github.com/sluice-gateway/sluice/internal/openai/sse"

// InlineWriter is the fast path to a client that keeps up: the producer writes events to the client
// in its own goroutine, and no other goroutine is woken. As soon as the client does not accept
// everything at once, events go to the subscriber's queue until the subscriber's goroutine calls
// [Subscriber.ResumeInline].
//
// The producer calls the methods with the subscriber locked. They must neither block nor use the
// broadcast.
type InlineWriter interface {
	// Append adds the next event to the writer's buffer. No earlier event waits in the queue. raw
	// is valid until Append returns.
	Append(raw []byte, number uint64)
	// TryFlush writes the buffer as far as the client accepts it without waiting. whole is false
	// when a part is left or the client has gone; the subscriber then becomes ready.
	TryFlush() (whole bool)
}

// SetInlineWriter turns inline writes on, or off for nil. The subscriber's goroutine calls it
// before it pops the first event. From then on that goroutine locks the subscriber while it pops
// events and while it writes to the client.
func (s *Subscriber) SetInlineWriter(w InlineWriter) {
	s.writeMu.Lock()
	s.inline = w
	s.writeMu.Unlock()
}

// Lock stops inline writes: new events wait in the queue until Unlock. The caller must send
// everything that was appended before it unlocks.
func (s *Subscriber) Lock() { s.writeMu.Lock() }

// Unlock allows inline writes again.
func (s *Subscriber) Unlock() { s.writeMu.Unlock() }

// ResumeInline says that the client has been sent everything, so that new events may be written
// inline again. The caller holds the subscriber's lock and has found the queue empty.
func (s *Subscriber) ResumeInline() { s.behind = false }

// appendInline appends an event to the inline writer. It returns false, without an effect, when the
// event has to go to the queue.
func (s *Subscriber) appendInline(e *sse.Event) (appended bool) {
	if !s.writeMu.TryLock() {
		return false
	}
	defer s.writeMu.Unlock()
	if s.inline == nil || s.behind || len(s.replay) > 0 || s.isCutOff() {
		return false
	}
	number, ok := s.queue.Bypass()
	if !ok {
		return false
	}
	s.inline.Append(e.Raw, s.queueFirst+number)
	s.unflushed = true
	return true
}

// flushInline sends what was appended. It has no effect when the subscriber is locked: the
// goroutine that holds the lock sends everything before it unlocks.
func (s *Subscriber) flushInline() {
	if !s.writeMu.TryLock() {
		return
	}
	defer s.writeMu.Unlock()
	if !s.unflushed || s.inline == nil {
		return
	}
	s.unflushed = false
	if !s.inline.TryFlush() {
		s.behind = true
		s.queue.Wake()
	}
}
