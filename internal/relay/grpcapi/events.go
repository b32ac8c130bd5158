package grpcapi

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// events is a worker's stream as the body of a response: server-sent events of chat.completion.chunk. It reads a chunk when it is read,
// so that whoever reads slowly slows the worker down.
type events struct {
	*call
	next *pb.StreamChunk // came with the headers
	id   string
	head []byte // what every event begins with
	told []bool // choices whose role has been told

	buf, rest []byte // rest of buf is to be read
	err       error  // follows
	done      bool   // the result has come
}

func newEvents(c *call, first *pb.StreamChunk, id string) *events {
	e := &events{call: c, next: first, id: "chatcmpl-" + cmp.Or(id, first.GetRequestId())}
	e.head = append(append(e.head, `{"id":`...), quoted(e.id)...)
	e.head = append(e.head, `,"object":"chat.completion.chunk","created":`...)
	e.head = strconv.AppendInt(e.head, time.Now().Unix(), 10)
	e.head = append(append(append(e.head, `,"model":`...), quoted(c.model)...), `,"choices":[`...)
	return e
}

// Read implements io.Reader.
func (e *events) Read(p []byte) (int, error) {
	for len(e.rest) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		e.buf = e.buf[:0]
		e.err = e.advance()
		e.rest = e.buf
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// Close implements io.Closer: it cancels a call that has not ended.
func (e *events) Close() error {
	e.end()
	return nil
}

// chunk is the next one.
func (e *events) chunk() (*pb.StreamChunk, error) {
	if first := e.next; first != nil {
		e.next = nil
		return first, nil
	}
	return e.recv()
}

// advance renders the next chunk. The error is what follows what it has rendered.
func (e *events) advance() error {
	chunk, err := e.chunk()
	if e.done {
		return io.EOF // whatever it is: there is nothing to add to a result
	}
	var told *refused
	if errors.As(err, &told) {
		e.buf = sse.AppendData(e.buf, render(told.cause, true))
		return io.EOF
	}
	if err != nil {
		return err
	}
	switch p := chunk.GetPayload().(type) {
	case *pb.StreamChunk_Delta:
		return e.delta(p.Delta)
	case *pb.StreamChunk_Final:
		e.done = true
		e.final(p.Final)
	case *pb.StreamChunk_Hb:
		e.buf = sse.AppendComment(e.buf, p.Hb.GetPhase())
	}
	return nil
}

func (e *events) delta(d *pb.TokenDelta) error {
	n := int(d.GetChoice())
	if n < 0 || n >= maxChoices {
		return fmt.Errorf("llmv1: the worker names choice %d", n)
	}
	for len(e.told) <= n {
		e.told = append(e.told, false)
	}
	if !e.told[n] {
		e.told[n] = true
		e.event(n, `"role":"assistant","content":""`, "")
	}
	if t := d.GetToolCall(); t != nil {
		e.event(n, `"tool_calls":[`+string(fragment(t))+`]`, "")
		return nil
	}
	name := "content"
	switch d.GetKind() {
	case pb.TokenDelta_REASONING:
		name = "reasoning_content"
	case pb.TokenDelta_REFUSAL:
		name = "refusal"
	}
	e.event(n, `"`+name+`":`+string(quoted(d.GetText())), "")
	return nil
}

// fragment is a piece of a tool call as JSON.
func fragment(t *pb.ToolCall) []byte {
	b := strconv.AppendInt([]byte(`{"index":`), int64(t.GetIndex()), 10)
	if t.GetId() != "" {
		b = append(append(append(b, `,"id":`...), quoted(t.GetId())...), `,"type":"function"`...)
	}
	b = append(b, `,"function":{`...)
	if t.GetName() != "" {
		b = append(append(append(b, `"name":`...), quoted(t.GetName())...), ',')
	}
	return append(append(append(b, `"arguments":`...), quoted(t.GetArguments())...), "}}"...)
}

// event renders a chunk of one choice.
func (e *events) event(choice int, delta, finish string) {
	b := append(append(e.buf, "data: "...), e.head...)
	b = strconv.AppendInt(append(b, `{"index":`...), int64(choice), 10)
	b = append(append(append(b, `,"delta":{`...), delta...), `},"logprobs":null,"finish_reason":`...)
	if finish == "" {
		b = append(b, "null"...)
	} else {
		b = append(b, quoted(finish)...)
	}
	b = append(b, "}]}\n\n"...)
	e.buf = b
}

// final renders the end of a stream that went well.
func (e *events) final(f *pb.FinalResult) {
	for n := range e.choices(f) {
		e.event(n, "", finishOf(f, n))
	}
	if e.usage {
		b := append(append(append(e.buf, "data: "...), e.head...), `],"usage":`...)
		e.buf = append(append(b, usageOf(f)...), "}\n\n"...)
	}
	e.buf = sse.AppendDone(e.buf)
}

// choices is how many choices there were: at least one, even if nothing was said.
func (e *events) choices(f *pb.FinalResult) int {
	return min(max(len(e.told), len(f.GetFinishReasons()), 1), maxChoices)
}

// finishOf is why a choice ended.
func finishOf(f *pb.FinalResult, choice int) string {
	if all := f.GetFinishReasons(); choice < len(all) && all[choice] != "" {
		return all[choice]
	}
	return cmp.Or(f.GetFinishReason(), "stop")
}

func usageOf(f *pb.FinalResult) []byte {
	b, err := json.Marshal(map[string]any{
		"prompt_tokens": f.GetInputTokens(), "completion_tokens": f.GetOutputTokens(),
		"total_tokens":          int64(f.GetInputTokens()) + int64(f.GetOutputTokens()),
		"prompt_tokens_details": map[string]int32{"cached_tokens": f.GetCachedTokens()},
	})
	if err != nil { // numbers always marshal
		panic(err)
	}
	return b
}

// render is an error as JSON, in a stream with advice that a response has in its headers.
func render(e *pb.Error, inStream bool) []byte {
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
	b, err := json.Marshal(map[string]any{"error": shape})
	if err != nil { // as above
		panic(err)
	}
	return b
}
