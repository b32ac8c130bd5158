package relay

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

// maxAnswerBytes bounds an answer that is no stream, in bytes. Such an answer is held in memory.
const maxAnswerBytes = 64 << 20

// Answer is a response of an engine that is no stream.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// readAnswer reads a response that is no stream. The reason is as for failover.try.
func (a *attempt) readAnswer(response *http.Response) (reason string) {
	f := a.failover
	var body bytes.Buffer
	n, err := body.ReadFrom(io.LimitReader(response.Body, maxAnswerBytes+1))
	f.bytesRead += n
	if err == nil && isTruncated(response, body.Bytes()) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return a.fail(err)
	}
	if n > maxAnswerBytes {
		f.result.Fault = openai.Errorf(openai.CodeUpstreamError, "The engine's answer is larger than %d bytes.", maxAnswerBytes)
		return ""
	}
	answer := &Answer{Status: response.StatusCode, Header: response.Header, Body: body.Bytes()}
	if kind := dispatch.Answered(answer.Status); kind != 0 {
		a.gen.relay.config.Failed(a.replica.ID, kind, "answered "+strconv.Itoa(answer.Status))
		f.refusal = answer
		return reason5xx
	}
	if answer.Status < http.StatusMultipleChoices {
		if fault := a.processAnswer(answer); fault != nil {
			f.result.Fault = fault
			return ""
		}
	}
	f.answer, f.result.Answered = answer, true
	return ""
}

// processAnswer reads the usage from a successful answer, translates the answer from the dialect of
// the replica, and moderates it.
func (a *attempt) processAnswer(answer *Answer) *openai.Error {
	f := a.failover
	if f.rerank != nil {
		body, ok := f.rerank.fromTEI(a.gen.call.Scan.Model, answer.Body)
		if !ok {
			return openai.Errorf(openai.CodeUpstreamError, "The engine's answer is not an answer to a rerank request.")
		}
		answer.Body = body
	}
	chunk := new(sse.Chunk)
	if chunk.Read(answer.Body) && chunk.HasUsage {
		u := chunk.Usage
		f.result.Usage = Usage{Prompt: u.Prompt, Completion: u.Completion, Cached: u.Cached, Known: true}
	}
	if f.rules != nil && !a.gen.call.Scan.Endpoint.NoOutput() {
		body, verdict := f.rules.CheckAnswer(a.gen.ctx, answer.Body)
		a.stream.logUnanswered(verdict)
		if verdict.Action == moderation.Block {
			answer.Body, f.result.Cause, f.result.Finish = body, causeModeration, finishFiltered
		}
	}
	return nil
}

// decompress replaces the body of a response that is compressed although no compression was asked
// for.
func decompress(r *http.Response) error {
	if !strings.EqualFold(r.Header.Get("content-encoding"), "gzip") {
		return nil
	}
	plain, err := gzip.NewReader(r.Body)
	if err != nil {
		return err
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{plain, r.Body}
	r.Header.Del("content-encoding")
	return nil
}

// isEventStream reports whether the response is a stream of server-sent events.
func isEventStream(r *http.Response) bool {
	return r.StatusCode == http.StatusOK && mediaType(r) == "text/event-stream"
}

// isTruncated reports whether a successful answer is not whole, however its connection has ended:
// it claims to be JSON and is not.
func isTruncated(r *http.Response, body []byte) bool {
	return r.StatusCode == http.StatusOK && mediaType(r) == "application/json" && !json.Valid(body)
}

// mediaType returns the media type of a response, without parameters. Empty: there is no valid one.
func mediaType(r *http.Response) string {
	media, _, err := mime.ParseMediaType(r.Header.Get("content-type"))
	if err != nil {
		return ""
	}
	return media
}
