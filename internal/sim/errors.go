package sim

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// apiError is an error in vLLM's form. An empty kind is vLLM's answer to a wrong key, which has a
// form of its own.
type apiError struct {
	status  int
	kind    string
	message string
	param   string
	// retryAfter is the Retry-After in seconds. 0: the engine's own, -1: none.
	retryAfter int
	// ofMessages gives the error the form of the Messages API.
	ofMessages bool
}

func (e *apiError) Error() string { return e.message }

// badRequest returns an error with status 400 about a parameter.
func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: fmt.Sprintf(format, args...), param: param}
}

// body returns the error as JSON.
func (e *apiError) body() []byte {
	if e.kind == "" {
		return openai.Encode(map[string]string{"error": e.message})
	}
	var param *string
	if e.param != "" {
		param = &e.param
	}
	return openai.Encode(map[string]any{"error": map[string]any{
		"message": e.message, "type": e.kind, "param": param, "code": e.status,
	}})
}

// writeTo sends the error as a response.
func (e *apiError) writeTo(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	after := e.retryAfter
	if after == 0 && (e.status == http.StatusServiceUnavailable || e.status == http.StatusTooManyRequests) {
		after = 1
	}
	if after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(after))
	}
	body := e.body()
	if e.ofMessages {
		body = e.messagesBody()
	}
	w.WriteHeader(e.status)
	_, _ = w.Write(body)
}
