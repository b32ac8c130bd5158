package relay

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/http1"
)

// recordedEngine is an engine without a network. Its answer is there at once, a few events at a
// time.
type recordedEngine struct{ answer []byte }

func (e recordedEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	io.Copy(io.Discard, r.Body)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, ContentLength: -1,
		Body: io.NopCloser(&smallReads{bytes.NewReader(e.answer)})}, nil
}

// CloseIdleConnections implements http1.Client.
func (recordedEngine) CloseIdleConnections() {}

// smallReads reads a little at a time, as events come from an engine.
type smallReads struct{ from *bytes.Reader }

func (s *smallReads) Read(b []byte) (int, error) { return s.from.Read(b[:min(len(b), 180)]) }

type discardResponse struct{ header http.Header }

func (n discardResponse) Header() http.Header         { return n.header }
func (n discardResponse) Write(b []byte) (int, error) { return len(b), nil }
func (n discardResponse) WriteHeader(int)             {}
func (n discardResponse) Flush()                      {}

// BenchmarkRelay measures an event from an engine's bytes to a client's, without their sockets. An
// operation is a stream of 10,000 events.
func BenchmarkRelay(b *testing.B) {
	for name, id := range map[string]string{"plain": "", "named": "r"} {
		b.Run(name, func(b *testing.B) {
			const events = 10_000
			answer := []byte(roleEvent + strings.Repeat(tokenEvent("word "), events) + finishEvent("", "stop") + doneEvent)
			t := newHarness(b, options{policy: Policy{GRPC: true}, handler: http.NotFoundHandler()})
			t.relay.config.Workers = func(*tls.Config) http1.Client { return recordedEngine{answer} }
			b.ReportAllocs()
			for b.Loop() {
				t.sendWithoutSocket(id)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/events, "ns/event")
		})
	}
}

// sendWithoutSocket sends hello to the relay without a socket.
func (b *harness) sendWithoutSocket(id string) {
	request := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(hello))
	request.Header.Set("x-sluice-ticket", b.offer(hello, id, "/v1/chat/completions"))
	b.relay.Handler().ServeHTTP(discardResponse{http.Header{}}, request)
}
