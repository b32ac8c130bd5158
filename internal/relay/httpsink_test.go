package relay

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/http1"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
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

// slowWriter is a response whose client reads a byte in a microsecond. It accepts nothing at once.
type slowWriter struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

// TryWrite implements tryWriter.
func (w *slowWriter) TryWrite([]byte) (whole bool, err error) { return false, http1.ErrFull }

// SetWriteDeadline is for http.ResponseController.
func (w *slowWriter) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	return nil
}

func (w *slowWriter) Write(b []byte) (int, error) {
	time.Sleep(time.Duration(len(b)) * time.Microsecond)
	if !time.Now().Before(w.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	return w.ResponseRecorder.Write(b)
}

// A client that reads all the time gets an event that takes longer than one write may, and has as
// long for the end of the response.
func TestLargeEventForASlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 100 * time.Millisecond
		w := &slowWriter{ResponseRecorder: httptest.NewRecorder()}
		s := &httpSink{w: w, inline: w, controller: http.NewResponseController(w), call: &Call{}, writeTimeout: timeout}
		large := []byte(tokenEvent(strings.Repeat("x", 3<<20)))
		s.Append(large, 0)
		if whole, err := s.TryFlush(); whole || err != nil {
			t.Errorf("while the client accepts nothing: %t, %v", whole, err)
		}
		if err := s.Flush(); err != nil {
			t.Errorf("the rest of an inline write: %v", err)
		}
		if err := errors.Join(s.Event(large, 1), s.Flush()); err != nil {
			t.Errorf("an event that has waited: %v", err)
		}
		time.Sleep(timeout)
		if err := s.Finish(Result{}); err != nil || time.Until(w.deadline) != timeout {
			t.Errorf("at the end: %v, %v are left", err, time.Until(w.deadline))
		}
		if n := w.Body.Len(); n != 2*len(large) {
			t.Errorf("the client has %d bytes, want %d", n, 2*len(large))
		}
	})
}

// The whole of a large answer is not one write, either.
func TestLargeAnswerForASlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &slowWriter{ResponseRecorder: httptest.NewRecorder()}
		s := &httpSink{w: w, inline: w, controller: http.NewResponseController(w), call: &Call{}, writeTimeout: 100 * time.Millisecond}
		large := []byte(`{"text":"` + strings.Repeat("x", 8<<20) + `"}`)
		if err := s.Answer(&Answer{Status: http.StatusOK, Body: large}); err != nil || w.Body.Len() != len(large) {
			t.Errorf("the client has %d of %d bytes: %v", w.Body.Len(), len(large), err)
		}
	})
}

// A client of the Messages API that has not asked for the reasoning gets heartbeats while the model
// reasons, although events come all the time.
func TestS2_HeartbeatsWhileTheModelReasons(t *testing.T) {
	thought := strings.Replace(tokenEvent("hm"), `"content"`, `"reasoning_content"`, 1)
	h := newHarness(t, options{policy: Policy{Heartbeat: 50 * time.Millisecond}, handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeEvents(w, roleEvent)
		for range 100 {
			writeEvents(w, thought)
			time.Sleep(10 * time.Millisecond)
		}
		writeEvents(w, tokenEvent("a"), finishEvent("", "stop"), doneEvent)
	})})
	_, text := h.post("/v1/messages")
	_, text, _ = strings.Cut(text, "event: message_start")
	if beats := strings.Count(text, "\n: decode"); beats < 5 || !strings.Contains(text, "message_stop") {
		t.Errorf("%d heartbeats:\n%s", beats, text)
	}
}

// After the end marker a client gets no heartbeat while its engine keeps the response open. One
// that is a chunk would follow the end of the stream.
func TestS2_NoHeartbeatFollowsTheEnd(t *testing.T) {
	h := newHarness(t, options{policy: Policy{Heartbeat: 20 * time.Millisecond, EmptyChunks: true}, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeEvents(w, roleEvent, tokenEvent("a"), finishEvent("", "stop"), doneEvent)
		<-r.Context().Done() // after lingerTimeout
	})})
	if _, text := h.post("/v1/chat/completions"); !strings.HasSuffix(text, doneEvent) {
		t.Errorf("the stream does not end with its end marker: %s", text)
	}
}

// The same holds for a stream that has no end marker and ends with an event of its own, as those of
// the Responses API do.
func TestS2_NoHeartbeatFollowsTheLastEvent(t *testing.T) {
	const created = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"status\":\"in_progress\"}}\n\n"
	const completed = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"status\":\"completed\",\"output\":[]}}\n\n"
	h := newHarness(t, options{policy: Policy{Heartbeat: 20 * time.Millisecond}, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeEvents(w, created, completed)
		<-r.Context().Done() // after lingerTimeout
	})})
	if _, text := h.post("/v1/responses"); !strings.HasSuffix(text, completed) {
		t.Errorf("the stream does not end with its last event: %s", text)
	}
}

// Nor does a heartbeat follow an error that ends the stream, while a rule's service still thinks of
// the rest of the answer.
func TestS2_NoHeartbeatFollowsAnError(t *testing.T) {
	judge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(100 * time.Millisecond)
		io.WriteString(w, `{"action":"allow"}`)
	}))
	defer judge.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	h := newHarness(t, options{policy: Policy{Heartbeat: 20 * time.Millisecond}, handler: engineThatSends(roleEvent, tokenEvent("a"), errorEvent),
		rules: []Moderation{{Rule: moderation.Rule{Name: "r", Hook: &moderation.Hook{URL: judge.URL, Timeout: 10 * time.Second}}}}})
	if _, text := h.post("/v1/chat/completions"); !strings.HasSuffix(text, errorEvent) {
		t.Errorf("the stream does not end with its error: %s", text)
	}
}

// An engine may answer a request for speech or images with a whole answer although the client has
// asked for a stream. A heartbeat before such an answer would promise events. After the first
// event of the engine there are heartbeats.
func TestS2_HeartbeatsLeaveAudioAndImagesWhole(t *testing.T) {
	for name, c := range map[string]struct {
		endpoint        openai.Endpoint
		body, kind, say string
	}{
		"speech": {openai.Speech, `{"model":"m","input":"hi","voice":"a","stream":true}`, "audio/wav", "RIFFxxxxWAVE"},
		"images": {openai.Images, `{"model":"m","prompt":"hi","stream":true}`, "application/json", `{"created":1,"data":[{"b64_json":"x"}]}`},
	} {
		h := newHarness(t, options{handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("content-type", c.kind)
			io.WriteString(w, c.say) //nolint:errcheck // a test server
		})})
		response, text := h.foreseen(c.endpoint, c.body)
		if kind := response.Header.Get("content-type"); response.StatusCode != http.StatusOK || kind != c.kind || text != c.say {
			t.Errorf("%s: %d %s %q", name, response.StatusCode, kind, text)
		}
	}
	const event = "data: {\"type\":\"image_generation.partial_image\",\"b64_json\":\"x\"}\n\n"
	h := newHarness(t, options{policy: Policy{Heartbeat: 20 * time.Millisecond}, handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeEvents(w, event)
		time.Sleep(200 * time.Millisecond)
		writeEvents(w, event)
	})})
	response, text := h.foreseen(openai.Images, `{"model":"m","prompt":"hi","stream":true}`)
	_, between, _ := strings.Cut(text, event)
	if response.Header.Get("content-type") != "text/event-stream" || !strings.HasPrefix(text, event) || !strings.HasPrefix(between, ": ") || strings.Count(text, event) != 2 {
		t.Errorf("a stream of images: %q", text)
	}
}

// foreseen sends a request whose client was foreseen to wait, and reads the response to its end.
func (h *harness) foreseen(e openai.Endpoint, body string) (*http.Response, string) {
	h.t.Helper()
	scan, fault := openai.Scan(e, "application/json", []byte(body))
	if fault != nil {
		h.t.Fatal(fault)
	}
	request, err := http.NewRequestWithContext(h.t.Context(), http.MethodPost, h.url+e.Path(), strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	request.Header.Set("content-type", "application/json")
	request.Header.Set(headers.Handoff, h.relay.config.Handoff.Offer(&dispatch.Offer{Tenant: acme, Priority: admission.Default, Path: e.Path(), Scan: scan,
		Received: time.Now(), Record: h, Foreseen: true}))
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return response, string(text)
}
