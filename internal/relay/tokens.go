package relay

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
	"github.com/sluice-gateway/sluice/internal/relay/queue"
)

// Reasons for which a stream finishes that no engine gives.
const (
	finishLength   = "length"
	finishFiltered = "content_filter"
)

const (
	// readSize is what is read of an engine at once, in bytes: a few events. One that sends more gets readMore.
	readSize = 2 << 10
	readMore = 8 << 10
	// maxHeld bounds what is kept of a stream before its first token, in bytes.
	maxHeld = 64 << 10
)

// Buffers for reading. A stream that waits holds one, so most are small.
var (
	buffers      = sync.Pool{New: func() any { return new([readSize]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([readMore]byte) }}
)

// tokens is the stream of one replica. It is for one goroutine.
type tokens struct {
	*attempts
	at     dispatch.Upstream
	sent   time.Time
	ctx    context.Context
	cancel context.CancelCauseFunc
	// first is the time for the first token; nil: there is no limit
	first *time.Timer
	// stall is the time for the next event, which runs only while the engine is waited for; nil: there is no limit. heard is when the last one
	// was done with, and news says that there were some since.
	stall *time.Timer
	heard time.Time
	news  bool
	// linger is the time for the end of the response after the end marker; nil: that has not come
	linger *time.Timer

	filter  *moderation.Filter // nil: there are no rules
	scanner sse.Scanner
	tracker sse.Tracker
	// held are events of before the first token, withheld those that a rule has to see more of, or has blocked
	held     []byte
	withheld backlog
	// begun: a token has come, and there is no way back to another replica; marked: the end marker was sent
	begun, marked bool
	// cut: it broke off within an event
	cut           bool
	start, latest time.Time
	sampled       bool
	head          []byte // the data of the first token's event: what Sluice's own events copy from
	stopped       error  // why no more is wanted
	ending        bool   // the engine is through, or is not listened to any more
	// turn decides between the first token and who wants the attempt to make way for another
	turn atomic.Int32
}

// What an attempt's turn may be.
const (
	turnOpen int32 = iota
	turnTaken
	turnGiven
)

// Why no more is wanted of a stream, beside the ends of a call.
var (
	errFiltered  = errors.New("a rule ends the stream")
	errMalformed = errors.New("an event that is no JSON")
	errMadeWay   = errors.New("the attempt has made way for another")
	errTold      = errors.New("the engine has told of a fault")
	errEnough    = errors.New("the engine does not end its response")
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
		t.filter.Model = t.ticket.Model
	}
	t.sampled = t.sample()
	small := buffers.Get().(*[readSize]byte)
	defer buffers.Put(small)
	defer t.rest()
	buffer := small[:]
	for t.stopped == nil {
		t.await()
		n, err := body.Read(buffer)
		t.rest()
		t.attempts.read += int64(n)
		t.scanner.Feed(buffer[:n])
		t.events()
		t.broadcast.Flush()
		if n == len(buffer) && n == readSize { // there is more to come at once
			large := largeBuffers.Get().(*[readMore]byte)
			defer largeBuffers.Put(large) // not in a loop: it comes here once
			buffer = large[:]
		}
		if err != nil {
			t.scanner.End()
			t.events()
			return t.over(err)
		}
	}
	return t.over(nil)
}

// lingering is how long an engine has after the end marker to end its response, so that its connection can be used again.
const lingering = 500 * time.Millisecond

// await starts the clocks of the engine, for as long as nothing but its next bytes is waited for.
func (t *tokens) await() {
	if d := t.policy.StallTimeout; d > 0 && !t.start.IsZero() {
		if t.news {
			t.heard, t.news = time.Now(), false
		}
		left := d - time.Since(t.heard)
		if t.stall == nil {
			t.stall = time.AfterFunc(left, func() { t.cancel(errStalled) })
		} else {
			t.stall.Reset(left)
		}
	}
	if t.linger == nil && t.tracker.Done() {
		t.linger = time.AfterFunc(lingering, func() { t.cancel(errEnough) })
	}
}

// rest stops them. The end marker's runs on.
func (t *tokens) rest() {
	if t.stall != nil {
		t.stall.Stop()
	}
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
	switch {
	case t.tracker.Done() && (t.marked || !e.IsDone()):
		return // what follows the end means nothing
	case e.Cut:
		t.tracker.See(e)
		t.cut = true
		return // a client by the book would ignore it
	case e.IsComment():
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
	t.news = true
	if chunk.Token || !t.call.Scan.Endpoint.Generates() { // of other endpoints' events any is something of the answer
		t.token(e)
	}
	if t.stopped != nil || t.hidden(chunk) {
		return
	}
	over := e.IsDone() || chunk.Last || finishes(chunk)
	if !t.begun && !over && len(t.held)+len(e.Raw) <= maxHeld {
		t.held = sse.AppendRaw(t.held, e.Raw)
	} else if t.begin(); t.stopped == nil {
		t.judge(e, over && (e.IsDone() || chunk.Last || len(t.tracker.Unfinished()) == 0))
	}
	if chunk.Error && t.stopped == nil {
		t.stopped = errTold // nothing that follows matters, not even an end marker
	}
}

// finishes says that a choice ends with the chunk.
func finishes(chunk *sse.Chunk) bool {
	return slices.ContainsFunc(chunk.Choices, func(c sse.Choice) bool { return len(c.Finish) > 0 })
}

// hidden says that the event is the one with the usage, which the client did not ask for.
func (t *tokens) hidden(c *sse.Chunk) bool {
	return t.policy.InjectUsage && !t.call.Scan.IncludeUsage && c.HasUsage && len(c.Choices) == 0 && !c.Error && t.call.Scan.Endpoint.Chunked()
}

// take has the first token decide that the attempt stays, unless it was given up a moment ago.
func (t *tokens) take() bool {
	if t.turn.Load() == turnTaken {
		return true
	}
	if !t.turn.CompareAndSwap(turnOpen, turnTaken) {
		return false
	}
	if !t.ticket.FirstToken() { // another request has its place already
		t.turn.Store(turnGiven)
		t.cancel(errPreempted)
		return false
	}
	if t.first != nil {
		t.first.Stop()
	}
	t.letGo()
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
	t.result.TTFT, t.prefill = now.Sub(t.call.Received), now.Sub(t.sent)
	t.enter(Decode, nil)
	t.note(func(r *Result) { r.TTFT = t.result.TTFT })
	if t.tracer != nil {
		t.tracer.FirstToken()
	}
	t.begin()
}

// begin sends what was held before the first token. It may find that it is too late for that.
func (t *tokens) begin() {
	if t.begun {
		return
	}
	if !t.take() {
		t.stopped = errMadeWay
		return
	}
	t.begun = true
	held := t.held
	t.held = nil
	each(held, func(e *sse.Event) bool {
		t.judge(e, false)
		return t.stopped == nil
	})
}

// judge has the rules look at an event before it goes on; last says that the answer is over with it, so that they have seen all of it
// before its client is told so.
func (t *tokens) judge(e *sse.Event, last bool) {
	if t.filter == nil {
		t.push(e)
		return
	}
	t.broadcast.Flush() // a service may take its time
	verdict := t.filter.See(t.ctx, e.Data)
	t.unanswered(verdict)
	if last && verdict.Action != moderation.Block {
		verdict = t.filter.End(t.ctx)
		t.unanswered(verdict)
	}
	switch {
	case verdict.Action == moderation.Block && verdict.Err != nil && t.ctx.Err() != nil:
		t.stopped = context.Cause(t.ctx) // it was not the rule that said so: nothing may go that was not judged, and nothing else is said
		t.withheld, t.filter = backlog{}, nil
	case verdict.Action == moderation.Block:
		t.withheld.add(e.Raw)
		t.stopped = errFiltered
	case verdict.Action == moderation.Hold:
		t.withheld.add(e.Raw)
		t.release(verdict.Keep)
	default:
		t.release(0)
		t.push(e)
	}
}

// unanswered writes down that a rule's service has not answered.
func (t *tokens) unanswered(v moderation.Verdict) {
	if v.Err != nil && t.ctx.Err() == nil {
		t.relay.config.Log.Warn("the service that judges text gave no answer", zap.String("rule", v.Rule), zap.Error(v.Err))
	}
}

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
	if !t.result.Answered {
		t.result.Answered = true
		t.note(func(r *Result) { r.Answered = true })
	}
	t.marked = t.marked || e.IsDone()
	if err := t.broadcast.Publish(e); err != nil {
		t.stopped = errLeft
		if errors.Is(err, queue.ErrTooSlow) {
			t.stopped = errSlow
		}
		return
	}
	if t.call.Patient && !t.ending {
		t.broadcast.Flush()
		if err := t.broadcast.AwaitRoom(t.ctx, queue.DefaultMergeAfter); err != nil {
			t.stopped = err
		}
	}
}
