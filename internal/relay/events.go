package relay

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
	"github.com/sluice-gateway/sluice/internal/relay/queue"
)

const (
	// smallRead is the size of most reads of an engine's response, in bytes: a few events. A
	// stream that fills more than half of a small read, with its framing perhaps all of it, changes
	// to reads of largeRead bytes.
	smallRead = 2 << 10
	largeRead = 8 << 10
	// maxHeldBytes bounds the events that are held before the first token, in bytes.
	maxHeldBytes = 64 << 10
	// maxFirstTokenData bounds engineStream.firstTokenData, in bytes.
	maxFirstTokenData = 4 << 10
	// lingerTimeout is how long an engine may keep its response open after the end marker, so that
	// the connection can be used again.
	lingerTimeout = 500 * time.Millisecond
)

// Pools of read buffers. A stream that waits for its engine holds one buffer, so most are small.
var (
	smallBuffers = sync.Pool{New: func() any { return new([smallRead]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeRead]byte) }}
)

// engineStream reads the event stream with which a replica answers, and publishes the events. Only
// the generation's goroutine uses it.
//
// Events are held until the first token: until then another replica may still take over, and the
// client must not see events of two replicas. The first token commits the attempt.
type engineStream struct {
	gen      *generation
	failover *failover
	attempt  *attempt
	timers   engineTimers

	scanner sse.Scanner
	tracker sse.Tracker
	// response follows what the client receives of a stream of the Responses API.
	response followedResponse

	// filter applies the moderation rules. nil: there are none.
	filter *moderation.Filter
	// held are the events from before the first token.
	held []byte
	// withheld are events that a rule keeps back, because it has to see more or has blocked them.
	withheld eventList
	// judged counts the events that have left withheld.
	judged int64

	// started says that events are published as they come and no other replica can take over.
	started bool
	// sentDone says that an end marker was published. The Responses API has events for that.
	sentDone bool
	// cutInEvent says that the response broke off within an event.
	cutInEvent bool
	// closeDelimited says that only the end of the connection ends the response, so that a cut
	// looks like an end.
	closeDelimited bool
	// finished says that no more is read of the response.
	finished bool
	// reported is the status of the error that the engine has reported.
	reported int
	// stopCause is why no more events are wanted. nil: they are.
	stopCause error

	// firstToken and lastToken are when the first and the latest token came. Zero: none has come.
	firstToken, lastToken time.Time
	// firstTokenData is the beginning of the data of the event with the first token. Events that
	// Sluice itself adds copy their id, model and time from it.
	firstTokenData []byte
	// responseID is the id of the response, if a request may continue it. Empty: it has not come.
	responseID string
	// gaps are the times between the tokens, if they are observed.
	gaps tokenGaps
}

// Reasons for engineStream.stopCause, beside the causes of a generation's context.
var (
	errBlocked   = errors.New("a moderation rule has blocked the stream")
	errUnjudged  = errors.New("the engine has sent an event that the moderation rules cannot read")
	errMalformed = errors.New("the engine has sent an event that is not JSON")
	errAbandoned = errors.New("the attempt was abandoned for another one")
	errReported  = errors.New("the engine has reported an error in an event")
	errLinger    = errors.New("the engine does not end its response after the end marker")
	errStalled   = errors.New("the engine has sent nothing for too long")
)

// read publishes the events of the response until it ends. The reason is as for failover.try.
func (s *engineStream) read(body io.Reader) (reason string) {
	if s.failover.rules != nil {
		s.filter = s.failover.rules.NewFilter()
		s.filter.Model = s.failover.ticket.Model
	}
	small := smallBuffers.Get().(*[smallRead]byte)
	defer smallBuffers.Put(small)
	defer s.timers.pause()
	s.response.memory = s.gen.relay.config.Memory.Hold(memory.Replays)
	defer s.response.memory.Release()
	buffer := small[:]
	for s.stopCause == nil {
		s.timers.start(s)
		n, err := body.Read(buffer)
		s.timers.pause()
		s.failover.bytesRead += int64(n)
		s.scanner.Feed(buffer[:n])
		s.handleEvents()
		s.gen.broadcast.Flush()
		if len(buffer) == smallRead && n > smallRead/2 { // the engine sends faster than small reads take
			large := largeBuffers.Get().(*[largeRead]byte)
			defer largeBuffers.Put(large) // the loop comes here once
			buffer = large[:]
		}
		if err != nil {
			s.scanner.End()
			s.handleEvents()
			return s.finish(err)
		}
	}
	return s.finish(nil)
}

// handleEvents handles the events that the scanner has read.
func (s *engineStream) handleEvents() {
	for s.stopCause == nil && s.scanner.Next() {
		s.handleEvent(s.scanner.Event())
	}
	if err := s.scanner.Err(); err != nil && s.stopCause == nil {
		s.stopCause = err
	}
}

func (s *engineStream) handleEvent(e *sse.Event) {
	endpoint := s.gen.call.Scan.Endpoint
	switch {
	case s.tracker.Done() && (s.sentDone || !e.IsDone()):
		return // an event after the end of the stream means nothing
	case e.IsDone() && endpoint == openai.Responses && s.tracker.Outcome() == sse.Truncated:
		return // an end marker ends no response, which has an event of its own for that
	case e.Cut:
		s.tracker.See(e)
		s.cutInEvent = true
		return // a client that follows the standard would ignore it
	case e.IsComment():
		s.handleComment(e)
		return
	}
	chunk := s.tracker.See(e)
	if chunk.Bad && !e.IsDone() && endpoint.Generates() {
		s.stopCause = errMalformed
		return
	}
	if chunk.Error && endpoint == openai.Responses && !isTyped(e.Data) {
		s.handleUntypedError(e.Data)
		return
	}
	s.timers.hasEvents = true
	if !s.started && s.responseID == "" && s.failover.ticket.WantsResponseID() {
		if s.responseID = openai.ResponseID(e.Raw); s.responseID != "" && s.gen.call.Scan.Background {
			s.startInBackground()
		}
	}
	if chunk.Token || !endpoint.Generates() { // any event of another endpoint is a part of the answer
		s.recordToken(e)
	}
	if s.stopCause == nil && !s.isInjectedUsage(chunk) {
		s.pass(e, chunk)
	}
}

// handleComment handles a comment, which engines send as heartbeats, and some to tell an error.
func (s *engineStream) handleComment(e *sse.Event) {
	switch {
	case len(e.Error) > 0:
		for own := range eventsOf(errorEventOf(e.Error)) {
			s.handleEvent(own)
		}
	case s.started && s.filter == nil: // rules do not read comments
		s.publish(e)
	}
}

// pass holds an event of the answer until the first token, or publishes it.
func (s *engineStream) pass(e *sse.Event, chunk *sse.Chunk) {
	last := e.IsDone() || chunk.Last || finishesChoice(chunk)
	if last {
		s.gaps.flush()
	}
	if s.failover.hidesUsage && len(chunk.Choices) > 0 && chunk.UsageAt.To > 0 {
		e.RemoveMember(chunk.UsageAt.From, chunk.UsageAt.To)
	}
	if !s.started && !last && len(s.held)+len(e.Raw) <= maxHeldBytes {
		s.held = sse.AppendRaw(s.held, e.Raw)
	} else if s.start(); s.stopCause == nil {
		s.moderate(e, last && (e.IsDone() || chunk.Last || len(s.tracker.Unfinished()) == 0))
	}
	if chunk.Error && s.stopCause == nil {
		s.reported = cmp.Or(s.reported, statusOfError(e.Data))
		s.stopCause = errReported // no event after an error matters, not even an end marker
	}
}

// isTyped reports whether an error has the type of an event of the Responses API.
func isTyped(data []byte) bool {
	var event struct{ Type string }
	return json.Unmarshal(data, &event) == nil && (event.Type == "error" || strings.HasPrefix(event.Type, "response."))
}

// handleUntypedError handles an error that an engine reports in a stream of the Responses API as in
// a chat. Clients of the Responses API tell events apart by their type, so the error gets one.
func (s *engineStream) handleUntypedError(data []byte) {
	s.reported = statusOfError(data)
	typed := openai.ReportedError(data).AppendResponsesEvent(nil, s.response.Sequence())
	for own := range eventsOf(typed) {
		s.handleEvent(own)
	}
}

// errorEventOf returns an event with the error that an engine has told in an error line. Clients
// ignore such a line.
func errorEventOf(line []byte) []byte {
	if !json.Valid(line) {
		line, _ = json.Marshal(string(line)) // a string always marshals
	}
	return sse.AppendData(nil, append(append([]byte(`{"error":`), line...), '}'))
}

// finishesChoice reports whether the chunk ends a choice.
func finishesChoice(chunk *sse.Chunk) bool {
	return slices.ContainsFunc(chunk.Choices, func(c sse.Choice) bool { return len(c.Finish) > 0 })
}

// isInjectedUsage reports whether the event has only the usage that the relay has asked for and the
// client has not. Such an event is not published.
func (s *engineStream) isInjectedUsage(c *sse.Chunk) bool {
	scan := &s.gen.call.Scan
	return s.failover.policy.Usage != engines.UsageUnknown && !scan.IncludeUsage && c.HasUsage && len(c.Choices) == 0 && !c.Error && scan.Endpoint.Chunked()
}

// recordToken records that the event e has a token. The first token commits the attempt and starts
// the stream.
func (s *engineStream) recordToken(e *sse.Event) {
	now, g := time.Now(), s.gen
	if !s.firstToken.IsZero() {
		s.gaps.add(s.lastToken, now)
		if g.trace != nil {
			g.trace.Token(s.tracker.Tokens() - 1)
		}
		s.lastToken = now
		return
	}
	if !s.attempt.commit() {
		s.stopCause = errAbandoned
		return
	}
	s.firstToken, s.lastToken = now, now
	if model := s.failover.ticket.Model; g.relay.gapSampler.next(model) || s.failover.policy.Sample > 0 {
		s.gaps.report = func(gaps ...time.Duration) { g.relay.config.Gaps(model, gaps...) }
	}
	s.firstTokenData = append([]byte(nil), e.Data[:min(len(e.Data), maxFirstTokenData)]...)
	s.failover.result.TTFT, s.failover.prefill = now.Sub(g.call.Received), now.Sub(s.attempt.sent)
	g.status.enter(Decode, nil)
	g.status.update(func(r *Result) { r.TTFT = s.failover.result.TTFT })
	if g.trace != nil {
		g.trace.FirstToken()
	}
	s.start()
}

// startInBackground starts the stream of a response that the engine generates in the background.
// The client needs the id of the response at once, to come back to it or to cancel it. Another
// replica would generate a second response, and the engine would not end the first one.
func (s *engineStream) startInBackground() {
	if !s.attempt.commitBeforeToken() {
		s.stopCause = errAbandoned
		return
	}
	s.publishHeld()
}

// start commits the attempt and publishes the held events. If the attempt was abandoned before, it
// sets stopCause instead.
func (s *engineStream) start() {
	if s.started {
		return
	}
	if !s.attempt.commit() {
		s.stopCause = errAbandoned
		return
	}
	s.publishHeld()
}

// publishHeld publishes the held events of a stream that has just been committed.
func (s *engineStream) publishHeld() {
	s.started = true
	if s.responseID != "" {
		s.failover.ticket.LearnResponse(s.responseID)
	}
	held := s.held
	s.held = nil
	for e := range eventsOf(held) {
		if s.moderate(e, false); s.stopCause != nil {
			return
		}
	}
}

// publish gives an event to all subscribers. When they have gone, or the only one was too slow, it
// sets stopCause.
func (s *engineStream) publish(e *sse.Event) {
	if !s.failover.result.Answered {
		s.failover.result.Answered = true
		s.gen.status.update(func(r *Result) { r.Answered = true })
	}
	if s.tracker.Done() || s.tracker.Outcome() == sse.Failed {
		s.gen.sentEnd.Store(true)
		s.sentDone = s.sentDone || e.IsDone()
	}
	if s.gen.call.Scan.Endpoint == openai.Responses {
		s.response.follow(e)
	}
	if err := s.gen.broadcast.Publish(e); err != nil {
		s.stopCause = errLeft
		if errors.Is(err, queue.ErrTooSlow) {
			s.stopCause = errSlow
		}
		return
	}
	if s.gen.call.Patient && !s.finished {
		s.gen.broadcast.Flush()
		err := s.gen.broadcast.AwaitRoom(s.attempt.ctx, queue.DefaultMergeAfter)
		if s.stopCause = err; errors.Is(err, queue.ErrTooSlow) {
			s.stopCause = errSlow
		}
	}
}

// engineTimers end an attempt whose engine keeps the relay waiting.
type engineTimers struct {
	// stall runs out after Policy.StallTimeout, counted from lastHandled. It runs only while the
	// relay waits for the engine. nil: there is no such limit, or no token yet.
	stall *time.Timer
	// lastHandled is when the latest events had been handled. hasEvents says that there were
	// further events since then.
	lastHandled time.Time
	hasEvents   bool
	// linger runs out after lingerTimeout. nil: the end marker has not come.
	linger *time.Timer
}

// start starts the timers. The stream calls it before it waits for the engine's next bytes.
func (t *engineTimers) start(s *engineStream) {
	if d := s.failover.policy.StallTimeout; d > 0 && !s.firstToken.IsZero() {
		if t.hasEvents {
			t.lastHandled, t.hasEvents = time.Now(), false
		}
		left := d - time.Since(t.lastHandled)
		if t.stall == nil {
			t.stall = time.AfterFunc(left, func() { s.attempt.cancel(errStalled) })
		} else {
			t.stall.Reset(left)
		}
	}
	if t.linger == nil && s.tracker.Done() {
		t.linger = time.AfterFunc(lingerTimeout, func() { s.attempt.cancel(errLinger) })
	}
}

// pause stops the stall timer while the relay does not wait for the engine. The linger timer goes
// on.
func (t *engineTimers) pause() {
	if t.stall != nil {
		t.stall.Stop()
	}
}

func (t *engineTimers) stop() {
	t.pause()
	if t.linger != nil {
		t.linger.Stop()
	}
}
