package openai

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// EngineError is what an engine, or another gateway, says of a failure. A field is empty if the
// engine does not say it. All texts are valid UTF-8. They are the engine's words: they may quote a
// prompt, so they are for the client alone.
type EngineError struct {
	Message string
	Type    string
	// Code is empty if the engine's code is no string.
	Code  string
	Param string
	// Status is the status that some engines repeat as the code, from 400 to 599. 0: not said.
	Status int
	// RetryAfter is when a retry makes sense; 0: not said. Only gateways say it in the body.
	RetryAfter time.Duration
}

// ParseEngineError reads the body of an answer with an error status, or the data of an error event.
// It knows these shapes:
//
//	{"error":{"message","type","code","param"}}   OpenAI, and a gateway with "retry_after_ms"
//	{"error":"words"}                             TGI and others
//	{"message","type","code","param"}             older vLLM, and events of the Responses API
//	{"detail":"words"} or {"detail":[…]}          FastAPI
//
// An error object counts before the members beside it, and both before the detail, which is JSON if
// it is no string. The EngineError is empty for a body that is no JSON object or has no such
// member.
func ParseEngineError(data []byte) EngineError {
	var e engineErrorReader
	e.json.Reset(data)
	e.data = data
	if e.json.Kind() != '{' {
		return EngineError{}
	}
	e.body()
	if !e.json.Valid() {
		return EngineError{}
	}
	return e.merged()
}

// ReportedError returns the error that an event of an engine's stream reports, in the engine's
// words. A failure of the engine without a code is CodeUpstreamError. Its status is that of the
// code in the place of 500, because the same request may succeed later.
func ReportedError(data []byte) *Error {
	said := ParseEngineError(data)
	e := &Error{Code: Code(said.Code), Message: said.Message, Param: said.Param, EngineType: said.Type, RetryAfter: said.RetryAfter}
	switch {
	case said.Status != 0 && said.Status != http.StatusInternalServerError:
		e.Status = said.Status
	case !e.Code.Known():
		e.Status = CodeUpstreamError.Status()
	}
	e.Code = cmp.Or(e.Code, CodeOfStatus(e.Status))
	e.Message = cmp.Or(e.Message, "The engine could not finish its answer.")
	return e
}

// engineErrorReader keeps apart what stands in the body and in its error object.
type engineErrorReader struct {
	json          jsonscan.Reader
	data          []byte
	outer, object EngineError
	detail        string
}

func (e *engineErrorReader) body() {
	for more := e.json.Open('{'); more; more = e.json.More('{') {
		switch name := string(e.json.Name()); name {
		case "error":
			e.error()
		case "detail":
			e.detail = e.words()
		default:
			e.member(&e.outer, name)
		}
	}
}

// error reads the value of "error": an object, or the message alone.
func (e *engineErrorReader) error() {
	if e.json.Kind() != '{' {
		e.object = EngineError{Message: e.text()}
		return
	}
	for more := e.json.Open('{'); more; more = e.json.More('{') {
		e.member(&e.object, string(e.json.Name()))
	}
}

func (e *engineErrorReader) member(to *EngineError, name string) {
	switch name {
	case "message":
		to.Message = e.text()
	case "type":
		to.Type = e.text()
	case "code":
		e.code(to)
	case "param":
		to.Param = e.text()
	case "retry_after_ms":
		ms, _ := e.json.Int()
		to.RetryAfter = time.Duration(min(ms, maxMillis)) * time.Millisecond
	default:
		e.json.Skip()
	}
}

// code reads a code: a word, or a status.
func (e *engineErrorReader) code(to *EngineError) {
	if e.json.Kind() == '"' {
		to.Code = e.text()
	} else if n, _ := e.json.Int(); n >= 400 && n <= 599 {
		to.Status = int(n)
	}
}

// text reads any value and returns the text of a string; of anything else it is empty.
func (e *engineErrorReader) text() string {
	return strings.ToValidUTF8(string(e.json.Text()), "\ufffd")
}

// words reads any value and returns the text of a string, nothing for a null, and the JSON of
// anything else.
func (e *engineErrorReader) words() string {
	switch e.json.Kind() {
	case '"', 'n':
		return e.text()
	}
	at := e.json.Value()
	return strings.ToValidUTF8(string(e.data[at.From:at.To]), "\ufffd")
}

// merged returns the members of the error object, and those beside it that the object lacks.
func (e *engineErrorReader) merged() EngineError {
	said := e.object
	for _, f := range []struct{ to, from *string }{
		{&said.Message, &e.outer.Message}, {&said.Message, &e.detail}, {&said.Type, &e.outer.Type},
		{&said.Code, &e.outer.Code}, {&said.Param, &e.outer.Param},
	} {
		if *f.to == "" {
			*f.to = *f.from
		}
	}
	said.RetryAfter = cmp.Or(said.RetryAfter, e.outer.RetryAfter)
	said.Status = cmp.Or(said.Status, e.outer.Status)
	return said
}

// BrokenOff returns the fault of an answer that its engine has broken off, as the finish reason
// says. nil: the engine has not.
func BrokenOff(finish string) *Error {
	if finish != "abort" && finish != "error" {
		return nil
	}
	return Errorf(CodeUpstreamError, "The engine has broken its answer off.")
}
