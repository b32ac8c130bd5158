package relay

import (
	"bytes"
	"net/http"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// Many engines lack the calls of the Responses API besides the creation of a response. They answer
// with the 404 of an unknown path, or with the 405 of a path that they take for a stored response.
// Neither tells the client what it can do.

// isLacking reports whether an answer says that the engine lacks the call. A 404 in the form of the
// API, or about the response that the request continues, is about something else.
func (c *Call) isLacking(a *Answer) bool {
	if !c.Scan.Endpoint.BesideResponses() {
		return false
	}
	previous := c.Scan.PreviousResponseID
	isOther := hasErrorForm(a.Body) || previous != "" && bytes.Contains(a.Body, []byte(previous))
	return a.Status == http.StatusMethodNotAllowed || a.Status == http.StatusNotFound && !isOther
}

// lackingFault is the error for a call that the engine lacks. a is the engine's answer.
func lackingFault(e openai.Endpoint, a *Answer) *openai.Error {
	advice := "Shorten the conversation in the client."
	if e == openai.InputTokens {
		advice = "To count tokens, send the text to /tokenize, or the conversation to /v1/messages/count_tokens."
	}
	fault := openai.Errorf(openai.CodeModelNotCapable, "The engine of the model does not serve %s: it answered with status %d. %s",
		e.Path(), a.Status, advice)
	fault.Param, fault.Status = "model", http.StatusNotFound
	return fault
}
