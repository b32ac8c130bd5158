package relay

import (
	"mime"
	"net/http"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

// form is how the body of an answer is read by moderation rules.
type form uint8

const (
	formUnknown form = iota
	formJSON
	formText
	formEvents
)

// formOf returns the form of a response. Bodies in other character sets and in encodings would show
// a client what the rules do not see.
func formOf(h http.Header) form {
	if e := h.Get("content-encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return formUnknown
	}
	media, parameters, err := mime.ParseMediaType(h.Get("content-type"))
	if err != nil {
		return formUnknown
	}
	switch charset := strings.ToLower(parameters["charset"]); charset {
	case "", "utf-8", "us-ascii":
	default:
		return formUnknown
	}
	switch {
	case media == "text/event-stream":
		return formEvents
	case media == "application/json", strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json"):
		return formJSON
	case strings.HasPrefix(media, "text/"), media == "application/x-subrip":
		return formText
	}
	return formUnknown
}

// checkForm refuses a successful response that moderation rules cannot read: what they cannot read
// does not pass. nil: the rules can read it, or there are none.
func (f *failover) checkForm(response *http.Response) *openai.Error {
	if f.rules == nil || response.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	switch formOf(response.Header) {
	case formJSON:
		return nil
	case formEvents:
		if f.gen.call.isEventStream(response) {
			return nil
		}
	case formText: // the formats of a transcription: text, srt, vtt
		if f.gen.call.Scan.Endpoint.Transcribes() {
			return nil
		}
	case formUnknown:
		if response.ContentLength == 0 {
			return nil
		}
	}
	return openai.Errorf(openai.CodeUpstreamError, "The engine's answer has the type %q and the encoding %q, which the moderation rules cannot read.",
		clip(response.Header.Get("content-type")), clip(response.Header.Get("content-encoding")))
}

// clip shortens a header for an error.
func clip(value string) string { return value[:min(len(value), 64)] }

// moderateAnswer applies the rules to a successful answer that is no stream.
func (a *attempt) moderateAnswer(answer *Answer) *openai.Error {
	f := a.failover
	a.moderateHeader(answer)
	if len(answer.Body) == 0 {
		return nil
	}
	var body []byte
	var verdict moderation.Verdict
	if formOf(answer.Header) == formText {
		body, verdict = answer.Body, f.rules.CheckText(a.gen.ctx, f.ticket.Model, answer.Body)
	} else {
		body, verdict = f.rules.CheckAnswer(a.gen.ctx, f.ticket.Model, answer.Body)
	}
	a.stream.logUnanswered(verdict)
	if verdict.Ended {
		f.result.Cause, f.result.Finish = causeModeration, finishFiltered
	}
	switch verdict.Action {
	case moderation.Block:
		return filteredFault()
	case moderation.Refuse:
		return openai.Errorf(openai.CodeUpstreamError, "The engine's answer has a form that the moderation rules cannot read.")
	case moderation.Pass, moderation.Hold:
	}
	answer.Body = body
	return nil
}

// filteredFault is what a client is told when a rule forbids an answer that has no finish_reason.
func filteredFault() *openai.Error {
	return openai.Errorf(openai.CodeContentFilter, "A moderation rule forbids the answer.")
}

// moderateRefusal applies the rules to an engine's refusal. If they forbid or cannot read it, an
// error of the gateway takes its place, with the same status.
func (a *attempt) moderateRefusal(answer *Answer) {
	f := a.failover
	a.moderateHeader(answer)
	if len(answer.Body) == 0 {
		return
	}
	verdict := moderation.Verdict{Action: moderation.Refuse}
	body := answer.Body
	switch formOf(answer.Header) {
	case formText:
		verdict = f.rules.CheckText(a.gen.ctx, f.ticket.Model, body)
	case formJSON:
		body, verdict = f.rules.CheckAnswer(a.gen.ctx, f.ticket.Model, body)
	case formUnknown, formEvents:
	}
	a.stream.logUnanswered(verdict)
	if verdict.Action == moderation.Pass && !verdict.Ended {
		answer.Body = body
		return
	}
	fault := &openai.Error{Code: openai.CodeUpstreamError, Status: answer.Status,
		Message: "The engine refused the request. The moderation rules do not let its message pass."}
	if answer.Status < http.StatusInternalServerError {
		fault.Code = openai.CodeInvalidRequest
	}
	answer.Body = fault.Body()
	answer.Header.Set("content-type", "application/json")
	answer.Header.Del("content-encoding")
}

// moderateHeader removes the headers of an answer that a rule forbids.
func (a *attempt) moderateHeader(answer *Answer) {
	for name, values := range answer.Header {
		for _, value := range values {
			if name != "Content-Type" && !(a.failover.rules.Allows([]byte(name)) && a.failover.rules.Allows([]byte(value))) {
				delete(answer.Header, name)
			}
		}
	}
}
