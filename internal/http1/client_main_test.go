package http1

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of the tests, so that a test which fails ends.
const patience = testutil.Patience

// engine is a server that runs a script on each connection and then closes the connection.
type engine struct {
	net.Listener
	url string
	// taken counts the accepted connections, open those of them that are still open.
	taken, open atomic.Int64
}

func startEngine(t testing.TB, script func(c *net.TCPConn, in *bufio.Reader)) *engine {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{Listener: listener, url: "http://" + listener.Addr().String() + "/"}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			e.taken.Add(1)
			e.open.Add(1)
			all.Go(func() {
				defer e.open.Add(-1)
				defer c.Close()
				script(c.(*net.TCPConn), bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		all.Wait()
	})
	return e
}

// startAnswering starts an engine that answers every request with the same bytes. If closeAfter is
// true, the engine closes the connection after the first answer.
func startAnswering(t testing.TB, answer string, closeAfter bool) *engine {
	return startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
		for readBody(in) != "" {
			io.WriteString(c, answer)
			if closeAfter {
				return
			}
		}
	})
}

// readBody reads a request and returns ">" and the request's body. It returns "" if no request
// came.
func readBody(in *bufio.Reader) string {
	r, err := http.ReadRequest(in)
	if err != nil {
		return ""
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return ""
	}
	return ">" + string(body)
}

// post returns a POST request with the body, or a GET request if the body is empty.
func post(t testing.TB, url, body string) *http.Request {
	t.Helper()
	return postIn(t.Context(), t, url, body)
}

// postIn is post with a context.
func postIn(ctx context.Context, t testing.TB, url, body string) *http.Request {
	t.Helper()
	method, from := http.MethodPost, io.Reader(strings.NewReader(body))
	if body == "" {
		method, from = http.MethodGet, nil
	}
	r, err := http.NewRequestWithContext(ctx, method, url, from)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fetch sends a request and reads the whole answer.
func fetch(by http.RoundTripper, r *http.Request) (*http.Response, string, error) {
	response, err := by.RoundTrip(r)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, string(body), err
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}

// transport returns a Transport whose idle connections are closed at the end of the test.
func transport(t testing.TB) *Transport {
	c := new(Transport)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// size counts the idle connections.
func (p *idlePool) size() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.idle {
		n += len(c)
	}
	return n
}
