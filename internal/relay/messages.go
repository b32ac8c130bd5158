package relay

import (
	"bytes"
	"net/http"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/messages"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// A request to the Messages API is translated before its generation starts, and its events and its
// answer in the sink of its client. In between it is a chat: attempts, limits, moderation and usage
// know nothing of it. That holds even if the engine has /v1/messages itself: such an engine gets
// the requests that Envoy sends to it as they are.

// originalRequest is a client's request to the Messages API. It does not change.
type originalRequest struct {
	scan    openai.Request
	options messages.Options
}

// memorySize returns how much memory the body of the call takes. A request that is translated
// exists twice.
func (c *Call) memorySize() int {
	if c.Scan.Endpoint.OfMessages() {
		return 2 * c.Scan.Size
	}
	return c.Scan.Size
}

// translate makes a chat of a call of the Messages API. Other calls stay as they are.
func (c *Call) translate() *openai.Error {
	if !c.Scan.Endpoint.OfMessages() {
		return nil
	}
	toChat := messages.ToChat
	if c.Scan.Endpoint == openai.CountTokens {
		toChat = messages.CountToChat
	}
	body, options, fault := toChat(c.Body)
	if fault != nil {
		return fault
	}
	scan, fault := openai.Scan(openai.Chat, "application/json", body)
	if fault != nil {
		return fault
	}
	old := c.Scan
	scan.Model, scan.RequestID, scan.SessionID, scan.Timeout, scan.MaxDuration = old.Model, old.RequestID, old.SessionID, old.Timeout, old.MaxDuration
	c.original, c.originalBody = &originalRequest{scan: old, options: options}, c.Body
	c.Path, c.Body, c.Scan = openai.Chat.Path(), body, scan
	return nil
}

// brokenOff returns the error that a client of the Messages API gets in the place of an answer with
// this finish reason. nil: it gets none. Clients of other APIs read the finish reason themselves.
func (c *Call) brokenOff(finish string) *openai.Error {
	if c.clientOptions() == nil {
		return nil
	}
	return openai.BrokenOff(finish)
}

// Values of headers.Messages.
const (
	movedPlain    = "1"
	movedThinking = "thinking"
	movedCounts   = "counts"
)

// clientOptions returns the options of the client of the Messages API that the call is for. It
// returns nil if the call is for another client.
func (c *Call) clientOptions() *messages.Options {
	if c.original != nil {
		return &c.original.options
	}
	return c.movedOptions
}

// clientEndpoint returns the endpoint whose form the client of the call reads.
func (c *Call) clientEndpoint() openai.Endpoint {
	if c.clientOptions() != nil {
		return openai.Messages
	}
	return c.Scan.Endpoint
}

// formatOptions returns the value of headers.Messages for the options. parseOptions reads it.
func formatOptions(o *messages.Options) string {
	switch {
	case o.Thinking:
		return movedThinking
	case o.Counts:
		return movedCounts
	}
	return movedPlain
}

// parseOptions returns nil for an empty value. chat is the body of the request that has moved.
func parseOptions(value string, chat []byte) *messages.Options {
	if value == "" {
		return nil
	}
	return &messages.Options{Thinking: value == movedThinking, Counts: value == movedCounts, Stops: messages.StopsOf(chat)}
}

// translator translates what a client of the Messages API gets. It is nil for other clients.
type translator struct {
	stream messages.Stream
	// seen is the number of the last event that a client has seen that came back, or noEvent. The
	// translation needs the events before it too.
	seen   int64
	buffer []byte
}

// newTranslator returns a translator that has translated nothing.
func newTranslator(o messages.Options) *translator {
	return &translator{stream: messages.Stream{Options: o}, seen: noEvent}
}

// translatorOf returns the translator for a client of the call.
func translatorOf(c *Call) *translator {
	switch {
	case c.original != nil:
		return newTranslator(c.original.options)
	case c.Scan.Endpoint.OfMessages(): // the call was refused before its translation
		return newTranslator(messages.Options{})
	}
	return nil
}

// translatorOfReturn returns the translator for a client that comes back to the stream of the call.
func translatorOfReturn(c *Call) *translator {
	if o := c.clientOptions(); o != nil {
		return newTranslator(*o)
	}
	return nil
}

// returnsAsMessages reports whether a client of the Messages API may come back to the stream.
func (g *generation) returnsAsMessages() bool {
	return g.call.isNamed() && g.call.clientOptions() != nil
}

// translateDropped translates an event that the replay log drops, so that the translation can go on
// after that event. The broadcast calls it.
func (g *generation) translateDropped(raw []byte) {
	if g.dropped == nil {
		g.dropped = translatorOfReturn(g.call)
	}
	t := g.dropped
	if t.buffer = t.stream.Append(t.buffer[:0], raw); cap(t.buffer) > maxIdleBuffer {
		t.buffer = nil
	}
}

// subscribeTranslated subscribes a client of the Messages API. It translates the events before
// those that the client gets, too, as far as the replay log has them.
func (g *generation) subscribeTranslated(t *translator, after int64) (*replay.Subscriber, error) {
	if after >= int64(g.broadcast.NextNumber()) { // the stream has not come that far
		return nil, replay.ErrNotKept
	}
	t.seen = after
	if !g.returnsAsMessages() {
		return g.broadcast.Subscribe(noEvent)
	}
	return g.broadcast.SubscribeKept(after, func() {
		if g.dropped != nil {
			t.stream = g.dropped.stream.Clone()
		}
	})
}

// append appends the translation of an event. Of a call whose events have numbers, the last event
// of the translation has the number.
func (t *translator) append(dst, raw []byte, number uint64, numbered bool) []byte {
	t.buffer = t.stream.Append(t.buffer[:0], raw)
	if len(t.buffer) == 0 || numbered && int64(number) <= t.seen {
		return dst
	}
	if !numbered {
		return append(dst, t.buffer...)
	}
	last := bytes.LastIndex(t.buffer[:len(t.buffer)-2], []byte("\n\n"))
	if last < 0 {
		return sse.AppendNumbered(dst, t.buffer, number)
	}
	last += 2
	return sse.AppendNumbered(append(dst, t.buffer[:last]...), t.buffer[last:], number)
}

// answer translates a whole answer.
func (t *translator) answer(a *Answer) *Answer {
	if a.Status >= http.StatusMultipleChoices {
		return &Answer{Status: a.Status, Header: a.Header, Body: a.EngineError().MessagesBody()}
	}
	body, ok := messages.FromChat(a.Body, t.stream.Options)
	if ok {
		return &Answer{Status: a.Status, Header: a.Header, Body: body}
	}
	fault := openai.Errorf(openai.CodeUpstreamError, "The engine's answer is no chat completion, was broken off, or lacks its usage.")
	return &Answer{Status: fault.HTTPStatus(), Header: a.Header, Body: fault.MessagesBody()}
}
