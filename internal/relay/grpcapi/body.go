package grpcapi

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// bodyOf is the request as a chat request of OpenAI's API that asks for a stream with its usage. What the fields say comes first; should
// request say it again, the same member is there twice, and openai.Scan refuses that.
func bodyOf(start *pb.StartRequest) ([]byte, *openai.Error) {
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
		return nil, invalid("request", "messages must be empty when request is set.")
	case len(start.GetRequest()) > 0:
		if !m.object(start.GetRequest(), "stream", "stream_options") {
			return nil, invalid("request", "request must be a JSON object.")
		}
	case len(start.GetMessages()) == 0:
		return nil, invalid("messages", "messages must not be empty.")
	default:
		m.messages(start.GetMessages())
	}
	return append(m.buf, '}'), nil
}

func invalid(param, message string) *openai.Error {
	return &openai.Error{Code: openai.CodeInvalidRequest, Param: param, Message: message}
}

// members writes the members of a JSON object.
type members struct {
	buf []byte
}

func (m *members) raw(name string, value []byte) {
	if len(m.buf) > 1 {
		m.buf = append(m.buf, ',')
	}
	m.buf = append(append(append(m.buf, '"'), name...), `":`...)
	m.buf = append(m.buf, value...)
}

// text writes a string that is not empty.
func (m *members) text(name, value string) {
	if value != "" {
		m.raw(name, quoted(value))
	}
}

func (m *members) numbers(start *pb.StartRequest) *openai.Error {
	if start.Temperature != nil {
		t := float64(start.GetTemperature())
		if math.IsNaN(t) || math.IsInf(t, 0) {
			return invalid("temperature", "temperature must be a number.")
		}
		m.raw("temperature", strconv.AppendFloat(nil, t, 'f', -1, 32))
	}
	for _, n := range []struct {
		name  string
		value int32
	}{{"max_tokens", start.GetMaxTokens()}, {"timeout_ms", start.GetTimeoutMs()}} {
		switch {
		case n.value < 0:
			return invalid(n.name, n.name+" must not be negative.")
		case n.value > 0:
			m.raw(n.name, strconv.AppendInt(nil, int64(n.value), 10))
		}
	}
	return nil
}

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
		value = append(append(append(value, `{"role":"user","content":`...), quoted(text)...), '}')
	}
	m.raw("messages", append(value, ']'))
}

// object writes the members of a JSON object, but for those named.
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

// isMessage says that a text is a message as OpenAI's API has it, and not something that the user says.
func isMessage(text string) bool {
	var m struct {
		Role    *string         `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	return strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{") && json.Unmarshal([]byte(text), &m) == nil && m.Role != nil && m.Content != nil
}

// quoted is a text as JSON, without the escapes that are meant for HTML.
func quoted(text string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a string always encodes
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}
