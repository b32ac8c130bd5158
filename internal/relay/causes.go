package relay

import (
	"errors"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Causes of a generation's context: why the generation ended before its end.
var (
	errClosing   = errors.New("the gateway is stopping")
	errLeft      = errors.New("the client has left")
	errSlow      = errors.New("the client reads too slowly")
	errCancelled = errors.New("the request was cancelled")
	errTimeout   = errors.New("the request's own timeout is over")
	errTooLong   = errors.New("the response takes longer than it may")
)

// Causes for which a stream ended before its end, as the metrics name them.
const (
	causeClient     = request.CauseClient
	causeEngine     = request.CauseEngine
	causeTimeout    = request.CauseTimeout
	causeSlow       = request.CauseSlowClient
	causeCancelled  = request.CauseCancelled
	causeModeration = request.CauseModeration
	causeGateway    = request.CauseGateway
)

// faultOf returns what a client is told when its generation has ended for this cause.
func faultOf(cause error) *openai.Error {
	switch {
	case errors.Is(cause, errClosing):
		return openai.Stopping()
	case errors.Is(cause, errTimeout):
		return openai.Errorf(openai.CodeRequestTimeout, "The response took longer than the request's own timeout.")
	case errors.Is(cause, errTooLong):
		return openai.Errorf(openai.CodeUpstreamTimeout, "The response took longer than it may.")
	case errors.Is(cause, errCancelled):
		return openai.Cancelled()
	case errors.Is(cause, errSlow):
		return tooSlowFault()
	}
	return &openai.Error{Code: openai.CodeCancelled, Message: "The client left."}
}

// causeOf returns the metrics' name of a cause of a generation's context.
func causeOf(cause error) string {
	switch {
	case errors.Is(cause, errClosing):
		return causeGateway
	case errors.Is(cause, errTimeout), errors.Is(cause, errTooLong):
		return causeTimeout
	case errors.Is(cause, errCancelled):
		return causeCancelled
	case errors.Is(cause, errSlow):
		return causeSlow
	}
	return causeClient
}

// causeOfCode returns the metrics' name of the cause for which a sink has ended its stream with an
// error of this code.
func causeOfCode(code openai.Code) string {
	switch code {
	case openai.CodeCancelled:
		return causeCancelled
	case openai.CodeClientTooSlow:
		return causeSlow
	case openai.CodeGatewayUnavailable:
		return causeGateway
	}
	return causeClient
}

// causeOfReported returns the metrics' name of the cause for which a remote gateway has ended a
// stream with an error of this code. Empty: the code stands for no cause.
func causeOfReported(code openai.Code) string {
	switch code {
	case openai.CodeUpstreamError, openai.CodeUpstreamTruncated:
		return causeEngine
	case openai.CodeUpstreamTimeout, openai.CodeRequestTimeout:
		return causeTimeout
	case openai.CodeGatewayUnavailable, openai.CodeCancelled, openai.CodeClientTooSlow:
		return causeOfCode(code)
	}
	return ""
}

// tooSlowFault returns what a client is told that is cut off because it reads too slowly.
func tooSlowFault() *openai.Error {
	return openai.Errorf(openai.CodeClientTooSlow, "The client read more slowly than the engine wrote, and too much was waiting for it.")
}

// notFoundFault returns what a client is told that asks for a stream that nobody runs.
func notFoundFault() *openai.Error {
	return openai.Errorf(openai.CodeStreamNotFound, "No request with this id is running, or ended a moment ago.")
}
