package edge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// small is a configuration with one simulated replica. Each token takes 10 ms.
const small = `
models:
  - name: chat
    engine: sim
    task: text-generation
    admission: {max_per_replica: 4096}
    variables: {prefill_rate: 0, token_interval: 10ms, batch_slowdown: 0, max_num_seqs: 4096}
`

// startFlood keeps n connections open from each source, until the test ends.
func startFlood(t *testing.T, g *harness.Gateway, n int, sources ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for _, source := range sources {
		for range n {
			workers.Go(func() { keepConnection(ctx, g, source) })
		}
	}
	t.Cleanup(func() {
		cancel()
		workers.Wait()
	})
}

// keepConnection keeps a connection open from a source and sends no byte on it. It opens a new one
// for one that the gateway closes.
func keepConnection(ctx context.Context, g *harness.Gateway, source string) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: time.Second}
	for ctx.Err() == nil {
		c, err := dialer.DialContext(ctx, "tcp", strings.TrimPrefix(g.URL, "http://"))
		if err != nil {
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		_, _ = io.Copy(io.Discard, c) // until either side closes
		stop()
		_ = c.Close()
		// A thousand clients that try again at once would take the processors from the gateway and
		// from other tests, and would fill its connections no better.
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// ask makes one request with a client and returns its status.
func ask(client *http.Client, g *harness.Gateway) error {
	body := strings.NewReader(`{"model":"chat","messages":[{"role":"user","content":"Hello"}],"max_tokens":2}`)
	r, err := client.Post(g.URL+"/v1/chat/completions", "application/json", body)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", r.Status)
	}
	return nil
}

// keepAsking makes a request each second with a client until stop, which returns the error of one
// that failed. When connections are scarce, Envoy closes one that has had no request for 5 s.
func keepAsking(client *http.Client, g *harness.Gateway) (stop func() error) {
	over, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			select {
			case <-over:
				failed <- nil
				return
			case <-time.After(time.Second):
				err = ask(client, g)
			}
		}
		failed <- err
	}()
	return sync.OnceValue(func() error {
		close(over)
		return <-failed
	})
}

func newClient(t *testing.T) *http.Client {
	c := &http.Client{Transport: &http.Transport{}, Timeout: testutil.Patience}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// limited starts a gateway with 1,500 files.
func limited(t *testing.T, config string) *harness.Gateway {
	t.Helper()
	g := harness.Prepare(t, config)
	g.Files = 1500
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	return g
}

// survives checks that a flood does not keep other clients from the gateway.
func survives(t *testing.T, g *harness.Gateway, start func()) {
	t.Helper()
	connected := newClient(t)
	harness.Eventually(t, "a request before the flood", func() error { return ask(connected, g) })
	running := g.OpenStreams(5, 1000)
	stop := keepAsking(connected, g) // a connection without a request is closed when connections are scarce
	defer func() { _ = stop() }()
	start()
	if c := g.AwaitCondition(condition.ConnectionsNearLimit, ""); !strings.Contains(c.Message, "connections; 127.") {
		t.Errorf("the condition lacks its numbers: %+v", c)
	}
	if err := errors.Join(stop(), ask(connected, g)); err != nil {
		t.Errorf("a client that was connected before the flood: %v", err)
	}
	if err := g.TryGet("/readyz", new(struct{})); err != nil {
		t.Errorf("the gateway is not ready in the flood: %v", err)
	}
	for range 20 {
		harness.Eventually(t, "a new client is served in the flood", func() error {
			c := newClient(t)
			c.Timeout = 10 * time.Second // then it connects anew
			return ask(c, g)
		})
	}
	if !strings.Contains(g.EnvoyAdmin("/server_info"), "LIVE") {
		t.Error("Envoy's admin interface does not answer in the flood")
	}
	harness.FinishAnswers(t, g.Replicas())
	running.Wait() // they are whole, although Envoy's filters have changed meanwhile
	if text := g.AdminText("/metrics"); !strings.Contains(text, `sluice_budget_limit{budget="connections"} 437`) {
		t.Error("the metrics do not tell how many connections there may be")
	}
}

func TestE2E_B10_X1_FloodFromOneSource(t *testing.T) {
	t.Parallel()
	g := limited(t, small)
	survives(t, g, func() { startFlood(t, g, 1700, "127.0.0.2") })
	harness.Eventually(t, "the flood is refused", func() error {
		if text := g.AdminText("/metrics"); strings.Contains(text, `sluice_budget_refused_total{budget="connections"} 0`) {
			return fmt.Errorf("no connection was refused")
		}
		return nil
	})
}

func TestE2E_X1_FloodFromSeveralSources(t *testing.T) {
	t.Parallel()
	g := limited(t, small)
	survives(t, g, func() {
		startFlood(t, g, 170, "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6", "127.0.0.7", "127.0.0.8", "127.0.0.9")
	})
}

// TestE2E_X1_IdleConnectionIsClosed checks that a connection without a byte, and one with half a
// line, are closed, and that a connection which has had a request stays.
func TestE2E_X1_IdleConnectionIsClosed(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "connections: {first_request: 1s}\n"+small)
	address := strings.TrimPrefix(g.URL, "http://")
	var used net.Conn
	harness.Eventually(t, "a connection has had a request", func() (err error) { // not one that was closed before its request came
		if used, err = net.Dial("tcp", address); err == nil {
			err = listModels(used)
		}
		return err
	})
	defer used.Close()
	for _, text := range []string{"", "POST /v1/ch"} {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(testutil.Patience))
		if n, err := c.Read(make([]byte, 1)); n != 0 || isTimeout(err) {
			t.Errorf("a connection that sent %q: %d bytes, %v", text, n, err)
		}
	}
	if err := listModels(used); err != nil {
		t.Errorf("a connection that has had a request was closed: %v", err)
	}
}

// listModels asks for the list of models on a connection and reads the whole answer.
func listModels(c net.Conn) error {
	_ = c.SetReadDeadline(time.Now().Add(testutil.Patience))
	if _, err := io.WriteString(c, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, a.Body)
	return err
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}

// TestE2E_X1_IdleTimeShrinks: connections that have had requests are closed soon when nearly all
// connections are in use. The limit of the file is in force.
func TestE2E_X1_IdleTimeShrinks(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "connections: {max: 20}\n"+small)
	if err := wantMetric(g, `sluice_budget_limit{budget="connections"} 20`); err != nil {
		t.Error(err)
	}
	var idle []net.Conn
	for range 17 {
		c, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	for _, c := range idle {
		_ = c.SetReadDeadline(time.Now().Add(testutil.Patience))
		if _, err := io.Copy(io.Discard, c); isTimeout(err) {
			t.Error("a connection stays open, although connections are scarce")
		}
	}
	harness.Eventually(t, "a request afterwards", func() error { return ask(newClient(t), g) })
}
