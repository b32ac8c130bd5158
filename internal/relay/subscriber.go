package relay

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/queue"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// maxIdleBuffer bounds the buffers that a stream keeps while it waits for its engine, in bytes.
const maxIdleBuffer = 1 << 10

// subscription is how a sink subscribes to a generation.
type subscription struct {
	sink Sink
	// after is the number of the last event that the client has seen, or noEvent.
	after int64
	// foreseen says that the client will have to wait, so that it gets a heartbeat at once.
	foreseen bool
	// patient is Call.Patient of the client's own call.
	patient bool
}

// subscriber receives the events of a generation and writes them to a sink. Its goroutine, in run,
// is the one that serves the client. The generation's goroutine calls Append and TryFlush.
//
// Every call of the sink is made with the lock of events held, so that inline writes and the
// subscriber's own writes do not mix.
type subscriber struct {
	gen    *generation
	events *replay.Subscriber
	sink   Sink
	// inline is the sink if it can write inline. nil: it cannot.
	inline InlineSink
	// selective is the sink if its client may get nothing of an event. nil: it gets all of them.
	selective SelectiveSink

	// The lock of events guards the fields below.

	// buffer holds the event that was popped last.
	buffer []byte
	// inlineErr is why an inline write has failed. nil: none has.
	inlineErr error
	// passed is SelectiveSink.Passed after the last event.
	passed int64
	// unflushed says that events for the client were given to the sink since its last flush.
	unflushed bool
	// lastFlush is when events were flushed last.
	lastFlush time.Time
	// wrote says that the client got something of the events that were written last. Only run uses
	// it.
	wrote bool
	// moved says that the generation has ended because the successor carries the call now.
	moved bool
	// flushes counts the flushes of events, for the trace.
	flushes int64
}

// subscribe writes the events of the generation to a sink until either ends. It returns how the
// call has ended for this sink, or that the call has moved to the successor (Relay.Retire) before
// the sink had an event. ctx ends when the client has left.
func (g *generation) subscribe(ctx context.Context, how subscription) (result Result, moved bool) {
	defer g.relay.delayClose()()
	events, err := g.subscribeAfter(how)
	if err != nil {
		fault := openai.Errorf(openai.CodeRequestIDConflict, "The events after the last one that was seen are not kept, or there are none.")
		_ = how.sink.Finish(Result{Fault: fault}) // the generation goes on for others
		return Result{Fault: fault}, false
	}
	defer events.Unsubscribe()
	if !how.patient {
		events.Hurry()
	}
	s := &subscriber{gen: g, events: events, sink: how.sink}
	if h, ok := how.sink.(*httpSink); ok {
		h.gen = g
	}
	s.selective, _ = how.sink.(SelectiveSink)
	if inline, ok := how.sink.(InlineSink); ok && inline.CanWriteInline() {
		s.inline = inline
		events.SetInlineWriter(s)
	}
	result = s.run(ctx, how.foreseen)
	return result, s.moved
}

// subscribeAfter subscribes to the events after the last one that the client has seen.
func (g *generation) subscribeAfter(how subscription) (*replay.Subscriber, error) {
	if h, ok := how.sink.(*httpSink); ok && h.translator != nil {
		return g.subscribeTranslated(h.translator, how.after)
	}
	return g.broadcast.Subscribe(how.after)
}

// Append implements replay.InlineWriter.
func (s *subscriber) Append(raw []byte, number uint64) {
	s.inline.Append(raw, number)
	s.recordEvent()
}

// recordEvent records that an event was given to the sink.
func (s *subscriber) recordEvent() {
	if s.selective == nil {
		s.unflushed = true
		return
	}
	if n := s.selective.Passed(); n != s.passed {
		s.passed, s.unflushed = n, true
	}
}

// TryFlush implements replay.InlineWriter.
func (s *subscriber) TryFlush() (whole bool) {
	whole, err := s.inline.TryFlush()
	if err != nil {
		s.inlineErr = err
		return false
	}
	if whole {
		s.recordFlush()
	}
	return whole
}

// run serves the sink until the generation or the client is done. While inline writes go well, it
// wakes only for heartbeats and for the end.
func (s *subscriber) run(ctx context.Context, foreseen bool) Result {
	wait := s.gen.policy.heartbeat() / 3
	if foreseen {
		wait = 0
	}
	heartbeat := time.NewTimer(wait)
	defer heartbeat.Stop()
	for {
		var result Result
		var finished bool
		var err error
		next, again := s.gen.policy.heartbeat(), true
		select {
		case <-ctx.Done():
			return s.leave(context.Cause(ctx))
		case <-s.gen.answered:
			result, err = s.writeAnswer()
			finished = true
		case <-s.events.Ready():
			result, finished, err = s.writeEvents()
			again = s.wrote // else the heartbeat stays due when it was
		case <-heartbeat.C:
			next, err = s.writeHeartbeat()
		}
		switch {
		case err != nil:
			return s.leave(err)
		case finished:
			return result
		}
		if again {
			heartbeat.Reset(next)
		}
	}
}

// writeAnswer writes an answer that is no stream, and finishes the sink.
func (s *subscriber) writeAnswer() (Result, error) {
	s.events.Lock()
	defer s.events.Unlock()
	if err := s.sink.Answer(s.gen.answer); err != nil {
		return Result{}, err
	}
	result := s.finalResult()
	_ = s.sink.Finish(result) // the answer is all there was
	return result, nil
}

// writeHeartbeat writes a heartbeat, unless events were flushed meanwhile. It returns when the next
// one is due.
func (s *subscriber) writeHeartbeat() (next time.Duration, err error) {
	s.events.Lock()
	defer s.events.Unlock()
	if s.unflushed { // events were appended inline; the generation cannot flush them while the lock is held
		if err := s.sink.Flush(); err != nil {
			return 0, err
		}
		s.recordFlush()
	}
	interval := s.gen.policy.heartbeat()
	if left := interval - time.Since(s.lastFlush); left > 0 {
		return left, nil
	}
	if s.gen.sentEnd.Load() { // the engine may keep its response open for a moment
		return interval, nil
	}
	return interval, s.sink.Heartbeat(s.gen.progress())
}

// writeEvents writes the events that wait in the queue. After the last one it finishes the sink.
func (s *subscriber) writeEvents() (result Result, finished bool, err error) {
	s.events.Lock()
	defer s.events.Unlock()
	if s.inlineErr != nil {
		return Result{}, false, s.inlineErr
	}
	for {
		raw, number, err := s.events.Pop(s.buffer[:0])
		s.buffer = raw
		switch {
		case err == nil:
			if err := s.sink.Event(raw, number); err != nil {
				return Result{}, false, err
			}
			s.recordEvent()
			continue
		case errors.Is(err, queue.ErrEmpty):
			return Result{}, false, s.catchUp()
		case errors.Is(err, queue.ErrTooSlow):
			return s.finishTooSlow(), true, nil
		case s.hasAnswer():
			return Result{}, false, nil // run writes the answer
		}
		result = s.finalResult()
		if s.moved = s.gen.moved; s.moved {
			return result, true, nil
		}
		_ = s.sink.Finish(result) // the generation has ended already
		s.recordFlush()
		return result, true, nil
	}
}

// catchUp flushes the sink after the last event that waited, and resumes inline writes.
func (s *subscriber) catchUp() error {
	s.wrote = s.unflushed
	if err := s.sink.Flush(); err != nil {
		return err
	}
	if cap(s.buffer) > maxIdleBuffer {
		s.buffer = nil
	}
	s.recordFlush()
	s.events.ResumeInline()
	return nil
}

// recordFlush records that the events given to the sink have been written to the client.
func (s *subscriber) recordFlush() {
	if !s.unflushed {
		return
	}
	s.unflushed, s.lastFlush = false, time.Now()
	if s.gen.trace != nil {
		s.gen.trace.Emitted(s.flushes)
		s.flushes++
	}
}

// finishTooSlow finishes the sink of a client that was cut off because it reads too slowly. A
// generation without a name ends with it.
func (s *subscriber) finishTooSlow() Result {
	result := s.resultAtLeave()
	result.Fault, result.Cause = tooSlowFault(), causeSlow
	_ = s.sink.Finish(result) // the client is cut off anyway
	return result
}

// hasAnswer reports whether the generation has ended with an answer that is no stream.
func (s *subscriber) hasAnswer() bool {
	select {
	case <-s.gen.answered:
		return true
	default:
		return false
	}
}

// finalResult waits for the generation, which is about to be done, and returns its result.
func (s *subscriber) finalResult() Result {
	<-s.gen.done
	return s.gen.result
}

// resultAtLeave returns the result for a subscriber that leaves before the end: the final one if
// the generation ends with this subscriber, else the result so far.
func (s *subscriber) resultAtLeave() Result {
	if s.gen.call.isNamed() {
		return s.gen.status.resultSoFar()
	}
	return s.finalResult()
}

// leave ends the subscription of a client that has left or cannot be written to. why is the cause
// of the client's context or the error of the sink. A client that gives the error
// openai.CodeCancelled cancels the generation also for others.
func (s *subscriber) leave(why error) Result {
	var fault *openai.Error
	cause := causeClient
	switch {
	case errors.As(why, &fault):
		cause = causeOfCode(fault.Code)
	case errors.Is(why, os.ErrDeadlineExceeded): // the client has accepted nothing for the whole write timeout
		cause, fault = causeSlow, tooSlowFault()
	}
	if cause == causeCancelled {
		s.gen.cancel(errCancelled)
	}
	s.events.Unsubscribe()
	result := s.resultAtLeave()
	if result.Cause == "" || result.Cause == causeClient {
		result.Cause = cause
	}
	if fault != nil {
		result.Fault = fault
	}
	return result
}
