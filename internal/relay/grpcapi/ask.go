package grpcapi

import (
	"encoding/json"
	"errors"
	"math"
	"strings"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
)

// workerRequest is a chat request of OpenAI's API, translated to llm.v1.
type workerRequest struct {
	start    *pb.StartRequest
	streamed bool // the client wants a stream
	usage    bool // the client wants an event with the usage
	model    string
}

var errNoChat = errors.New("llmv1: no chat request")

// newWorkerRequest translates a chat request. The plain fields of llm.v1 hold everything that they
// can, so that workers without a JSON parser understand usual requests. If they cannot hold all of
// the request, the field request holds it.
func newWorkerRequest(body []byte) (workerRequest, error) {
	var all map[string]json.RawMessage
	var known struct {
		Model         string            `json:"model"`
		Messages      []json.RawMessage `json:"messages"`
		Stream        bool              `json:"stream"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if json.Unmarshal(body, &all) != nil || json.Unmarshal(body, &known) != nil {
		return workerRequest{}, errNoChat
	}
	q := workerRequest{start: &pb.StartRequest{Model: known.Model}, streamed: known.Stream, usage: known.StreamOptions.IncludeUsage, model: known.Model}
	if q.setPlainFields(all, known.Messages) {
		return q, nil
	}
	q.start.Reset()
	q.start.Model = known.Model
	m := members{buf: []byte("{")}
	if !m.object(body, "model", "stream", "stream_options", "request_id", "timeout_ms") {
		return workerRequest{}, errNoChat
	}
	m.buf = append(m.buf, '}')
	q.start.Request = m.buf
	return q, nil
}

// setPlainFields translates the request to plain fields. It returns false if they cannot hold it.
func (q *workerRequest) setPlainFields(all map[string]json.RawMessage, messages []json.RawMessage) bool {
	for name, value := range all {
		ok := true
		switch name {
		case "model", "messages", "stream", "stream_options", "request_id", "timeout_ms":
		case "temperature":
			q.start.Temperature, ok = exactFloat32(value)
		case "max_tokens":
			ok = json.Unmarshal(value, &q.start.MaxTokens) == nil && q.start.MaxTokens > 0
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	for _, m := range messages {
		text, ok := plainMessage(m)
		if !ok {
			return false
		}
		q.start.Messages = append(q.start.Messages, text)
	}
	return len(messages) > 0
}

// exactFloat32 returns a number as a float32. ok is false if that would change the number as it is
// written.
func exactFloat32(value json.RawMessage) (f *float32, ok bool) {
	var written float64
	if json.Unmarshal(value, &written) != nil || math.Abs(written) > math.MaxFloat32 {
		return nil, false
	}
	single := float32(written)
	var back float64
	again, err := json.Marshal(single) // the shortest text that stands for this float
	if err != nil || json.Unmarshal(again, &back) != nil || back != written || string(value) == "null" {
		return nil, false
	}
	return &single, true
}

// plainMessage returns a message as text: the content of a user's message, and other messages as
// JSON.
func plainMessage(raw json.RawMessage) (string, bool) {
	var m map[string]json.RawMessage
	text := string(raw)
	if !isMessage(text) || json.Unmarshal(raw, &m) != nil {
		return "", false
	}
	var role, content string
	if len(m) == 2 && json.Unmarshal(m["role"], &role) == nil && role == "user" &&
		strings.HasPrefix(string(m["content"]), `"`) && json.Unmarshal(m["content"], &content) == nil && !isMessage(content) {
		return content, true
	}
	return text, true
}
