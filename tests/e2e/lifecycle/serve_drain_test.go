package lifecycle

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A gateway beside an Envoy of someone else is told to stop. It lets its streams of all kinds go on
// to their end, and then ends at once.
func TestE2E_E4_ServeLetsStreamsEnd(t *testing.T) {
	t.Parallel()
	g := serveBeside(t, "drain_timeout: 10m"+upgradeModels)
	l := &load{Gateway: g, tokens: 200, texts: map[string]string{}}
	startStreams(l)
	l.begun.Wait()
	g.Signal(syscall.SIGTERM)
	l.running.Wait()
	g.AwaitExit()
}

// serveHeld starts a gateway beside an Envoy. A server of the test has its model m, and ends each
// stream when release is closed.
func serveHeld(t *testing.T, drainTimeout string) (g *harness.Gateway, release chan struct{}) {
	t.Helper()
	release = make(chan struct{})
	up := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}`, "\n\n")
		w.(http.Flusher).Flush()
		select {
		case <-release:
			fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, "\n\ndata: [DONE]\n\n")
		case <-r.Context().Done():
		}
	})
	return serveBeside(t, fmt.Sprintf(`drain_timeout: %s
models: [{name: m, launcher: upstream, upstreams: [%s], stream: {mode: managed}}]
`, drainTimeout, up)), release
}

// heldStream starts a stream of the model m and returns its response.
func heldStream(g *harness.Gateway) *http.Response {
	g.T.Helper()
	r, err := g.Open(g.T.Context(), harness.ChatPath, harness.ChatBody("m", true, 5, "held"))
	if err != nil {
		g.T.Fatal(err)
	}
	g.T.Cleanup(func() { r.Body.Close() })
	return r
}

// The gateway also waits for the streams of an earlier process that is not the one which the
// supervisor started. The supervisor would end these streams with the gateway.
func TestE2E_E4_X20_ServeWaitsForStreamsOfAllProcesses(t *testing.T) {
	t.Parallel()
	g, release := serveHeld(t, "10m")
	restart(g)
	r := heldStream(g)
	restart(g)
	g.Signal(syscall.SIGTERM)
	select {
	case <-g.Exited:
		t.Error("the gateway has stopped while a stream runs")
	case <-time.After(2 * time.Second):
	}
	close(release)
	if text, err := io.ReadAll(r.Body); err != nil || harness.CheckWholeStream(text) != nil {
		t.Errorf("the stream: %v %s", err, text)
	}
	g.AwaitExit()
}

func startStreams(l *load) {
	l.run("native stream", 1, func(_ int, begun func()) (string, error) { return l.stream("chat", "", begun) })
	l.run("managed stream", 1, func(_ int, begun func()) (string, error) { return l.stream("managed", "", begun) })
	l.run("WebSocket", 1, func(_ int, begun func()) (string, error) { return l.turn(l.Realtime(""), begun) })
	l.run("gRPC call", 1, func(_ int, begun func()) (string, error) { return l.call(begun) })
}

// A stream that does not end in time ends with an error event.
func TestE2E_E4_ServeEndsStreamsThatAreLate(t *testing.T) {
	t.Parallel()
	g, _ := serveHeld(t, "2s")
	r := heldStream(g)
	began := time.Now()
	g.Signal(syscall.SIGTERM)
	events, err := harness.ReadEvents(r.Body)
	if took := time.Since(began); took < time.Second {
		t.Errorf("the stream was cut after %v", took)
	}
	if n := len(events); err != nil || n == 0 || !strings.Contains(events[n-1].Data, "stopping") {
		t.Errorf("%d events, %v; the last: %+v", n, err, events[max(0, n-1):])
	}
	g.AwaitExit()
}

// A second signal does not wait for a stream.
func TestE2E_E4_ASecondSignalEndsServeAtOnce(t *testing.T) {
	t.Parallel()
	g, _ := serveHeld(t, "10m")
	heldStream(g)
	g.Signal(syscall.SIGTERM)
	g.AwaitLogged("drain started", 1)
	signalAgain(g)
	g.AwaitExit()
}
