package relay

import (
	"net/http"
	"time"
)

// timedWriter is a response that another server writes through the relay. A client that neither
// reads nor leaves would otherwise hold that server for ever.
type timedWriter struct {
	http.ResponseWriter
	controller *http.ResponseController
	// timeout is how long one write may take.
	timeout time.Duration
}

func (r *Relay) timed(w http.ResponseWriter) *timedWriter {
	return &timedWriter{w, http.NewResponseController(w), r.config.WriteTimeout}
}

func (w *timedWriter) Write(b []byte) (int, error) {
	_ = w.controller.SetWriteDeadline(time.Now().Add(w.timeout)) // some responses, as in tests, have no deadline
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
