package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// shutting tells whether it was closed.
type shutting struct {
	io.ReadCloser
	shut atomic.Bool
}

func (s *shutting) Close() error {
	s.shut.Store(true)
	if s.ReadCloser == nil {
		return nil
	}
	return s.ReadCloser.Close()
}

type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, errors.New("broken") }

// TestEarlyAnswers come before the request's body was read, and the rest of it never is.
func TestEarlyAnswers(t *testing.T) {
	const refused = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig"
	for name, then := range map[string]func(in *bufio.Reader){
		"closed": func(*bufio.Reader) {},
		"held":   func(in *bufio.Reader) { eventually(t, "the client has left", func() bool { return brokenBy(in) }) },
	} {
		for _, size := range []int{10, 60 << 10, 100 << 10, 16 << 20} {
			e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
				in.ReadString('\n')
				io.WriteString(c, refused)
				then(in)
			})
			c := transport(t)
			r := post(t, e.url, strings.Repeat("a", size))
			body := &shutting{ReadCloser: r.Body}
			r.Body = body
			response, err := c.RoundTrip(r)
			if err != nil {
				t.Errorf("%s, %d: %v", name, size, err)
				continue
			}
			all, err := io.ReadAll(response.Body)
			if response.StatusCode != 413 || err != nil || string(all) != "big" {
				t.Errorf("%s, %d: %q, %v", name, size, all, err)
			}
			if name == "held" && size > 1<<20 && c.pool.waiting() != 0 {
				t.Errorf("%s, %d: the connection waits for another request", name, size)
			}
			eventually(t, "the body is let go", body.shut.Load)
			c.CloseIdleConnections()
			eventually(t, "the connection is closed", func() bool { return e.open.Load() == 0 })
		}
	}
}

// brokenBy reads nothing, until the other end has left: what waits in the socket is then followed
// by an end.
func brokenBy(in *bufio.Reader) bool {
	_, err := in.Discard(1 << 16)
	return err != nil
}

// TestLargeBodies arrive whole, and their connection is good for another one, or is closed.
func TestLargeBodies(t *testing.T) {
	e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
		for body := readBody(in); body != ""; body = readBody(in) {
			if body[1:] != strings.Repeat("a", len(body)-1) {
				t.Error("the body is another")
			}
			io.WriteString(c, fine)
		}
	})
	c := transport(t)
	for _, size := range []int{smallBody - 1, smallBody, smallBody + 1, syncBody, syncBody + 1, 8 << 20} {
		for _, plain := range []bool{true, false} {
			r := post(t, e.url, strings.Repeat("a", size))
			if !plain { // without io.WriterTo
				r.Body = io.NopCloser(io.MultiReader(r.Body))
			}
			if _, body, err := fetch(c, r); err != nil || body != "ok" {
				t.Errorf("%d: %q, %v", size, body, err)
			}
		}
	}
}

// deaf is a connection on which an answer waits, and that takes no more.
type deaf struct {
	net.Conn
	io.Reader
}

func (d deaf) Read(p []byte) (int, error) { return d.Reader.Read(p) }
func (deaf) Write([]byte) (int, error)    { return 0, syscall.EPIPE }
func (deaf) Close() error                 { return nil }

// TestAnswerBehindABrokenPipe is what counts, if there is one.
func TestAnswerBehindABrokenPipe(t *testing.T) {
	for _, size := range []int{2, 30 << 10, 1 << 20} {
		for _, answer := range []string{fine, ""} {
			in := deaf{Reader: strings.NewReader(answer)}
			response, err := transport(t).roundTripOn(post(t, "http://engine/", strings.Repeat("a", size)), &clientConn{stream: in, tcp: in})
			switch {
			case answer == "" && (errors.Is(err, syscall.EPIPE) || size > syncBody && errors.Is(err, io.EOF)):
			case answer == "" || err != nil || response.StatusCode != http.StatusOK:
				t.Errorf("%d: %v, %v", size, response, err)
			default:
				if _, err := io.ReadAll(response.Body); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// stages are the points at which an engine stalls.
var stages = []struct {
	name, said string
	body       int
	deaf       bool // it does not read
}{
	{name: "no answer"},
	{name: "no answer to a body", body: 10},
	{name: "a body that is not read", body: 16 << 20, deaf: true},
	{name: "within the head", said: "HTTP/1.1 200 OK\r\nContent-"},
	{name: "after hints", said: "HTTP/1.1 103 Early Hints\r\n\r\n"},
	{name: "before the body", said: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"},
	{name: "within the body", said: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"},
	{name: "within a chunk", said: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"},
	{name: "to its end", said: "HTTP/1.1 200 OK\r\n\r\nabc"},
	{name: "early, with a body that is not read", said: "HTTP/1.1 200 OK\r\n\r\nabc", body: 16 << 20, deaf: true},
}

// TestContextEnds at each stage, on fresh connections and on used ones.
func TestContextEnds(t *testing.T) {
	why := errors.New("enough")
	for _, stage := range stages {
		for _, used := range []bool{false, true} {
			t.Run(stage.name, func(t *testing.T) {
				there := make(chan struct{}, 1)
				e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
					if used {
						readBody(in)
						io.WriteString(c, fine)
					}
					if !stage.deaf {
						readBody(in)
					} else if _, err := in.ReadString('\n'); err != nil {
						return
					}
					io.WriteString(c, stage.said)
					there <- struct{}{}
					eventually(t, "the client has left", func() bool { return brokenBy(in) })
				})
				c := transport(t)
				if used {
					fetch(c, post(t, e.url, ""))
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				go func() {
					<-there
					cancel(why)
				}()
				_, body, err := fetch(c, postIn(ctx, t, e.url, strings.Repeat("a", stage.body)))
				if !errors.Is(err, why) {
					t.Errorf("%q, %v", body, err)
				}
				if n := e.taken.Load(); n != 1 || c.pool.waiting() != 0 {
					t.Errorf("%d connections, %d wait", n, c.pool.waiting())
				}
				eventually(t, "the connection is closed", func() bool { return e.open.Load() == 0 })
			})
		}
	}
}

func TestContextEndsWhileConnecting(t *testing.T) {
	mute := startEngine(t, func(_ *net.TCPConn, in *bufio.Reader) { io.Copy(io.Discard, in) })
	why := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
	defer cancel()
	c := transport(t)
	if _, err := c.RoundTrip(postIn(ctx, t, strings.Replace(mute.url, "http", "https", 1), "{}")); !errors.Is(err, why) {
		t.Error(err)
	}
	var op *net.OpError
	if _, err := c.RoundTrip(postIn(ctx, t, mute.url, "{}")); !errors.Is(err, why) || errors.As(err, &op) {
		t.Error(err)
	}
	if n := mute.taken.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestContextEndsWithTheResponse has both happen at once. No connection is used again that was
// broken off, and none is lost.
func TestContextEndsWithTheResponse(t *testing.T) {
	e := startAnswering(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", false)
	c := transport(t)
	why := errors.New("enough")
	for range 500 {
		ctx, cancel := context.WithCancelCause(t.Context())
		response, err := c.RoundTrip(postIn(ctx, t, e.url, "{}"))
		if err != nil {
			t.Fatal(err)
		}
		go cancel(why)
		if _, err := io.ReadAll(response.Body); err != nil && !errors.Is(err, why) {
			t.Fatal(err)
		}
		<-ctx.Done()
		if n := c.pool.waiting(); n > 1 {
			t.Fatalf("%d wait", n)
		}
	}
	eventually(t, "only what waits is open", func() bool { return e.open.Load() == int64(c.pool.waiting()) })
}

func TestContextEndsUnderTLS(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			io.WriteString(w, "data: x\n\n")
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done() // the body was read, or there was none
	}))
	defer server.Close()
	c := transport(t)
	c.TLS = server.Client().Transport.(*http.Transport).TLSClientConfig
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errors.New("enough"))
	defer cancel()
	var all sync.WaitGroup
	for _, path := range []string{"/stream", "/nothing"} {
		all.Go(func() {
			if _, body, err := fetch(c, postIn(ctx, t, server.URL+path, "")); err == nil || err.Error() != "enough" {
				t.Errorf("%s: %q, %v", path, body, err)
			}
		})
	}
	all.Wait()
}

func TestClose(t *testing.T) {
	e := startAnswering(t, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", false)
	c := transport(t)
	response, err := c.RoundTrip(post(t, e.url, "{}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(response.Body, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { response.Body.Close() })
	}
	if n, err := response.Body.Read(make([]byte, 10)); n != 0 || !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Error(n, err)
	}
	all.Wait()
	if n, err := response.Body.Read(make([]byte, 10)); n != 0 || !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Error(n, err)
	}
	eventually(t, "the connection is closed", func() bool { return e.open.Load() == 0 })
}

// TestCloseWithTheEnd closes bodies while their last bytes are read: a connection waits once or is
// closed.
func TestCloseWithTheEnd(t *testing.T) {
	e := startAnswering(t, fine, false)
	c := transport(t)
	for range 500 {
		response, err := c.RoundTrip(post(t, e.url, "{}"))
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() { response.Body.Close() })
		_, err = io.ReadAll(response.Body)
		all.Wait()
		if err != nil && !errors.Is(err, http.ErrBodyReadAfterClose) {
			t.Fatal(err)
		}
		if n := c.pool.waiting(); n > 1 {
			t.Fatalf("%d wait", n)
		}
	}
	eventually(t, "only what waits is open", func() bool { return e.open.Load() == int64(c.pool.waiting()) })
}

// TestReadsAfterTheEnd tell how it was, and touch nothing.
func TestReadsAfterTheEnd(t *testing.T) {
	whole, cut := startAnswering(t, fine, false), startAnswering(t, fine[:len(fine)-1], true)
	c := transport(t)
	for e, want := range map[*engine]error{whole: io.EOF, cut: io.ErrUnexpectedEOF} {
		response, err := c.RoundTrip(post(t, e.url, "{}"))
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, response.Body)
		response.Body.(*roundTrip).abort() // a context that comes late
		fetch(c, post(t, whole.url, "{}"))
		for range 2 {
			if n, err := response.Body.Read(make([]byte, 10)); n != 0 || !errors.Is(err, want) {
				t.Error(n, err)
			}
		}
		response.Body.Close()
		if _, _, err := fetch(c, post(t, whole.url, "{}")); err != nil {
			t.Error(err)
		}
	}
	if n := whole.taken.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// watched counts who waits for its end.
type watched struct {
	context.Context
	watchers atomic.Int64
}

// AfterFunc is what package context asks for if it is there.
func (w *watched) AfterFunc(func()) (stop func() bool) {
	w.watchers.Add(1)
	return func() bool {
		w.watchers.Add(-1)
		return true
	}
}

// Value hides what package context would find instead.
func (w *watched) Value(any) any { return nil }

// TestContextIsLetGo of by whatever ends a response.
func TestContextIsLetGo(t *testing.T) {
	ctx := &watched{Context: t.Context()}
	c := transport(t)
	for _, test := range answers[:7] {
		fetch(c, postIn(ctx, t, startAnswering(t, test.answer, true).url, "{}"))
		fetch(c, postIn(ctx, t, startAnswering(t, test.answer[:len(test.answer)-3], true).url, "{}"))
		leave(t, c, postIn(ctx, t, startAnswering(t, test.answer, true).url, "{}"))
	}
	if n := ctx.watchers.Load(); n != 0 {
		t.Errorf("%d are left", n)
	}
}
