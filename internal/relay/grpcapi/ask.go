package grpcapi

import (
	"encoding/json"
	"errors"
	"math"
	"strings"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
)

// question is a chat request of OpenAI's API in the words of llm.v1.
type question struct {
	start    *pb.StartRequest
	streamed bool // the answer is to be a stream
	usage    bool // with an event of its own for the usage
	model    string
}

var errNoChat = errors.New("llmv1: no chat request")

// ask reads a chat request. What the plain fields can say they say, so that workers without JSON understand the usual request; anything
// more makes the whole go into the field request.
func ask(body []byte) (question, error) {
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
		return question{}, errNoChat
	}
	q := question{start: &pb.StartRequest{Model: known.Model}, streamed: known.Stream, usage: known.StreamOptions.IncludeUsage, model: known.Model}
	if q.plain(all, known.Messages) {
		return q, nil
	}
	q.start.Reset()
	q.start.Model = known.Model
	m := members{buf: []byte("{")}
	if !m.object(body, "model", "stream", "stream_options", "request_id", "timeout_ms") {
		return question{}, errNoChat
	}
	m.buf = append(m.buf, '}')
	q.start.Request = m.buf
	return q, nil
}

// plain says the request in plain fields, if they can say it.
func (q *question) plain(all map[string]json.RawMessage, messages []json.RawMessage) bool {
	for name, value := range all {
		ok := true
		switch name {
		case "model", "messages", "stream", "stream_options", "request_id", "timeout_ms":
		case "temperature":
			q.start.Temperature, ok = single(value)
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

// single is a number that a float says as it is written.
func single(value json.RawMessage) (*float32, bool) {
	var written float64
	if json.Unmarshal(value, &written) != nil || math.Abs(written) > math.MaxFloat32 {
		return nil, false
	}
	f := float32(written)
	var back float64
	again, err := json.Marshal(f) // the shortest that is this float
	if err != nil || json.Unmarshal(again, &back) != nil || back != written || string(value) == "null" {
		return nil, false
	}
	return &f, true
}

// plainMessage is a message as text: what the user says as it is, anything else as JSON.
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
