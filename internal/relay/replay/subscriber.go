package replay

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/queue"
)

// Subscriber receives the events of a [Broadcast]. Its methods are for one goroutine, except
// Unsubscribe.
type Subscriber struct {
	broadcast *Broadcast
	// queue holds the events that were published since the subscriber came.
	queue *queue.Queue
	// cut is why the subscriber was cut off before it had every event. nil: it was not.
	cut atomic.Pointer[error]
	// hurries says that AwaitRoom does not wait for the subscriber. Broadcast.mu guards it.
	hurries bool

	// writeMu serialises writes to the client while inline writes are on. A goroutine that holds
	// Broadcast.mu must only try writeMu.
	writeMu sync.Mutex
	// inline is the fast path to the client. nil: there is none. writeMu guards it.
	inline InlineWriter
	// unflushed says that events were appended to inline since the last flush. writeMu guards it.
	unflushed bool
	// behind says that the client did not accept everything at once, so that new events go to the
	// queue. writeMu guards it.
	behind bool

	// replay holds the kept events that were published before the subscriber came. They are not in
	// the queue, so that no subscriber is cut off because of them. writeMu guards replay when
	// there is an inline writer; otherwise only the subscriber's goroutine uses it.
	replay      [][]byte
	replayFirst uint64 // the number of replay[0]
	queueFirst  uint64 // the number of the first event that went to the queue
}

func newSubscriber(b *Broadcast) *Subscriber {
	return &Subscriber{broadcast: b, queue: queue.New(b.limits)}
}

// deliver gives the subscriber an event, inline or by its queue. It returns false if the subscriber
// was too slow and is now cut off. Broadcast.mu is held.
func (s *Subscriber) deliver(e *sse.Event) (ok bool) {
	if s.appendInline(e) {
		return true
	}
	if err := s.queue.Push(e); err != nil {
		s.cutOff(err)
		return false
	}
	return true
}

// Hurry makes AwaitRoom not wait for the subscriber. One that is too slow is then cut off.
func (s *Subscriber) Hurry() {
	s.broadcast.mu.Lock()
	s.hurries = true
	s.broadcast.mu.Unlock()
	s.broadcast.wakeAwaitRoom()
}

// isFullLocked reports whether AwaitRoom waits for the subscriber. Broadcast.mu is held.
func (s *Subscriber) isFullLocked(maxWaiting int) bool {
	return !s.hurries && s.queue.Len() >= max(maxWaiting, 1)
}

// Ready receives when there may be something to pop. It may also receive when there is nothing.
func (s *Subscriber) Ready() <-chan struct{} { return s.queue.Ready() }

// Pop appends the next event to dst and returns its number. Merged events have the number of the
// last one: a client that has it has all events before it.
//
// The error is queue.ErrEmpty when there is no event yet, and queue.ErrTooSlow when the subscriber
// was cut off. After the last event it is the error of [Broadcast.Close], io.EOF for a complete
// stream.
func (s *Subscriber) Pop(dst []byte) ([]byte, uint64, error) {
	if err := s.cut.Load(); err != nil {
		s.replay = nil
		return dst, 0, *err
	}
	if len(s.replay) > 0 {
		dst, number := s.popReplay(dst)
		return dst, number, nil
	}
	dst, number, err := s.queue.Pop(dst)
	if err != nil {
		return dst, 0, err
	}
	s.broadcast.wakeAwaitRoom()
	return dst, s.queueFirst + number, nil
}

func (s *Subscriber) popReplay(dst []byte) ([]byte, uint64) {
	number := s.replayFirst
	dst = append(dst, s.replay[0]...)
	s.replay[0] = nil
	s.replayFirst++
	if s.replay = s.replay[1:]; len(s.replay) == 0 {
		s.replay = nil
	}
	return dst, number
}

// Unsubscribe removes the subscriber from its broadcast. The events that wait for it are lost. Any
// goroutine that does not hold the subscriber's lock may call it, more than once. Nothing is
// written inline after it has returned.
func (s *Subscriber) Unsubscribe() {
	s.SetInlineWriter(nil)
	s.broadcast.remove(s)
}

// cutOff ends the subscriber before it has every event. The reason is stored first, so that a
// goroutine that finds the queue dropped also finds the reason.
func (s *Subscriber) cutOff(err error) {
	s.cut.Store(&err)
	s.queue.Drop(err)
}

func (s *Subscriber) isCutOff() bool { return s.cut.Load() != nil }
