package relay

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// defaultMaxAnswer is the default of Config.MaxAnswer.
const defaultMaxAnswer = 64 << 20

// Answer is a response of an engine that is no stream.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte

	// memory is the reservation for Body. nil: there is none. released says that it was given back.
	memory   *memory.Hold
	released atomic.Bool
}

// release gives the reservation of the answer back. Any goroutine may call it, more than once. nil:
// there is no answer.
func (a *Answer) release() {
	if a != nil && a.released.CompareAndSwap(false, true) {
		a.memory.Release()
	}
}

// readAnswer reads a response that is no stream. The reason is as for failover.try.
func (a *attempt) readAnswer(response *http.Response) (reason string) {
	config := &a.gen.relay.config
	hold := config.Memory.Hold(memory.Answers)
	body, err := readWhole(response, &hold, config.MaxAnswer)
	a.failover.bytesRead += int64(len(body))
	answer := &Answer{Status: response.StatusCode, Header: response.Header, Body: body, memory: &hold}
	switch {
	case errors.Is(err, errAnswerTooLarge):
		a.failover.result.Fault = openai.Errorf(openai.CodeUpstreamError, "The engine's answer is larger than %d bytes.", config.MaxAnswer)
	case errors.Is(err, errNoMemory):
		a.failover.result.Fault = memoryFault(config.Memory)
	case err != nil:
		reason = a.fail(incomplete(err))
	default:
		reason = a.useAnswer(answer)
	}
	if answer != a.failover.answer && answer != a.failover.refusal {
		answer.release()
	}
	return reason
}

// Why an answer is not read to its end.
var (
	errAnswerTooLarge = errors.New("the engine's answer is too large")
	errNoMemory       = errors.New("the budget for memory has no room for the engine's answer")
)

const (
	// firstRead is the first size of the buffer of an answer, in bytes, if the engine does not tell
	// the answer's size. maxHint bounds what an engine may tell.
	firstRead = 8 << 10
	maxHint   = 1 << 20
)

// readWhole reads a body of at most this size. It reserves the memory before it uses it.
func readWhole(response *http.Response, hold *memory.Hold, most int64) ([]byte, error) {
	size := int64(firstRead)
	if n := response.ContentLength; n > 0 {
		size = min(n+1, maxHint)
	}
	var body []byte
	for {
		if len(body) == cap(body) {
			size = max(size, min(2*int64(cap(body)), most+1))
			if !hold.Resize(int64(cap(body)) + size) { // both buffers exist for a moment
				return body, errNoMemory
			}
			body = append(make([]byte, 0, size), body...)
			hold.Resize(size)
		}
		n, err := response.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > most:
			return body, errAnswerTooLarge
		case err == io.EOF: //nolint:errorlint // a body ends with io.EOF itself
			return body, nil
		case err != nil:
			return body, err
		}
	}
}

// useAnswer decides what becomes of an answer that was read to its end. The reason is as for
// failover.try.
func (a *attempt) useAnswer(answer *Answer) (reason string) {
	f := a.failover
	if a.gen.call.Scan.Endpoint.Generates() {
		answer.unmaskError()
	}
	if a.gen.call.Scan.Endpoint.NoOutput() {
		answer.unmaskRefusal()
	}
	a.reportStatus(answer)
	if answer.Status >= http.StatusMultipleChoices && f.rules != nil {
		a.moderateRefusal(answer)
	}
	if reason = f.ticket.FailOver.Reason(answer.Status); reason != "" {
		answer.normaliseError()
		f.refusal.release()
		f.refusal, f.refusedBy = answer, a.replica.ID
		return reason
	}
	if a.gen.call.isLacking(answer) {
		f.result.Fault = lackingFault(a.gen.call.Scan.Endpoint, answer)
		return ""
	}
	if answer.Status < http.StatusMultipleChoices {
		if err := a.gen.call.checkAnswer(mediaType(answer.Header), answer.Body); err != nil {
			return a.fail(err)
		}
		if fault := a.processAnswer(answer); fault != nil {
			f.result.Fault = fault
			return ""
		}
		if a.gen.call.wantsEvents() {
			f.result.Fault, f.result.Cause = answer.eventError(), causeEngine
			return ""
		}
		if f.ticket.WantsResponseID() {
			f.ticket.LearnResponse(openai.ResponseID(answer.Body))
		}
	}
	answer.normaliseError()
	f.answer, f.result.Answered = answer, true
	return ""
}

// unmaskError gives an answer that is an error, and has a successful status nevertheless, the
// status of its code or 500.
func (a *Answer) unmaskError() {
	if a.Status >= http.StatusMultipleChoices || !bytes.Contains(a.Body, []byte(`"error"`)) {
		return
	}
	if chunk := new(sse.Chunk); !chunk.Read(a.Body) || !chunk.OnlyError() {
		return
	}
	a.Status = statusOfError(a.Body)
}

// tooLong is what the server of llama.cpp says of an input that does not fit into a physical batch.
var tooLong = []byte("too large to process. increase the physical batch size")

// unmaskRefusal gives the status 400 to an answer of 500 by which an engine refuses an input that
// is too long. The engine's message stays.
func (a *Answer) unmaskRefusal() {
	if a.Status != http.StatusInternalServerError || !bytes.Contains(a.Body, tooLong) {
		return
	}
	a.Status = http.StatusBadRequest
	refusal := a.EngineError()
	refusal.EngineType = ""
	a.setError(refusal)
}

// statusOfError returns the status that an engine repeats as the code of its error. It is 500 if
// the error has no such code.
func statusOfError(data []byte) int {
	return cmp.Or(openai.ParseEngineError(data).Status, http.StatusInternalServerError)
}

// reportStatus reports an answer that says that the replica has failed or has too much to do.
func (a *attempt) reportStatus(answer *Answer) {
	config, id := &a.gen.relay.config, a.replica.ID
	if kind := dispatch.Answered(answer.Status); kind != 0 {
		config.Failed(a.failover.ticket.Model, id, kind, "answered "+strconv.Itoa(answer.Status))
	}
	if after := openai.ParseRetryAfter(answer.Header.Get("retry-after"), time.Now()); dispatch.WantsRest(answer.Status, after) {
		config.Rest(id, after)
	}
}

// maxForeignError bounds the text of an engine's error that is passed on although it is not in a
// form that Sluice knows, in bytes.
const maxForeignError = 2 << 10

// EngineError returns what the engine says of its failure. A code or a type that the engine does
// not give follows from the status.
func (a *Answer) EngineError() *openai.Error {
	said := openai.ParseEngineError(a.Body)
	e := &openai.Error{Code: openai.Code(said.Code), Message: said.Message, Param: said.Param, Status: a.Status, EngineType: said.Type,
		RetryAfter: max(said.RetryAfter, openai.ParseRetryAfter(a.Header.Get("retry-after"), time.Now()))}
	e.Code = cmp.Or(e.Code, openai.CodeOfStatus(a.Status))
	if e.Message == "" {
		e.Message = "The engine answered with status " + strconv.Itoa(a.Status) + "."
		if text := bytes.TrimSpace(a.Body); len(text) > 0 && len(text) <= maxForeignError && utf8.Valid(text) {
			e.Message = strings.TrimSuffix(e.Message, ".") + ": " + string(text)
		}
	}
	return e
}

// normaliseError brings an engine's error into the form of the API, unless it has that form and a
// code already. The status and the engine's message stay.
func (a *Answer) normaliseError() {
	if a.Status < http.StatusBadRequest || hasErrorForm(a.Body) {
		return
	}
	a.setError(a.EngineError())
}

// setError makes the error the body of the answer.
func (a *Answer) setError(e *openai.Error) {
	a.Body = e.Body()
	a.Header = a.Header.Clone()
	a.Header.Set("content-type", "application/json")
}

func hasErrorForm(body []byte) bool {
	var read struct {
		Error *struct {
			Message string `json:"message"`
			Code    string `json:"code"`
		} `json:"error"`
	}
	return json.Unmarshal(body, &read) == nil && read.Error != nil && read.Error.Message != "" && read.Error.Code != ""
}

// processAnswer reads the usage and the finish_reason from a successful answer, translates the
// answer from the dialect of the replica, and moderates it.
func (a *attempt) processAnswer(answer *Answer) *openai.Error {
	f := a.failover
	if f.rerank != nil {
		body, ok := f.rerank.fromTEI(a.gen.call.Scan.Model, answer)
		if !ok {
			return openai.Errorf(openai.CodeUpstreamError, "The engine's answer is not an answer to a rerank request.")
		}
		answer.Body = body
	}
	chunk := new(sse.Chunk)
	read := chunk.Read(answer.Body)
	if f.result.Finish = chunk.Finish; len(chunk.Choices) > 0 {
		f.result.Finish = string(chunk.Choices[len(chunk.Choices)-1].Finish)
	}
	switch total := chunk.OnlyTotal(); {
	case read && chunk.Told:
		u := chunk.Usage
		f.result.Usage = Usage{Prompt: u.Prompt, Completion: u.Completion, Cached: u.Cached, Known: true}
	case read && total > 0 && a.gen.call.Scan.Endpoint.NoOutput():
		f.result.Usage = Usage{Prompt: total, Known: true}
	}
	if fault := a.gen.call.brokenOff(f.result.Finish); fault != nil {
		return fault
	}
	if f.rules != nil {
		return a.moderateAnswer(answer)
	}
	return nil
}
