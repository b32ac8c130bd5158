package xds

import (
	"bufio"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/testutil/answers"
)

// observations is Sluice's end of the observer's exchanges. It ends each exchange after the first
// message, unless it hangs.
type observations struct {
	mu sync.Mutex
	// first are the messages by request id. Guarded by mu.
	first map[string]*extproc.ProcessingRequest
	// hang means that it reads nothing more and ends no exchange. Guarded by mu.
	hang bool
}

func (o *observations) take(stream extproc.ExternalProcessor_ProcessServer) error {
	in, err := stream.Recv()
	if err != nil {
		return err
	}
	if o.keep(in) {
		<-stream.Context().Done()
	}
	return nil
}

func (o *observations) keep(in *extproc.ProcessingRequest) (hang bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.first == nil {
		o.first = map[string]*extproc.ProcessingRequest{}
	}
	id := in.GetAttributes()[extProcName].GetFields()[headers.AttributeRequestID].GetStringValue()
	o.first[id] = in
	return o.hang
}

// of waits for the first message about a request.
func (o *observations) of(t *testing.T, requestID string) *extproc.ProcessingRequest {
	t.Helper()
	var in *extproc.ProcessingRequest
	eventually(t, "the request was observed", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		in = o.first[requestID]
		return in != nil
	})
	return in
}

func (o *observations) letHang() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hang = true
}

// steps is an engine whose response continues when the test says so.
type steps struct {
	next chan string
	gone chan struct{}
}

func (s *steps) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer close(s.gone)
	io.Copy(io.Discard, r.Body) //nolint:errcheck // a test
	w.Header().Set("Content-Type", answers.SSE)
	w.(http.Flusher).Flush()
	for {
		select {
		case text, more := <-s.next:
			if !more {
				return
			}
			io.WriteString(w, text) //nolint:errcheck // the client sees
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// observedStream is a running response whose headers were read.
type observedStream struct {
	*steps
	*http.Response
	lines *bufio.Scanner
	id    string
}

func (g *gateway) observe(t *testing.T, model string) *observedStream {
	t.Helper()
	s := &steps{next: make(chan string), gone: make(chan struct{})}
	g.settle(t, model, replica(model+"-0", serve(t, s.ServeHTTP)))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.addr+chatPath, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"x-test-cluster": "model/" + model, "x-test-stream": "1", "x-test-observe": "1"} {
		request.Header.Set(name, value)
	}
	response, err := g.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return &observedStream{s, response, bufio.NewScanner(response.Body), response.Header.Get(headers.RequestID)}
}

func (s *observedStream) expect(t *testing.T, line string) {
	t.Helper()
	if !s.lines.Scan() || s.lines.Text() != line {
		t.Fatalf("read %q (%v), want %q", s.lines.Text(), s.lines.Err(), line)
	}
}

// observer reads one of the counters of the observer's filter.
func (g *gateway) observer(t *testing.T, counter string) string {
	return g.stat(t, "http.sluice.ext_proc.observer."+counter)
}

// Envoy reports the first bytes of a response once, and nothing after them.
func TestObserver(t *testing.T) {
	t.Parallel()
	g := newGateway(t, Config{Listen: "127.0.0.1:0"}, nil)
	a := newEngine(t, "a")
	g.settle(t, "plain", replica("plain-0", a))
	g.chat(t, "plain", a.String(), "x-test-usage", "1").saw(t)
	g.do(t, "GET", "/v1/models", nil, "Authorization", "k")
	if got := g.observer(t, "streams_started"); got != "0" {
		t.Errorf("%s exchanges for requests that nobody wanted observed", got)
	}

	s := g.observe(t, "watched")
	if got := g.observer(t, "streams_started"); got != "0" {
		t.Errorf("%s exchanges before there is a byte", got)
	}
	s.next <- "data: 0\n"
	in := g.observed.of(t, s.id)
	if !in.GetObservabilityMode() || string(in.GetResponseBody().GetBody()) != "data: 0\n" {
		t.Errorf("the observer reported %v", in)
	}
	s.expect(t, "data: 0")
	eventually(t, "the exchange has ended", func() bool { return g.observer(t, "streams_closed") == "1" })
	for range 20 {
		s.next <- "data: 1\n"
		s.expect(t, "data: 1")
	}
	close(s.next)
	if s.lines.Scan() || s.lines.Err() != nil {
		t.Errorf("the stream ended with %q, %v", s.lines.Text(), s.lines.Err())
	}
	if got := g.observer(t, "stream_msgs_sent"); got != "1" {
		t.Errorf("%s messages", got)
	}
	if id := g.log.wait(t, s.id).GetCommonProperties().GetResponseFlags(); id != nil {
		t.Errorf("flags %v", id)
	}
}

// A client that disconnects before the first token causes no exchange and ends the engine's work.
func TestObserverAbort(t *testing.T) {
	t.Parallel()
	g := newGateway(t, Config{Listen: "127.0.0.1:0"}, nil)
	early := g.observe(t, "early")
	early.Body.Close()
	<-early.gone
	g.log.wait(t, early.id)
	if got := g.observer(t, "streams_started"); got != "0" {
		t.Errorf("%s exchanges", got)
	}
	late := g.observe(t, "late")
	late.next <- "data: 0\n"
	late.expect(t, "data: 0")
	g.observed.of(t, late.id)
	// Envoy does not count the end of an exchange of which it hears after the client has left.
	eventually(t, "the exchange has ended", func() bool { return g.observer(t, "streams_closed") == "1" })
	late.Body.Close()
	<-late.gone
}

// No response waits for an observer, its exchange ends soon after the response, and its death cuts
// nothing.
func TestObserverHangs(t *testing.T) {
	t.Parallel()
	g := newGateway(t, Config{Listen: "127.0.0.1:0"}, nil)
	g.observed.letHang()
	for i, model := range []string{"hung", "dying"} {
		s := g.observe(t, model)
		s.next <- "data: 0\n"
		s.expect(t, "data: 0")
		g.observed.of(t, s.id)
		for range 200 {
			s.next <- "data: 1\n"
			s.expect(t, "data: 1")
		}
		if model == "dying" {
			g.stop()
			for range 200 {
				s.next <- "data: 2\n"
				s.expect(t, "data: 2")
			}
		}
		close(s.next)
		if s.lines.Scan() || s.lines.Err() != nil {
			t.Errorf("%s: the stream ended with %q, %v", model, s.lines.Text(), s.lines.Err())
		}
		eventually(t, "the exchange has ended", func() bool { return g.observer(t, "streams_closed") == strconv.Itoa(i+1) })
	}
}
