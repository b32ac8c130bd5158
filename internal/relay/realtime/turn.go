package realtime

import (
	"bytes"
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/delta"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// turn is one answer of the model while it comes: the sink of its call. Its methods run in the
// turn's goroutine. Before that has ended, the session only uses ctx, gate and calls.
type turn struct {
	// id is the request_id of its messages.
	id     string
	ctx    context.Context
	cancel context.CancelCauseFunc
	socket *socket
	gate   *gate
	calls  toolCalls
	// heartbeat and hold bound how long the client may hold up the turn: until a heartbeat, and
	// until the turn ends.
	heartbeat, hold time.Duration
	received        time.Time
	// bytesLeft is how many more bytes of the answer fit into the conversation. tooLarge says that
	// the answer did not fit.
	bytesLeft int
	tooLarge  bool

	scanner sse.Scanner
	reader  delta.Reader
	numbers delta.Calls
	// incomplete has the bytes of characters whose rest has not come.
	incomplete map[textKey][]byte
	answer     answer
	// sent counts token and tool_call messages.
	sent int64

	// reported is the error that an event has reported, in the engine's words. nil: none has.
	reported *openai.Error
	// fault is an error that the turn has found itself. It comes before that of the result.
	fault    *openai.Error
	finished bool
	result   relay.Result
	// finish is the finish_reason of an answer that was no stream.
	finish string
}

// textKey identifies one of the texts of an answer.
type textKey struct {
	choice int
	kind   delta.Kind
	tool   int
}

// Event implements relay.Sink.
func (t *turn) Event(raw []byte, _ uint64) error {
	t.scanner.Feed(raw)
	for t.scanner.Next() {
		e := t.scanner.Event()
		if e.IsComment() || e.IsDone() {
			continue
		}
		t.readError(e)
		deltas, _ := t.reader.Read(e.Data)
		for i := range deltas {
			if err := t.deliver(&deltas[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *turn) readError(e *sse.Event) {
	if bytes.Contains(e.Data, []byte(`"error"`)) || string(e.Type) == "error" {
		if chunk := new(sse.Chunk); chunk.Read(e.Data) && chunk.Error || string(e.Type) == "error" {
			t.reported = forClient(openai.ReportedError(e.Data))
		}
	}
}

// Passed implements relay.SelectiveSink.
func (t *turn) Passed() int64 { return t.sent }

// Flush implements relay.Sink. Every message was sent already.
func (t *turn) Flush() error { return nil }

// Heartbeat implements relay.Sink.
func (t *turn) Heartbeat(p relay.Progress) error {
	return t.socket.send(heartbeatMessage{Type: "heartbeat", RequestID: t.id, Phase: string(p.Phase), Position: p.Position,
		Waited: p.Waited.Milliseconds(), Note: p.Note})
}

// Finish implements relay.Sink.
func (t *turn) Finish(r relay.Result) error {
	t.finished, t.result = true, r
	return nil
}

// deliver sends a delta, as soon as the client wants it.
func (t *turn) deliver(d *delta.Delta) error {
	t.numbers.Resolve(d)
	text := t.completeText(d)
	if text == "" && len(d.ID)+len(d.Name) == 0 {
		return nil // the delta is a part of a character, which is sent with its rest
	}
	if err := t.awaitClient(); err != nil {
		return err
	}
	var message any
	if d.Kind == delta.ToolCall {
		call := t.calls.findOrAdd(d.Tool, d.ID, d.Name)
		if call == nil {
			t.fault = openai.Errorf(openai.CodeUpstreamError, "The engine makes more than %d tool calls.", maxCalls)
			return t.fault
		}
		message = toolCallMessage{Type: "tool_call", RequestID: t.id, ID: call.id, Index: d.Tool, Name: call.name, Arguments: text, Choice: d.Choice}
	} else {
		message = tokenMessage{Type: "token", RequestID: t.id, Delta: text, Choice: d.Choice, Kind: kindOf(d.Kind)}
	}
	if err := t.socket.send(message); err != nil {
		return err
	}
	t.sent++
	if t.record(d, text); t.tooLarge && t.socket.openAI.active.Load() { // its last events repeat the answer
		t.fault = tooLarge()
		return t.fault
	}
	return nil
}

// kindOf returns the kind of a token message, empty for text.
func kindOf(k delta.Kind) string {
	switch k {
	case delta.Reasoning:
		return "reasoning"
	case delta.Refusal:
		return "refusal"
	}
	return ""
}

// completeText returns the text of a delta without the incomplete character at its end, which is
// put before the next delta of the same text. A message can only hold complete characters.
func (t *turn) completeText(d *delta.Delta) string {
	at := textKey{d.Choice, d.Kind, d.Tool}
	text := d.Text
	if half := t.incomplete[at]; half != nil {
		delete(t.incomplete, at)
		text = append(half, text...)
	}
	cut := len(text)
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if b := text[len(text)-i:]; utf8.RuneStart(b[0]) {
			if !utf8.FullRune(b) {
				cut -= i
			}
			break
		}
	}
	if cut < len(text) && len(t.incomplete) < maxCalls {
		if t.incomplete == nil {
			t.incomplete = map[textKey][]byte{}
		}
		t.incomplete[at] = bytes.Clone(text[cut:])
		text = text[:cut]
	}
	return string(text)
}

// record records what was sent, for the conversation, which has one choice.
func (t *turn) record(d *delta.Delta, text string) {
	if t.bytesLeft -= len(text); t.bytesLeft < 0 {
		t.tooLarge = true
	}
	if d.Choice != 0 || t.tooLarge {
		return
	}
	switch d.Kind {
	case delta.Text:
		t.answer.text = append(t.answer.text, text...)
	case delta.Refusal:
		t.answer.refusal = append(t.answer.refusal, text...)
	case delta.ToolCall:
		call := t.calls.findOrAdd(d.Tool, nil, nil)
		call.arguments = append(call.arguments, text...)
	}
}

// awaitClient waits until the client wants another message. Meanwhile the client gets heartbeats.
func (t *turn) awaitClient() error {
	waits, changed := t.gate.acquire()
	if waits == "" {
		return context.Cause(t.ctx) // nil: the turn runs
	}
	beat, hold := time.NewTicker(t.heartbeat), time.NewTimer(t.hold)
	defer beat.Stop()
	defer hold.Stop()
	for waits != "" {
		select {
		case <-changed:
			waits, changed = t.gate.acquire()
		case <-beat.C:
			if err := t.Heartbeat(relay.Progress{Phase: relay.Phase(waits), Waited: time.Since(t.received)}); err != nil {
				return err
			}
		case <-hold.C:
			t.fault = openai.Errorf(openai.CodeClientTooSlow, "The turn was held up for longer than %v.", t.hold)
			return t.fault
		case <-t.ctx.Done():
			return context.Cause(t.ctx)
		}
	}
	return context.Cause(t.ctx)
}

// outcome returns how the turn has ended: its finish reason, or its fault.
func (t *turn) outcome() (finish string, fault *openai.Error) {
	switch {
	case t.fault != nil:
		return "", t.fault
	case t.finished && t.result.Fault == nil && (t.ctx.Err() == nil || t.result.Finish != ""):
		if t.result.Finish == "" {
			return t.finish, nil
		}
		return t.result.Finish, nil
	case errors.As(context.Cause(t.ctx), &fault):
	case t.result.Told && t.reported != nil:
		fault = t.reported
	case t.result.Fault != nil:
		fault = t.result.Fault
	default:
		fault = openai.Errorf(openai.CodeGatewayUnavailable, "The turn ended without a result.")
	}
	if fault.Code == openai.CodeCancelled {
		return finishCancelled, nil
	}
	return "", fault
}

const finishCancelled = "cancelled"

// isCutShort reports whether the answer was not finished, so that its tool calls cannot be made.
func isCutShort(finish string) bool {
	return finish == "length" || finish == "content_filter" || finish == finishCancelled || openai.BrokenOff(finish) != nil
}

func (t *turn) usage() usage {
	u := t.result.Usage
	if !u.Known {
		return usage{Completion: t.sent, Estimated: true}
	}
	total := u.Prompt + u.Completion
	return usage{Prompt: &u.Prompt, Completion: u.Completion, Total: &total, Details: &usageDetail{Cached: u.Cached}}
}
