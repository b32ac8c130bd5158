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

// prompt is a Sink that can send without waiting for its client, so that events may reach it from the goroutine that has read them.
type prompt interface {
	Sink
	// Prompt says that it can.
	Prompt() bool
	// Gather is Event without sending anything.
	Gather(raw []byte, number uint64)
	// TryFlush sends what was gathered as far as the client takes it now. If something is left, whole is false, and Flush has to follow.
	TryFlush() (whole bool, err error)
}

// ear is one who listens to a call. It speaks to its sink with the listener locked.
type ear struct {
	*generation
	listener *replay.Subscriber
	sink     Sink
	// prompt is the sink if events may go the short way; nil: they may not
	prompt prompt
	buffer []byte
	// What follows is guarded by the listener's lock. lost is why the short way has failed.
	lost error
	// emitted counts the writes of events to the client, wrote is when the last one was; unflushed says that there is something for another.
	emitted   int64
	wrote     time.Time
	unflushed bool
}

// Append implements replay.InlineWriter.
func (e *ear) Append(raw []byte, number uint64) {
	e.prompt.Gather(raw, number)
	e.unflushed = true
}

// TryFlush implements replay.InlineWriter.
func (e *ear) TryFlush() (whole bool) {
	whole, err := e.prompt.TryFlush()
	if err != nil {
		e.lost = err
		return false
	}
	if whole {
		e.flushed()
	}
	return whole
}

// follow is the loop of who listens.
func (e *ear) follow(ctx context.Context, foreseen bool) Result {
	if p, ok := e.sink.(prompt); ok && p.Prompt() {
		e.prompt = p
		e.listener.SetInlineWriter(e)
	}
	first := e.policy.heartbeat() / 3
	if foreseen {
		first = 0
	}
	silence := time.NewTimer(first)
	defer silence.Stop()
	for {
		var result Result
		var over bool
		var err error
		next := e.policy.heartbeat()
		select {
		case <-ctx.Done():
			return e.left(context.Cause(ctx))
		case <-e.answered:
			result, err = e.whole()
			over = true
		case <-e.listener.Ready():
			result, over, err = e.take()
		case <-silence.C:
			next, err = e.silent()
		}
		switch {
		case err != nil:
			return e.left(err)
		case over:
			return result
		}
		silence.Reset(next)
	}
}

// whole hands on an answer that is no stream.
func (e *ear) whole() (Result, error) {
	e.listener.Lock()
	defer e.listener.Unlock()
	if err := e.sink.Answer(e.answer); err != nil {
		return Result{}, err
	}
	result := e.ended()
	_ = e.sink.End(result) // the answer is all there was
	return result, nil
}

// silent tells the client what is waited for, unless it has heard something meanwhile. It returns when the next silence is due.
func (e *ear) silent() (next time.Duration, err error) {
	e.listener.Lock()
	defer e.listener.Unlock()
	if e.unflushed { // by the producer, who finds the listener locked now
		if err := e.sink.Flush(); err != nil {
			return 0, err
		}
		e.flushed()
	}
	interval := e.policy.heartbeat()
	if left := interval - time.Since(e.wrote); left > 0 {
		return left, nil
	}
	return interval, e.sink.Silence(e.progress())
}

// take hands on what waits.
func (e *ear) take() (result Result, over bool, err error) {
	e.listener.Lock()
	defer e.listener.Unlock()
	if e.lost != nil {
		return Result{}, false, e.lost
	}
	for {
		raw, number, err := e.listener.Pop(e.buffer[:0])
		e.buffer = raw
		switch {
		case err == nil:
			if err := e.sink.Event(raw, number); err != nil {
				return Result{}, false, err
			}
			e.unflushed = true
			continue
		case errors.Is(err, queue.ErrEmpty):
			if err := e.sink.Flush(); err != nil {
				return Result{}, false, err
			}
			e.shrink()
			e.flushed()
			e.listener.ResumeInline()
			return Result{}, false, nil
		case errors.Is(err, queue.ErrTooSlow):
			return e.givenUp(), true, nil
		default:
			if e.answerCame() {
				return Result{}, false, nil
			}
			result = e.ended()
		}
		_ = e.sink.End(result) // it ends anyway
		e.flushed()
		return result, true, nil
	}
}

// flushed says that what was handed on has been written.
func (e *ear) flushed() {
	if !e.unflushed {
		return
	}
	e.unflushed, e.wrote = false, time.Now()
	if e.tracer != nil {
		e.tracer.Emitted(e.emitted)
		e.emitted++
	}
}

// givenUp is the end of a client that reads too slowly, and of the call if it was the only one that could listen.
func (e *ear) givenUp() Result {
	result := e.sofar()
	if e.call.Scan.RequestID == "" {
		result = e.ended()
	}
	result.Fault, result.Cause = slow(), causeSlow
	_ = e.sink.End(result) // it ends anyway
	return result
}

// answerCame says that the end of the events is not the end of all: the answer is no stream.
func (e *ear) answerCame() bool {
	select {
	case <-e.answered:
		return true
	default:
		return false
	}
}

// maxKeptBuffer is what a stream keeps of its buffer while nothing comes, in bytes.
const maxKeptBuffer = 1 << 10

func (e *ear) shrink() {
	if cap(e.buffer) > maxKeptBuffer {
		e.buffer = nil
	}
}

// ended is how the call has ended; it waits for the last of it, which is at hand.
func (e *ear) ended() Result {
	<-e.done
	return e.result
}

// left is what is to be written down of a call whose client has left, and why: all of it where the call ends with the client, else what is
// known so far. A client that says by an error that it wants the call cancelled does not leave it to a grace.
func (e *ear) left(why error) Result {
	var fault *openai.Error
	cause := causeClient
	switch {
	case errors.As(why, &fault):
		cause = causeOfCode(fault.Code)
	case errors.Is(why, os.ErrDeadlineExceeded): // it took nothing for so long
		cause, fault = causeSlow, slow()
	}
	if cause == causeCancelled {
		e.cancel(errCancelled)
	}
	e.listener.Unsubscribe()
	result := e.sofar()
	if e.call.Scan.RequestID == "" {
		result = e.ended()
	}
	if result.Cause == "" || result.Cause == causeClient {
		result.Cause = cause
	}
	if fault != nil {
		result.Fault = fault
	}
	return result
}

// causeOfCode is who ended a stream that a sink has ended with this error.
func causeOfCode(code openai.Code) string {
	switch code {
	case openai.CodeCancelled:
		return causeCancelled
	case openai.CodeClientTooSlow:
		return causeSlow
	case openai.CodeGatewayUnavailable:
		return causeGateway
	}
	return causeClient
}
