package http1

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// FuzzTransport holds what Transport makes of an engine's bytes against what net/http makes of
// them.
func FuzzTransport(f *testing.F) {
	for _, a := range answers {
		if len(a.answer) < 10_000 {
			f.Add([]byte(a.answer), false)
			f.Add([]byte(a.answer), true)
		}
	}
	engine := newReplayEngine(f)
	theirs := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	f.Fuzz(func(t *testing.T, answer []byte, head bool) {
		if len(answer) > 1<<16 || knownDifference(answer) {
			t.Skip()
		}
		ours := transport(t)
		url := engine.play(answer)
		ask := func(by http.RoundTripper) outcome {
			r := postIn(t.Context(), t, url, "")
			if head {
				r.Method = http.MethodHead
			}
			what := outcomeOf(fetch(by, r))
			if what.Fault != "" {
				what.Fault = "any" // the two may name a fault differently
				what.Body = ""     // and may have read differently far
			}
			what.Close = false // net/http is told to close the connection
			return what
		}
		if want, got := ask(theirs), ask(ours); !cmp.Equal(want, got) {
			t.Errorf("%q: net/http - and ours +\n%s", answer, cmp.Diff(want, got))
		}
	})
}

// knownDifference says whether the two are known, and meant, to differ. Transport does not speak
// the protocol that a 101 switches to, counts 1xx responses differently, and bounds trailers and
// chunk headers.
func knownDifference(answer []byte) bool {
	return bytes.Contains(answer, []byte(" 1")) || bytes.Contains(bytes.ToLower(answer), []byte("trailer")) ||
		bytes.Count(answer, []byte("\n")) > 100
}

// replayEngine is a server that answers each request with the bytes that play was called with.
type replayEngine struct {
	url    string
	mu     sync.Mutex
	answer []byte
}

func newReplayEngine(f *testing.F) *replayEngine {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	e := &replayEngine{url: "http://" + l.Addr().String() + "/"}
	f.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go e.serve(c.(*net.TCPConn))
		}
	}()
	return e
}

func (e *replayEngine) serve(c *net.TCPConn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
		return
	}
	e.mu.Lock()
	answer := e.answer
	e.mu.Unlock()
	c.Write(answer)
	c.CloseWrite()
	io.Copy(io.Discard, c) // until the client closes: a reset could take the answer away
}

func (e *replayEngine) play(answer []byte) (url string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
	return e.url
}

// FuzzServer holds what Server makes of a client's bytes against what net/http makes of them: which
// requests the handler sees, and what the client gets.
func FuzzServer(f *testing.F) {
	for _, request := range []string{
		"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
		"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET /second HTTP/1.1\r\nhost: x\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "PUT / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nA B: c\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na",
		"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
	} {
		f.Add([]byte(request))
	}
	f.Fuzz(func(t *testing.T, request []byte) {
		if len(request) > 1<<14 || bytes.Contains(request, []byte("HEAD")) {
			t.Skip() // responses cannot be told apart without knowing which of them answers a HEAD
		}
		want, got := sendRaw(t, request, false), sendRaw(t, request, true)
		if !want.startsWith(got) {
			t.Errorf("%q\nnet/http: %q\nours:     %q", request, want, got)
		}
	})
}

// exchanged is what happened on one connection.
type exchanged struct {
	// requests are those that the handler saw, responses those that the client got.
	requests, responses []string
}

// startsWith says whether the shorter exchange is the beginning of this one. Server may end a
// connection earlier than net/http does: after a request that it has handed over. But it must
// answer something if net/http does.
func (e exchanged) startsWith(shorter exchanged) bool {
	isPrefix := func(all, part []string) bool { return len(part) <= len(all) && slices.Equal(all[:len(part)], part) }
	return isPrefix(e.requests, shorter.requests) && isPrefix(e.responses, shorter.responses) &&
		(len(shorter.responses) > 0) == (len(e.responses) > 0)
}

// sendRaw sends the bytes to a server.
func sendRaw(t *testing.T, request []byte, ours bool) (result exchanged) {
	var mu sync.Mutex
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		mu.Lock()
		result.requests = append(result.requests,
			fmt.Sprintf("%s %s %s %v %q %t", r.Method, r.RequestURI, r.Host, r.Header, body, err == nil))
		mu.Unlock()
		w.Header()["Content-Type"] = nil
		w.Header()["Date"] = nil
		fmt.Fprintf(w, "%s %d", r.Method, len(body))
	})
	client, server := socketPair(t)
	l := &oneConn{conns: make(chan net.Conn, 1), done: make(chan struct{})}
	l.conns <- server
	stopped := make(chan struct{})
	var stop func() error
	if ours {
		s := &Server{Handler: handler, Other: &http.Server{Handler: handler}}
		stop = s.Close
		go func() { s.Serve(l); close(stopped) }()
	} else {
		s := &http.Server{Handler: handler}
		stop = s.Close
		go func() { s.Serve(l); close(stopped) }()
	}
	client.SetDeadline(time.Now().Add(patience))
	client.Write(request)
	client.CloseWrite()
	got := responses(client)
	client.Close()
	stop()
	<-stopped
	mu.Lock()
	defer mu.Unlock()
	// Whether the mere beginning of a request is answered, when the connection ends in it, depends
	// on how the bytes were read.
	if last := len(got) - 1; last > 0 && strings.HasPrefix(got[last], "400") {
		got = got[:last]
	}
	result.responses = got
	return result
}

// responses reads the status and the body of all responses on a connection.
func responses(c net.Conn) (all []string) {
	for in := bufio.NewReader(c); ; {
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			return all
		}
		body, err := io.ReadAll(r.Body)
		if r.StatusCode >= 400 {
			body = nil // the two may word a refusal differently
		}
		all = append(all, fmt.Sprintf("%d %q %t", r.StatusCode, body, err == nil))
	}
}

// socketPair returns the two ends of a connection over a unix socket.
func socketPair(t *testing.T) (client, server *net.UnixConn) {
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn), (<-accepted).(*net.UnixConn)
}

// oneConn is a listener that accepts one connection.
type oneConn struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *oneConn) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "test", Net: "unix"} }
