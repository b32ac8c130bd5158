package relay

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/http1"
)

// fullWriter is a response that accepts everything, or nothing while it is full.
type fullWriter struct {
	*httptest.ResponseRecorder
	full bool
}

// TryWrite implements tryWriter.
func (w *fullWriter) TryWrite(b []byte) (whole bool, err error) {
	if w.full {
		return false, http1.ErrFull
	}
	_, err = w.Write(b)
	return true, err
}

// A stream holds a buffer only while it has events that are not written. Sinks that use the same
// buffers in turn do not mix their events.
func TestBuffersOfSinks(t *testing.T) {
	sinks, events := make([]*httpSink, 3), []string{"data: a\n\n", "data: " + strings.Repeat("b", 5000) + "\n\n", "data: " + strings.Repeat("c", 50_000) + "\n\n"}
	for i := range sinks {
		w := &fullWriter{ResponseRecorder: httptest.NewRecorder()}
		sinks[i] = &httpSink{w: w, inline: w, call: &Call{}}
	}
	for range 10 {
		for i, s := range sinks {
			s.Append([]byte(events[i]), 0)
			w := s.w.(*fullWriter)
			w.full = true
			if whole, err := s.TryFlush(); whole || err != nil || len(s.buffer) == 0 {
				t.Errorf("while the client accepts nothing: %t, %v, %d bytes are kept", whole, err, len(s.buffer))
			}
			w.full = false
			s.Append([]byte(events[i]), 1)
		}
		for _, s := range sinks {
			if whole, err := s.TryFlush(); !whole || err != nil || s.buffer != nil {
				t.Errorf("after a flush: %t, %v, a buffer of %d bytes", whole, err, cap(s.buffer))
			}
		}
	}
	for i, s := range sinks {
		if got := s.w.(*fullWriter).Body.String(); got != strings.Repeat(events[i], 20) {
			t.Errorf("sink %d has written %d bytes, not %d times its event", i, len(got), 20)
		}
	}
}
