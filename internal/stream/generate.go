package stream

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/stream/queue"
	"github.com/sluice-gateway/sluice/internal/stream/replay"
)

// Generate runs the call to its end and tells the sink of it, or joins the one that already runs under its request id. ctx ends when the
// client has left.
func (r *Relay) Generate(ctx context.Context, c *Call, sink Sink) {
	own := *c
	r.generate(ctx, &own, nil, listening{sink: sink, after: -1})
}

// listening is how somebody listens to a call.
type listening struct {
	sink Sink
	// after is the number of the last event that is known already; -1: none.
	after int64
	// foreseen: the client has waited for so long that it should hear something at once.
	foreseen bool
}

// generate is Generate for a call that is changed: its body goes when the generation has it.
func (r *Relay) generate(ctx context.Context, c *Call, pending *Pending, how listening) {
	g, fresh, fault := r.open(c, pending, how.after)
	if pending != nil && !fresh {
		pending.Abandon()
	}
	c.Body, c.Header = nil, nil
	if fault != nil {
		if c.Scan.RequestID != "" {
			r.released(c.key(), nil)
		}
		r.conclude(c, how.sink, Result{Fault: fault})
		return
	}
	result := g.listen(ctx, how)
	if fresh && g.tracer != nil && c.Scan.RequestID == "" {
		g.tracer.End(result)
	}
	if !fresh {
		result = Result{Model: result.Model, Replica: result.Replica, Fault: result.Fault, Told: result.Told, Finish: result.Finish, Cause: result.Cause}
	}
	if c.Entry != nil {
		c.Entry.Carried(result)
	}
}

// conclude ends a call that has not begun.
func (r *Relay) conclude(c *Call, sink Sink, result Result) {
	_ = sink.End(result) // there is nothing to stop
	if c.Entry != nil {
		c.Entry.Carried(result)
	}
}

// listen tells a sink of a call until either ends, and says how the call has ended, as far as this sink is concerned.
func (g *generation) listen(ctx context.Context, how listening) Result {
	defer g.relay.listens()()
	l, err := g.fan.Attach(how.after)
	if err != nil {
		fault := openai.Errorf(openai.CodeRequestIDConflict, "The events after the last one that was seen are not kept any more.")
		if !errors.Is(err, replay.ErrGone) {
			fault = closing()
		}
		_ = how.sink.End(Result{Fault: fault}) // nobody else is concerned
		return Result{Fault: fault}
	}
	defer l.Detach()
	e := ear{generation: g, listener: l, sink: how.sink}
	if s, ok := how.sink.(beginner); ok {
		s.begins(g)
	}
	return e.follow(ctx, how.foreseen)
}

// beginner is a sink that wants to know the call.
type beginner interface{ begins(*generation) }

// ear is one who listens to a call.
type ear struct {
	*generation
	listener *replay.Listener
	sink     Sink
	buffer   []byte
	// emitted counts the writes to the client; unflushed says that there is something for another
	emitted   int64
	unflushed bool
}

// follow is the loop of who listens.
func (e *ear) follow(ctx context.Context, foreseen bool) Result {
	first := e.policy.heartbeat() / 3
	if foreseen {
		first = 0
	}
	silence := time.NewTimer(first)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return e.left(context.Cause(ctx))
		case <-e.answered:
			if err := e.sink.Answer(e.answer); err != nil {
				return e.left(err)
			}
			result := e.ended()
			_ = e.sink.End(result) // the answer is all there was
			return result
		case <-e.listener.Ready():
			if result, over := e.take(); over {
				return result
			}
		case <-silence.C:
			if err := e.sink.Silence(e.progress()); err != nil {
				return e.left(err)
			}
		}
		silence.Reset(e.policy.heartbeat())
	}
}

// take hands on what waits.
func (e *ear) take() (result Result, over bool) {
	for {
		raw, number, err := e.listener.Pop(e.buffer[:0])
		e.buffer = raw
		switch {
		case err == nil:
			if err := e.sink.Event(raw, number); err != nil {
				return e.left(err), true
			}
			e.unflushed = true
			continue
		case errors.Is(err, queue.ErrEmpty):
			if err := e.sink.Flush(); err != nil {
				return e.left(err), true
			}
			e.shrink()
			e.flushed()
			return Result{}, false
		case errors.Is(err, queue.ErrTooSlow):
			return e.givenUp(), true
		default:
			if e.answerCame() {
				return Result{}, false
			}
			result = e.ended()
		}
		_ = e.sink.End(result) // it ends anyway
		e.flushed()
		return result, true
	}
}

// flushed says that what was handed on has been written.
func (e *ear) flushed() {
	if e.unflushed && e.tracer != nil {
		e.tracer.Emitted(e.emitted)
		e.emitted++
	}
	e.unflushed = false
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
	e.listener.Detach()
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
