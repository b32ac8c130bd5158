// Package replay delivers the events of one generation to its subscribers, and keeps them for
// subscribers that come back. The package internal/relay uses it for every managed stream.
//
// A [Broadcast] takes the events from one producer. Each [Subscriber] receives all of them in order
// and has its own queue. A subscriber that reads slowly receives merged events or is cut off; the
// other subscribers are not affected.
//
// A broadcast with a replay log keeps its last events. A client that reconnects names the last
// event that it has seen and continues after that event, without a gap and without a duplicate. A
// broadcast without a replay log has exactly one subscriber.
//
// An [InlineWriter] is the fast path: the producer writes an event to the client itself while the
// client accepts everything at once.
//
// A [Registry] finds the generations that clients have named by a request id.
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

	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/queue"
)

var (
	// ErrNoSubscriber is the error of [Broadcast.Publish] when the broadcast has no replay log and
	// its subscriber has gone. It wraps queue.ErrTooSlow when the subscriber was cut off.
	ErrNoSubscriber = errors.New("replay: the broadcast has no subscriber")
	// ErrNotKept is the error of [Broadcast.Subscribe] when the broadcast cannot continue after the
	// given event.
	ErrNotKept = errors.New("replay: the events after the given one are not kept")
	// ErrUnsubscribed is the error of [Subscriber.Pop] after [Subscriber.Unsubscribe].
	ErrUnsubscribed = errors.New("replay: the subscriber has unsubscribed")
)

// Limits bound a [Broadcast]. The zero value has no replay log and the default queue.
type Limits struct {
	// Queue bounds the events that wait for each subscriber. Its budget is also that of the replay
	// log.
	Queue queue.Limits
	// LogBytes bounds the replay log, in bytes; the oldest events are dropped first. An event
	// counts with its own bytes plus 24. The log uses up to a third more memory than that, and a
	// subscriber holds the events that it has still to replay. 0: there is no replay log, and the
	// broadcast has one subscriber.
	LogBytes int
	// Patience is how long AwaitRoom waits for a subscriber before it cuts the subscriber off. 0:
	// for ever.
	Patience time.Duration
}

// Broadcast delivers the events of one generation to its subscribers. Only the producer's goroutine
// may call Publish, Flush, AwaitRoom and Close. Any goroutine may call the other methods.
type Broadcast struct {
	limits   queue.Limits
	patience time.Duration
	onIdle   func(idle bool)

	// room wakes AwaitRoom. awaiting says that AwaitRoom may be asleep.
	room     chan struct{}
	awaiting atomic.Bool

	// mu guards the fields below. Subscriber.writeMu is only ever tried while mu is held.
	mu          sync.Mutex
	log         *replayLog    // nil: there is no replay log
	subscribers []*Subscriber // in the order in which they subscribed
	// unclaimed is the subscriber of a broadcast without a replay log until Subscribe returns it.
	// Events that are published before wait in its queue.
	unclaimed *Subscriber
	// next is the number of the next event.
	next uint64
	// err is why the broadcast was closed: io.EOF after a complete stream. nil: it is open.
	err error
	// noSubscriber is what Publish returns when there is neither a replay log nor a subscriber.
	noSubscriber error

	everSubscribed bool
	reportedIdle   bool // the value that onIdle was called with last
	reporting      bool // onIdle is running
}

// NewBroadcast returns an open broadcast without events.
func NewBroadcast(l Limits) *Broadcast {
	b := &Broadcast{limits: l.Queue, patience: l.Patience, room: make(chan struct{}, 1), noSubscriber: ErrNoSubscriber}
	if l.LogBytes > 0 {
		b.log = &replayLog{maxBytes: l.LogBytes, hold: l.Queue.Memory.Hold(memory.Replays)}
		return b
	}
	b.unclaimed = newSubscriber(b)
	b.subscribers = []*Subscriber{b.unclaimed}
	return b
}

// OnIdle sets a function that is called with true when the last subscriber has gone, and with false
// when a subscriber has come back. Call OnIdle before the broadcast is used.
//
// The goroutine that caused the change calls fn, without holding a lock. Calls never overlap. After
// changes in quick succession fn may see only the last one, and the last value is always current
// when fn is called. A function that acts later must check [Broadcast.Subscribers] again.
func (b *Broadcast) OnIdle(fn func(idle bool)) { b.onIdle = fn }

// OnDrop sets a function that is called with each event that the replay log drops, in order. fn
// must not call the broadcast, whose lock is held, and must not keep the event. A broadcast without
// a replay log ignores it. Call OnDrop before the broadcast is used.
func (b *Broadcast) OnDrop(fn func(raw []byte)) {
	if b.log != nil {
		b.log.onDrop = fn
	}
}

// Publish copies an event to the replay log and delivers it to all subscribers. A subscriber that
// is too slow is cut off: its Pop returns queue.ErrTooSlow. A broadcast with a replay log drops
// comments, so that a client can name an event by its number.
//
// The error is ErrNoSubscriber when there is no replay log and the subscriber has gone. After Close
// it is the error of Close, io.EOF for a complete stream.
func (b *Broadcast) Publish(e *sse.Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.publishLocked(e)
	b.reportIdleLocked()
	return err
}

func (b *Broadcast) publishLocked(e *sse.Event) error {
	if b.err != nil {
		return b.err
	}
	if b.log == nil && len(b.subscribers) == 0 {
		return b.noSubscriber
	}
	if b.log != nil {
		if e.IsComment() {
			return nil
		}
		b.log.add(e.Raw)
	}
	b.next++
	tooSlow := false
	for _, s := range b.subscribers {
		if !s.deliver(e) {
			tooSlow = true
		}
	}
	if !tooSlow {
		return nil
	}
	return b.dropCutOffLocked()
}

// dropCutOffLocked drops the subscribers that were cut off. The error is as for Publish.
func (b *Broadcast) dropCutOffLocked() error {
	b.subscribers = slices.DeleteFunc(b.subscribers, (*Subscriber).isCutOff)
	if b.log != nil || len(b.subscribers) > 0 {
		return nil
	}
	b.unclaimed = nil
	b.noSubscriber = fmt.Errorf("%w: %w", ErrNoSubscriber, queue.ErrTooSlow)
	return b.noSubscriber
}

// Flush sends the events that were appended to inline writers. The producer calls it before it
// waits for the next event.
func (b *Broadcast) Flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subscribers {
		s.flushInline()
	}
}

// AwaitRoom blocks while any subscriber has maxWaiting or more events in its queue; at least one
// event has to wait for it to block. Events that a subscriber has still to replay do not count, and
// neither does a subscriber that hurries. After Limits.Patience the subscribers without room are
// cut off. The error is the cause of ctx, or as for Publish.
func (b *Broadcast) AwaitRoom(ctx context.Context, maxWaiting int) error {
	if !b.isFull(maxWaiting) {
		return nil
	}
	b.awaiting.Store(true)
	defer b.awaiting.Store(false)
	var late <-chan time.Time
	if b.patience > 0 {
		late = time.After(b.patience)
	}
	for b.isFull(maxWaiting) { // again: an event that was popped before awaiting was set has woken nobody
		select {
		case <-b.room:
		case <-late:
			return b.cutOffFull(maxWaiting)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (b *Broadcast) isFull(maxWaiting int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.subscribers, func(s *Subscriber) bool { return s.isFullLocked(maxWaiting) })
}

// cutOffFull cuts off the subscribers for which AwaitRoom has waited too long.
func (b *Broadcast) cutOffFull(maxWaiting int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subscribers {
		if s.isFullLocked(maxWaiting) {
			s.cutOff(queue.ErrTooSlow)
		}
	}
	err := b.dropCutOffLocked()
	b.reportIdleLocked()
	return err
}

// wakeAwaitRoom wakes AwaitRoom after an event was popped or a subscriber has gone.
func (b *Broadcast) wakeAwaitRoom() {
	if !b.awaiting.Load() {
		return
	}
	select {
	case b.room <- struct{}{}:
	default:
	}
}

// Close ends the broadcast. err is why; nil means that the stream is complete. Every present and
// later subscriber receives the events that wait for it and then io.EOF, or err. A second Close has
// no effect.
func (b *Broadcast) Close(err error) {
	if err == nil {
		err = io.EOF
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return
	}
	b.err = err
	for _, s := range b.subscribers {
		s.queue.Close(err)
	}
}

// Release gives the reservation of the replay log back to the budget. Call it when nobody can find
// the broadcast any more, so that its memory is free soon. The log itself stays as long as the
// broadcast, for subscribers that have just found it.
func (b *Broadcast) Release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.log != nil {
		b.log.release()
	}
}

// Subscribe adds a subscriber that has seen the events up to number after; -1 means none. The
// subscriber first receives the events that are kept, then the new ones.
//
// The error is ErrNotKept when the next event is not kept any more or the stream has not come that
// far. Without a replay log only the first Subscribe, from the beginning, succeeds.
func (b *Broadcast) Subscribe(after int64) (*Subscriber, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.subscribeLocked(uint64(after + 1))
	b.reportIdleLocked()
	return s, err
}

// SubscribeKept is Subscribe for a subscriber that needs the events before, too: it receives all
// that are kept. begin is called before, while no event can be dropped, and must not call the
// broadcast. There must be a replay log.
func (b *Broadcast) SubscribeKept(after int64, begin func()) (*Subscriber, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if from := uint64(after + 1); from < b.log.first || from > b.next {
		return nil, ErrNotKept
	}
	begin()
	s, err := b.subscribeLocked(b.log.first)
	b.reportIdleLocked()
	return s, err
}

func (b *Broadcast) subscribeLocked(from uint64) (*Subscriber, error) {
	if b.log == nil {
		if b.unclaimed == nil || from != 0 {
			return nil, ErrNotKept
		}
		s := b.unclaimed
		b.unclaimed, b.everSubscribed = nil, true
		return s, nil
	}
	if from < b.log.first || from > b.next {
		return nil, ErrNotKept
	}
	s := newSubscriber(b)
	s.queueFirst = b.next
	if from < b.next {
		s.replay, s.replayFirst = b.log.from(from), from
		s.queue.Wake()
	}
	if b.err != nil {
		s.queue.Close(b.err)
	}
	b.everSubscribed = true
	b.subscribers = append(b.subscribers, s)
	return s, nil
}

// remove removes a subscriber that has unsubscribed. It has no effect on one that was cut off.
func (b *Broadcast) remove(s *Subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.subscribers, s)
	if i < 0 {
		return
	}
	b.subscribers = slices.Delete(b.subscribers, i, i+1)
	s.cutOff(ErrUnsubscribed)
	b.wakeAwaitRoom()
	b.reportIdleLocked()
}

// Subscribers returns the number of subscribers that have neither unsubscribed nor been cut off.
func (b *Broadcast) Subscribers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unclaimed != nil {
		return 0
	}
	return len(b.subscribers)
}

// NextNumber returns the number of the next event. Without a replay log comments are numbered too.
func (b *Broadcast) NextNumber() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next
}

// reportIdleLocked calls onIdle until onIdle has been called with the current value. It releases mu
// during the call. A goroutine that finds another one reporting leaves the report to that one.
func (b *Broadcast) reportIdleLocked() {
	for b.onIdle != nil && !b.reporting && b.reportedIdle != b.isIdleLocked() {
		b.reportedIdle, b.reporting = !b.reportedIdle, true
		b.callOnIdleLocked(b.reportedIdle)
		b.reporting = false
	}
}

// callOnIdleLocked calls onIdle with mu released.
func (b *Broadcast) callOnIdleLocked(idle bool) {
	b.mu.Unlock()
	defer b.mu.Lock()
	b.onIdle(idle)
}

func (b *Broadcast) isIdleLocked() bool { return b.everSubscribed && len(b.subscribers) == 0 }
