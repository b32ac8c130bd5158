package grpcapi

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// chatBody returns the request as a chat request of OpenAI's API that asks for a stream with its
// usage. The fields of start come first. If the field request repeats one of them, the member is in
// the body twice, and openai.Scan refuses the body.
func chatBody(start *pb.StartRequest) ([]byte, *openai.Error) {
	m := members{buf: []byte("{")}
	m.raw("stream", []byte("true"))
	m.raw("stream_options", []byte(`{"include_usage":true}`))
	m.text("model", start.GetModel())
	m.text("request_id", start.GetRequestId())
	if fault := m.numbers(start); fault != nil {
		return nil, fault
	}
	switch {
	case len(start.GetRequest()) > 0 && len(start.GetMessages()) > 0:
		return nil, &openai.Error{Code: openai.CodeInvalidRequest, Param: "request", Message: "messages must be empty when request is set."}
	case len(start.GetRequest()) > 0:
		if !m.object(start.GetRequest(), "stream", "stream_options") {
			return nil, openai.Invalid("request", "must be a JSON object")
		}
	case len(start.GetMessages()) == 0:
		return nil, openai.Invalid("messages", "must not be empty")
	default:
		m.messages(start.GetMessages())
	}
	return append(m.buf, '}'), nil
}

// members writes the members of a JSON object.
type members struct {
	buf []byte
}

// raw writes a member whose value is JSON already.
func (m *members) raw(name string, value []byte) {
	if len(m.buf) > 1 {
		m.buf = append(m.buf, ',')
	}
	m.buf = append(append(append(m.buf, '"'), name...), `":`...)
	m.buf = append(m.buf, value...)
}

// text writes a string, unless it is empty.
func (m *members) text(name, value string) {
	if value != "" {
		m.raw(name, openai.Encode(value))
	}
}

// noLimit is the max_tokens by which clients say that there is no limit, as if they gave none.
const noLimit = -1

func (m *members) numbers(start *pb.StartRequest) *openai.Error {
	if start.Temperature != nil {
		t := float64(start.GetTemperature())
		if math.IsNaN(t) || math.IsInf(t, 0) {
			return openai.Invalid("temperature", "must be a number")
		}
		m.raw("temperature", strconv.AppendFloat(nil, t, 'f', -1, 32))
	}
	for _, n := range []struct {
		name  string
		value int32
	}{{"max_tokens", start.GetMaxTokens()}, {"timeout_ms", start.GetTimeoutMs()}} {
		switch {
		case n.value == noLimit && n.name == "max_tokens":
		case n.value < 0:
			return openai.Invalid(n.name, "must not be negative")
		case n.value > 0:
			m.raw(n.name, strconv.AppendInt(nil, int64(n.value), 10))
		}
	}
	return nil
}

// messages writes the messages. A text that is no message becomes one of the user.
func (m *members) messages(list []string) {
	value := []byte("[")
	for i, text := range list {
		if i > 0 {
			value = append(value, ',')
		}
		if isMessage(text) {
			value = append(value, text...)
			continue
		}
		value = append(append(append(value, `{"role":"user","content":`...), openai.Encode(text)...), '}')
	}
	m.raw("messages", append(value, ']'))
}

// object writes the members of a JSON object, except those in without.
func (m *members) object(text []byte, without ...string) bool {
	var r jsonscan.Reader
	r.Reset(text)
	if r.Kind() != '{' {
		return false
	}
	for more := r.Open('{'); more; more = r.More('{') {
		name := r.RawName()
		r.Kind()
		start := r.Pos()
		r.Skip()
		if !slices.Contains(without, string(name)) {
			m.raw(string(name), text[start:r.Pos()])
		}
	}
	return r.Valid()
}

// isMessage reports whether a text is a message in the form of OpenAI's API. Any other text is what
// the user says.
func isMessage(text string) bool {
	var m struct {
		Role    *string         `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	return strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{") && json.Unmarshal([]byte(text), &m) == nil && m.Role != nil && m.Content != nil
}
