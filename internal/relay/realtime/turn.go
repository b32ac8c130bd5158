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

// turn is one answer on its way: the sink of its call. Its methods run in the turn's goroutine; the session looks at it when that has
// ended, and before only at ctx, gate and calls.
type turn struct {
	// id is the request_id of its messages.
	id     string
	ctx    context.Context
	cancel context.CancelCauseFunc
	socket *socket
	gate   *gate
	calls  toolCalls
	// heartbeat and hold are for a client that holds the turn up.
	heartbeat, hold time.Duration
	received        time.Time
	// keep is how much of the answer may be kept for the conversation, in bytes; lost says that there was more.
	keep int
	lost bool

	scanner sse.Scanner
	reader  delta.Reader
	// halves are bytes of characters whose rest has not come
	halves map[place][]byte
	answer answer
	// sent counts token and tool_call messages
	sent int64

	// fault is what the turn found wrong itself: it goes before the result's.
	fault  *openai.Error
	ended  bool
	result relay.Result
	// finish is what an answer that was no stream said.
	finish string
}

// place is one of the texts that an answer is made of.
type place struct {
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
		deltas, _ := t.reader.Read(e.Data)
		for i := range deltas {
			if err := t.deliver(&deltas[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Flush implements relay.Sink: nothing is held back.
func (t *turn) Flush() error { return nil }

// Heartbeat implements relay.Sink.
func (t *turn) Heartbeat(p relay.Progress) error {
	return t.socket.send(heartbeatMessage{Type: "heartbeat", RequestID: t.id, Phase: string(p.Phase), Position: p.Position,
		Waited: p.Waited.Milliseconds(), Note: p.Note})
}

// Finish implements relay.Sink.
func (t *turn) Finish(r relay.Result) error {
	t.ended, t.result = true, r
	return nil
}

// deliver sends what an event adds to the answer, as soon as the client wants it.
func (t *turn) deliver(d *delta.Delta) error {
	text := t.whole(d)
	if text == "" && len(d.ID)+len(d.Name) == 0 {
		return nil // what there is of it will come with the rest of its character
	}
	if err := t.pass(); err != nil {
		return err
	}
	var message any
	if d.Kind == delta.ToolCall {
		call := t.calls.of(d.Tool, d.ID, d.Name)
		message = toolCallMessage{Type: "tool_call", RequestID: t.id, ID: call.id, Index: d.Tool, Name: call.name, Arguments: text, Choice: d.Choice}
	} else {
		message = tokenMessage{Type: "token", RequestID: t.id, Delta: text, Choice: d.Choice, Kind: kindOf(d.Kind)}
	}
	if err := t.socket.send(message); err != nil {
		return err
	}
	t.sent++
	t.remember(d, text)
	return nil
}

func kindOf(k delta.Kind) string {
	switch k {
	case delta.Reasoning:
		return "reasoning"
	case delta.Refusal:
		return "refusal"
	}
	return ""
}

// whole is the delta's text without the beginning of a character at its end, which is put before the text's next one: a message can hold
// only whole ones.
func (t *turn) whole(d *delta.Delta) string {
	at := place{d.Choice, d.Kind, d.Tool}
	text := d.Text
	if half := t.halves[at]; half != nil {
		delete(t.halves, at)
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
	if cut < len(text) {
		if t.halves == nil {
			t.halves = map[place][]byte{}
		}
		t.halves[at] = bytes.Clone(text[cut:])
	}
	return string(text[:cut])
}

// remember keeps what was sent for the conversation, which has one choice.
func (t *turn) remember(d *delta.Delta, text string) {
	if d.Choice != 0 || t.lost {
		return
	}
	if t.keep -= len(text); t.keep < 0 {
		t.lost = true
		return
	}
	switch d.Kind {
	case delta.Text:
		t.answer.text = append(t.answer.text, text...)
	case delta.Refusal:
		t.answer.refusal = append(t.answer.refusal, text...)
	case delta.ToolCall:
		call := t.calls.of(d.Tool, nil, nil)
		call.arguments = append(call.arguments, text...)
	}
}

// pass waits until the client wants another message. Meanwhile it hears that the turn waits for it.
func (t *turn) pass() error {
	waits, changed := t.gate.take()
	if waits == "" {
		return context.Cause(t.ctx) // nil while the turn runs
	}
	beat, hold := time.NewTicker(t.heartbeat), time.NewTimer(t.hold)
	defer beat.Stop()
	defer hold.Stop()
	for waits != "" {
		select {
		case <-changed:
			waits, changed = t.gate.take()
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

// outcome is how the turn ended: for what reason, or with what fault.
func (t *turn) outcome() (finish string, fault *openai.Error) {
	switch {
	case t.fault != nil:
		return "", t.fault
	case t.ended && t.result.Fault == nil && (t.ctx.Err() == nil || t.result.Finish != ""):
		if t.result.Finish == "" {
			return t.finish, nil
		}
		return t.result.Finish, nil
	case errors.As(context.Cause(t.ctx), &fault):
	case t.result.Fault != nil:
		fault = t.result.Fault
	default:
		fault = openai.Errorf(openai.CodeGatewayUnavailable, "The turn ended without a word.")
	}
	if fault.Code == openai.CodeCancelled {
		return finishCancelled, nil
	}
	return "", fault
}

const finishCancelled = "cancelled"

// cutShort says that what the model was about to say has no end: its tool calls cannot be made.
func cutShort(finish string) bool {
	return finish == "length" || finish == "content_filter" || finish == finishCancelled
}

// usage is what the turn has cost.
func (t *turn) usage() usage {
	u := t.result.Usage
	if !u.Known {
		return usage{Completion: t.sent, Estimated: true}
	}
	total := u.Prompt + u.Completion
	return usage{Prompt: &u.Prompt, Completion: u.Completion, Total: &total, Details: &usageDetail{Cached: u.Cached}}
}
