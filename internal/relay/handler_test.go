package relay

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// deadlineRecorder is a response that records the deadlines for reading the body.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	deadlines []time.Time
}

// SetReadDeadline is for http.ResponseController.
func (r *deadlineRecorder) SetReadDeadline(t time.Time) error {
	r.deadlines = append(r.deadlines, t)
	return nil
}

// A body that means nothing may not take longer than any other, so that its client cannot hold the
// connection.
func TestIgnoredBodyHasADeadline(t *testing.T) {
	h := newHarness(t, options{})
	w := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	began := time.Now()
	h.relay.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/streams/x/cancel", strings.NewReader("x")))
	if len(w.deadlines) != 2 || w.deadlines[0].Before(began.Add(bodyTimeout)) || !w.deadlines[1].IsZero() {
		t.Errorf("%v", w.deadlines)
	}
}
