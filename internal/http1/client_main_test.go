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
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what is waited for, so that a failure ends.
const patience = 20 * time.Second

// engine is a server that does what its script says with each connection, and closes it then.
type engine struct {
	net.Listener
	url string
	// taken and open count connections.
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

// says is an engine that answers each request of a connection with the same bytes, and closes it
// then if it is told to.
func startAnswering(t testing.TB, answer string, then bool) *engine {
	return startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
		for readBody(in) != "" {
			io.WriteString(c, answer)
			if then {
				return
			}
		}
	})
}

// take reads a request. It returns its body with one byte in front, or nothing if there was none.
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

// post makes a request; without a body it is a GET.
func post(t testing.TB, url, body string) *http.Request {
	t.Helper()
	return postIn(t.Context(), t, url, body)
}

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

// ask makes a request and reads the whole answer.
func fetch(by http.RoundTripper, r *http.Request) (*http.Response, string, error) {
	response, err := by.RoundTrip(r)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, string(body), err
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("still not so: " + what)
		}
	}
}

// transport is one that leaves nothing behind.
func transport(t testing.TB) *Transport {
	c := new(Transport)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func (p *idlePool) waiting() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.idle {
		n += len(c)
	}
	return n
}
