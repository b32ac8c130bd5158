package stream

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/stream/moderation"
	"github.com/sluice-gateway/sluice/internal/stream/queue"
	"github.com/sluice-gateway/sluice/internal/stream/sse"
)

// Reasons for which a stream finishes that no engine gives.
const (
	finishLength   = "length"
	finishFiltered = "content_filter"
)

const (
	// readSize is what is read of an engine at once, in bytes.
	readSize = 8 << 10
	// maxHeld bounds what is kept of a stream before its first token, in bytes.
	maxHeld = 64 << 10
)

// buffers are for reading; a stream that waits holds one.
var buffers = sync.Pool{New: func() any { return new([readSize]byte) }}

// tokens is the stream of one replica. It is for one goroutine.
type tokens struct {
	*attempts
	at     dispatch.Upstream
	sent   time.Time
	ctx    context.Context
	cancel context.CancelCauseFunc
	// first is the time for the first token; nil: there is no limit
	first, stall *time.Timer

	filter  *moderation.Filter // nil: there are no rules
	scanner sse.Scanner
	tracker sse.Tracker
	// held are events of before the first token, withheld those that a rule has to see more of
	held     []byte
	withheld backlog
	// begun: a token has come, and there is no way back to another replica
	begun         bool
	start, latest time.Time
	sampled       bool
	head          []byte // the data of the first token's event: what Sluice's own events copy from
	stopped       error  // why no more is wanted
	// turn decides between the first token and who wants the attempt to make way for another
	turn atomic.Int32
}

// What an attempt's turn may be.
const (
	turnOpen int32 = iota
	turnTaken
	turnGiven
)

// giveWay ends the attempt, unless its first token was quicker.
func (t *tokens) giveWay(cause error) {
	if t.turn.CompareAndSwap(turnOpen, turnGiven) {
		t.cancel(cause)
	}
}

// read passes the stream on. The reason is as for try.
func (t *tokens) read(body io.Reader) (reason string) {
	t.tracker.Choices = t.call.Scan.Choices
	if t.rules != nil {
		t.filter = t.rules.Stream()
	}
	t.sampled = t.sample()
	buffer := buffers.Get().(*[readSize]byte)
	defer buffers.Put(buffer)
	for t.stopped == nil {
		n, err := body.Read(buffer[:])
		t.attempts.read += int64(n)
		t.scanner.Feed(buffer[:n])
		t.events()
		if err != nil {
			t.scanner.End()
			t.events()
			return t.over(err)
		}
	}
	return t.over(nil)
}

// events takes what the scanner has.
func (t *tokens) events() {
	for t.stopped == nil && t.scanner.Next() {
		t.event(t.scanner.Event())
	}
	if err := t.scanner.Err(); err != nil && t.stopped == nil {
		t.stopped = err
	}
}

// event takes one event.
func (t *tokens) event(e *sse.Event) {
	if e.Cut || t.tracker.Done() {
		t.tracker.See(e)
		return // a client by the book would ignore it
	}
	if e.IsComment() {
		if t.begun && t.withheld.len() == 0 {
			t.push(e)
		}
		return
	}
	chunk := t.tracker.See(e)
	if chunk.Bad && !e.IsDone() && t.call.Scan.Endpoint.Generates() {
		t.stopped = errMalformed
		return
	}
	if t.stall != nil {
		t.stall.Reset(t.policy.StallTimeout)
	}
	if chunk.Token {
		t.token(e)
	}
	if t.stopped != nil || t.hidden(chunk) {
		return
	}
	if !t.begun && !t.endsEarly(chunk, e) && len(t.held)+len(e.Raw) <= maxHeld {
		t.held = sse.AppendRaw(t.held, e.Raw)
		return
	}
	t.begin()
	t.judge(e)
}

// endsEarly says that a stream says something final before it had a token.
func (t *tokens) endsEarly(chunk *sse.Chunk, e *sse.Event) bool {
	return e.IsDone() || chunk.Last || t.tracker.Finish() != ""
}

// hidden says that the event is the one with the usage, which the client did not ask for.
func (t *tokens) hidden(c *sse.Chunk) bool {
	return t.policy.InjectUsage && !t.call.Scan.IncludeUsage && c.HasUsage && len(c.Choices) == 0 && t.call.Scan.Endpoint.Chunked()
}

// take has the first token decide that the attempt stays, unless it was given up a moment ago.
func (t *tokens) take() bool {
	if !t.turn.CompareAndSwap(turnOpen, turnTaken) {
		return false
	}
	if !t.ticket.FirstToken() { // another request has its place already
		t.turn.Store(turnGiven)
		t.cancel(errPreempted)
		return false
	}
	return true
}

// sample says whether the times between the tokens of this stream are told.
func (t *tokens) sample() bool {
	return t.relay.sampled.Add(1)%sampleEvery == 0 || t.policy.Sample > 0
}

// sampleEvery is how many managed streams there are to one whose times between tokens are told.
const sampleEvery = 4

// token notes that one has come.
func (t *tokens) token(e *sse.Event) {
	now := time.Now()
	if !t.start.IsZero() {
		if t.sampled {
			t.relay.config.Gap(t.ticket.Model, now.Sub(t.latest))
		}
		if t.tracer != nil {
			t.tracer.Token(t.tracker.Tokens() - 1)
		}
		t.latest = now
		return
	}
	if !t.take() {
		t.stopped = errMadeWay
		return
	}
	t.start, t.latest = now, now
	t.head = append([]byte(nil), e.Data[:min(len(e.Data), maxHead)]...)
	if t.first != nil {
		t.first.Stop()
	}
	if d := t.policy.StallTimeout; d > 0 {
		t.stall = time.AfterFunc(d, func() { t.cancel(errStalled) })
	}
	t.result.TTFT = now.Sub(t.call.Received)
	t.enter(Decode, nil)
	t.note(func(r *Result) { r.TTFT = t.result.TTFT })
	if t.tracer != nil {
		t.tracer.FirstToken()
	}
	t.begin()
}

// begin sends what was held before the first token.
func (t *tokens) begin() {
	if t.begun {
		return
	}
	t.begun = true
	held := t.held
	t.held = nil
	t.again(held)
}

// again takes events that were held.
func (t *tokens) again(held []byte) {
	each(held, func(e *sse.Event) bool {
		t.judge(e)
		return t.stopped == nil
	})
}

// judge has the rules look at an event before it goes on.
func (t *tokens) judge(e *sse.Event) {
	if t.filter == nil {
		t.push(e)
		return
	}
	verdict := t.filter.See(t.ctx, e.Data)
	if verdict.Err != nil {
		t.relay.config.Log.Warn("the service that judges text gave no answer", zap.String("rule", verdict.Rule), zap.Error(verdict.Err))
	}
	switch verdict.Action {
	case moderation.Block:
		t.stopped = errFiltered
	case moderation.Hold:
		t.withheld.add(e.Raw)
		t.release(verdict.Keep)
	default:
		t.release(0)
		t.push(e)
	}
}

var (
	errFiltered  = errors.New("a rule ends the stream")
	errMalformed = errors.New("an event that is no JSON")
	errMadeWay   = errors.New("the attempt has made way for another")
)

// release sends what a rule had to see more of, but for so many of the last events.
func (t *tokens) release(keep int) {
	if t.withheld.len() > keep {
		each(t.withheld.take(t.withheld.len()-keep), t.pushed)
	}
}

// pushed is push, as long as more is wanted.
func (t *tokens) pushed(e *sse.Event) (more bool) {
	t.push(e)
	return t.stopped == nil
}

// push gives an event to who listens.
func (t *tokens) push(e *sse.Event) {
	t.result.Answered = true
	if err := t.fan.Push(e); err != nil {
		t.stopped = errLeft
		if errors.Is(err, queue.ErrTooSlow) {
			t.stopped = errSlow
		}
		return
	}
	if t.call.Patient {
		if err := t.fan.Await(t.ctx, queue.DefaultSoft); err != nil {
			t.stopped = err
		}
	}
}

// over is the end of the stream; err is how reading it ended, nil when no more was wanted.
func (t *tokens) over(err error) (reason string) {
	if t.stall != nil {
		t.stall.Stop()
	}
	t.count()
	if err != nil && t.stopped == nil && t.filter != nil && t.begun && t.filter.End(t.ctx).Action == moderation.Block {
		t.stopped = errFiltered
	}
	if cause := context.Cause(t.ctx); t.stopped == nil && cause != nil && !t.tracker.Done() {
		t.stopped = cause
	}
	switch {
	case t.turn.Load() == turnGiven, errors.Is(t.stopped, errMalformed) && !t.begun:
		return t.failed(err)
	case t.stopped != nil:
		t.stop()
		return ""
	}
	switch t.tracker.Outcome() {
	case sse.Complete:
		t.begin()
		t.release(0)
		if !t.tracker.Done() {
			t.own(sse.AppendDone(nil))
		}
		return ""
	case sse.Failed:
		return t.failure()
	}
	if !t.begun {
		return t.failed(err)
	}
	t.release(0)
	t.relay.config.Failed(t.at.ID, dispatch.Reset, "broke a response off")
	t.result.Fault, t.result.Cause = openai.Errorf(openai.CodeUpstreamTruncated, "The engine's answer ended before it was whole."), causeEngine
	return ""
}

// failure is the end of a stream in which the engine told of a fault.
func (t *tokens) failure() (reason string) {
	t.result.Fault = openai.Errorf(openai.CodeUpstreamError, "The engine could not finish its answer.")
	if !t.begun {
		t.lastWords = t.held // should no other replica do better
		return reason5xx
	}
	t.release(0)
	t.result.Told, t.result.Cause = true, causeEngine
	return ""
}

// stop ends a stream of which no more is wanted, with an event of Sluice's own where there is one.
func (t *tokens) stop() {
	t.cancel(t.stopped)
	switch {
	case errors.Is(t.stopped, errFiltered):
		t.result.Cause = causeModeration
		t.finish(finishFiltered)
	case errors.Is(t.stopped, errTimeout), errors.Is(t.stopped, errTooLong):
		t.result.Cause = causeTimeout
		t.begin()
		t.release(0)
		t.finish(finishLength)
	case errors.Is(t.stopped, errStalled):
		t.release(0)
		t.result.Fault, t.result.Cause = openai.Errorf(openai.CodeUpstreamTimeout, "The engine stopped in the middle of its answer."), causeTimeout
	case errors.Is(t.stopped, errMalformed):
		t.release(0)
		t.result.Fault, t.result.Cause = openai.Errorf(openai.CodeUpstreamError, "The engine sent an event that cannot be read."), causeEngine
	case errors.Is(t.stopped, sse.ErrTooLarge):
		t.result.Fault, t.result.Cause = openai.Errorf(openai.CodeUpstreamError, "The engine sent an event that is too large."), causeEngine
	default:
		t.result.Fault, t.result.Cause = faultOf(t.stopped), causeOf(t.stopped)
	}
}

// count writes down what the stream has cost.
func (t *tokens) count() {
	u, known := t.tracker.Usage()
	t.result.Usage = Usage{Prompt: u.Prompt, Completion: u.Completion, Cached: u.Cached, Known: known}
	if !known {
		t.result.Usage.Completion = t.tracker.Tokens()
	}
	t.result.Finish = t.tracker.Finish()
	if !t.start.IsZero() {
		t.result.Decode = t.latest.Sub(t.start)
	}
}
