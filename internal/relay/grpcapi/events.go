package grpcapi

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// eventBody is the stream of a worker as the body of a response: server-sent events of
// chat.completion.chunk. It receives a chunk only when it is read, so that a slow reader slows the
// worker down.
type eventBody struct {
	call        *call
	first       *pb.StreamChunk // the chunk that came with the headers; nil: it was read
	id          string
	eventPrefix []byte // the data that every event begins with
	roleSent    []bool // the choices whose role was rendered

	buf, rest []byte // rest is the part of buf that was not read yet
	err       error  // the error after rest
	finished  bool   // the final result was rendered
}

// newEventBody returns a body that begins with the chunk first. id is Envoy's id of the request;
// empty: the worker's.
func newEventBody(c *call, first *pb.StreamChunk, id string) *eventBody {
	e := &eventBody{call: c, first: first, id: "chatcmpl-" + cmp.Or(id, first.GetRequestId())}
	e.eventPrefix = append(append(e.eventPrefix, `{"id":`...), openai.Encode(e.id)...)
	e.eventPrefix = append(e.eventPrefix, `,"object":"chat.completion.chunk","created":`...)
	e.eventPrefix = strconv.AppendInt(e.eventPrefix, time.Now().Unix(), 10)
	e.eventPrefix = append(append(append(e.eventPrefix, `,"model":`...), openai.Encode(c.request.model)...), `,"choices":[`...)
	return e
}

func (e *eventBody) Read(p []byte) (int, error) {
	for len(e.rest) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		e.buf = e.buf[:0]
		e.err = e.renderNext()
		e.rest = e.buf
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// Close implements io.Closer. It cancels a call that has not ended.
func (e *eventBody) Close() error {
	e.call.end()
	return nil
}

func (e *eventBody) nextChunk() (*pb.StreamChunk, error) {
	if first := e.first; first != nil {
		e.first = nil
		return first, nil
	}
	return e.call.recv()
}

// renderNext renders the next chunk into buf. The error comes after the rendered bytes.
func (e *eventBody) renderNext() error {
	chunk, err := e.nextChunk()
	if e.finished {
		return io.EOF // nothing after the result counts
	}
	var told *workerError
	if errors.As(err, &told) {
		e.buf = sse.AppendData(e.buf, errorJSON(told.cause, true))
		return io.EOF
	}
	if err != nil {
		return err
	}
	switch p := chunk.GetPayload().(type) {
	case *pb.StreamChunk_Delta:
		return e.renderDelta(p.Delta)
	case *pb.StreamChunk_Final:
		e.finished = true
		e.renderFinal(p.Final)
	case *pb.StreamChunk_Hb:
		e.buf = sse.AppendComment(e.buf, p.Hb.GetPhase())
	}
	return nil
}

// renderDelta renders a delta. The first delta of a choice is preceded by one with the role.
func (e *eventBody) renderDelta(d *pb.TokenDelta) error {
	n := int(d.GetChoice())
	if n < 0 || n >= maxChoices {
		return fmt.Errorf("llmv1: the worker names choice %d", n)
	}
	for len(e.roleSent) <= n {
		e.roleSent = append(e.roleSent, false)
	}
	if !e.roleSent[n] {
		e.roleSent[n] = true
		e.renderChunk(n, `"role":"assistant","content":""`, "")
	}
	if t := d.GetToolCall(); t != nil {
		e.renderChunk(n, `"tool_calls":[`+string(toolCallJSON(t))+`]`, "")
		return nil
	}
	name := "content"
	switch d.GetKind() {
	case pb.TokenDelta_REASONING:
		name = "reasoning_content"
	case pb.TokenDelta_REFUSAL:
		name = "refusal"
	}
	e.renderChunk(n, `"`+name+`":`+string(openai.Encode(d.GetText())), "")
	return nil
}

// toolCallJSON returns a fragment of a tool call as JSON.
func toolCallJSON(t *pb.ToolCall) []byte {
	b := strconv.AppendInt([]byte(`{"index":`), int64(t.GetIndex()), 10)
	if t.GetId() != "" {
		b = append(append(append(b, `,"id":`...), openai.Encode(t.GetId())...), `,"type":"function"`...)
	}
	b = append(b, `,"function":{`...)
	if t.GetName() != "" {
		b = append(append(append(b, `"name":`...), openai.Encode(t.GetName())...), ',')
	}
	return append(append(append(b, `"arguments":`...), openai.Encode(t.GetArguments())...), "}}"...)
}

func (e *eventBody) renderChunk(choice int, delta, finish string) {
	b := append(append(e.buf, "data: "...), e.eventPrefix...)
	b = strconv.AppendInt(append(b, `{"index":`...), int64(choice), 10)
	b = append(append(append(b, `,"delta":{`...), delta...), `},"logprobs":null,"finish_reason":`...)
	if finish == "" {
		b = append(b, "null"...)
	} else {
		b = append(b, openai.Encode(finish)...)
	}
	b = append(b, "}]}\n\n"...)
	e.buf = b
}

// renderFinal renders the end of a stream that was successful.
func (e *eventBody) renderFinal(f *pb.FinalResult) {
	for n := range e.countChoices(f) {
		e.renderChunk(n, "", finishOf(f, n))
	}
	if e.call.request.usage {
		b := append(append(append(e.buf, "data: "...), e.eventPrefix...), `],"usage":`...)
		e.buf = append(append(b, usageOf(f)...), "}\n\n"...)
	}
	e.buf = sse.AppendDone(e.buf)
}

// countChoices returns the number of choices, at least one.
func (e *eventBody) countChoices(f *pb.FinalResult) int {
	return min(max(len(e.roleSent), len(f.GetFinishReasons()), 1), maxChoices)
}

// finishOf returns why a choice ended.
func finishOf(f *pb.FinalResult, choice int) string {
	if all := f.GetFinishReasons(); choice < len(all) && all[choice] != "" {
		return all[choice]
	}
	return cmp.Or(f.GetFinishReason(), "stop")
}

// usageOf returns the usage as JSON.
func usageOf(f *pb.FinalResult) []byte {
	u := map[string]any{
		"prompt_tokens": f.GetInputTokens(), "completion_tokens": f.GetOutputTokens(),
		"total_tokens":          int64(f.GetInputTokens()) + int64(f.GetOutputTokens()),
		"prompt_tokens_details": map[string]int32{"cached_tokens": f.GetCachedTokens()},
	}
	if f.GetEstimated() {
		u["estimated"] = true
	}
	return openai.Encode(u)
}

// errorJSON returns an error as JSON. Within a stream it includes the advice on retries, which a
// response has in its headers.
func errorJSON(e *pb.Error, inStream bool) []byte {
	shape := map[string]any{"message": e.GetMessage(), "type": e.GetType(), "code": nil, "param": nil}
	if e.GetName() != "" {
		shape["code"] = e.GetName()
	}
	if e.GetParam() != "" {
		shape["param"] = e.GetParam()
	}
	if inStream {
		shape["retryable"] = e.GetRetryable()
		if e.GetRetryAfterMs() > 0 {
			shape["retry_after_ms"] = e.GetRetryAfterMs()
		}
	}
	return openai.Encode(map[string]any{"error": shape})
}
