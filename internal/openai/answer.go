package openai

import (
	"net/http"
	"strconv"
)

// Answer writes the error as an HTTP response: its own headers, Retry-After where a retry makes sense, and Body. Headers that w has already stay.
func (e *Error) Answer(w http.ResponseWriter) {
	h, body := w.Header(), e.Body()
	for name, value := range e.Header {
		h.Set(name, value)
	}
	if s := e.RetryAfterSeconds(); s != "" {
		h.Set("retry-after", s)
	}
	h.Set("content-type", "application/json")
	h.Set("content-length", strconv.Itoa(len(body)))
	w.WriteHeader(e.HTTPStatus())
	_, _ = w.Write(body) // the client may be gone; nobody is left to tell
}
