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

// closeRecorder is a body that records whether it was closed.
type closeRecorder struct {
	io.ReadCloser
	closed atomic.Bool
}

func (s *closeRecorder) Close() error {
	s.closed.Store(true)
	if s.ReadCloser == nil {
		return nil
	}
	return s.ReadCloser.Close()
}

// brokenBody is a body that cannot be read.
type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, errors.New("broken") }

// TestEarlyAnswers: an engine may answer before it has read the request's body. It never reads the
// rest of the body.
func TestEarlyAnswers(t *testing.T) {
	const refused = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig"
	for name, then := range map[string]func(in *bufio.Reader){
		"closed": func(*bufio.Reader) {},
		"held": func(in *bufio.Reader) {
			eventually(t, "the client has disconnected", func() bool { return peerClosed(in) })
		},
	} {
		for _, size := range []int{10, 60 << 10, 100 << 10, 16 << 20} {
			e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
				in.ReadString('\n')
				io.WriteString(c, refused)
				then(in)
			})
			c := transport(t)
			r := post(t, e.url, strings.Repeat("a", size))
			body := &closeRecorder{ReadCloser: r.Body}
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
			if name == "held" && size > 1<<20 && c.pool.size() != 0 {
				t.Errorf("%s, body of %d: the connection is idle, want closed", name, size)
			}
			eventually(t, "the body is closed", body.closed.Load)
			c.CloseIdleConnections()
			eventually(t, "the connection is closed", func() bool { return e.open.Load() == 0 })
		}
	}
}

// peerClosed reports whether the peer has closed the connection, by discarding bytes up to an
// error.
func peerClosed(in *bufio.Reader) bool {
	_, err := in.Discard(1 << 16)
	return err != nil
}

// TestLargeBodies: large request bodies arrive whole. Their connection serves the next request or
// is closed.
func TestLargeBodies(t *testing.T) {
	e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
		for body := readBody(in); body != ""; body = readBody(in) {
			if body[1:] != strings.Repeat("a", len(body)-1) {
				t.Errorf("a body of %d bytes differs from the body that was sent", len(body)-1)
			}
			io.WriteString(c, okAnswer)
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

// brokenPipe is a connection that has an answer to read and refuses every write.
type brokenPipe struct {
	net.Conn
	io.Reader
}

func (c brokenPipe) Read(p []byte) (int, error) { return c.Reader.Read(p) }
func (brokenPipe) Write([]byte) (int, error)    { return 0, syscall.EPIPE }
func (brokenPipe) Close() error                 { return nil }

// TestAnswerBehindABrokenPipe: when a write fails but the engine has answered, the caller gets the
// answer.
func TestAnswerBehindABrokenPipe(t *testing.T) {
	for _, size := range []int{2, 30 << 10, 1 << 20} {
		for _, answer := range []string{okAnswer, ""} {
			in := brokenPipe{Reader: strings.NewReader(answer)}
			response, err := transport(t).roundTripOn(post(t, "http://engine/", strings.Repeat("a", size)), &clientConn{stream: in, tcp: in, input: in, output: in})
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

// stages are the points at which an engine stalls: after it has written said. body is the length of
// the request's body. If ignoresBody is true, the engine does not read the body.
var stages = []struct {
	name, said  string
	body        int
	ignoresBody bool
}{
	{name: "no answer"},
	{name: "no answer to a body", body: 10},
	{name: "a body that is not read", body: 16 << 20, ignoresBody: true},
	{name: "within the head", said: "HTTP/1.1 200 OK\r\nContent-"},
	{name: "after hints", said: "HTTP/1.1 103 Early Hints\r\n\r\n"},
	{name: "before the body", said: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"},
	{name: "within the body", said: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"},
	{name: "within a chunk", said: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"},
	{name: "to its end", said: "HTTP/1.1 200 OK\r\n\r\nabc"},
	{name: "early, with a body that is not read", said: "HTTP/1.1 200 OK\r\n\r\nabc", body: 16 << 20, ignoresBody: true},
}

// TestContextEnds: when the context of a request ends, the request fails with the context's cause
// and the connection is closed. This holds at each stage, on new connections and on used ones.
func TestContextEnds(t *testing.T) {
	why := errors.New("enough")
	for _, stage := range stages {
		for _, used := range []bool{false, true} {
			t.Run(stage.name, func(t *testing.T) {
				there := make(chan struct{}, 1)
				e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
					if used {
						readBody(in)
						io.WriteString(c, okAnswer)
					}
					if !stage.ignoresBody {
						readBody(in)
					} else if _, err := in.ReadString('\n'); err != nil {
						return
					}
					io.WriteString(c, stage.said)
					there <- struct{}{}
					eventually(t, "the client has disconnected", func() bool { return peerClosed(in) })
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
				if n := e.taken.Load(); n != 1 || c.pool.size() != 0 {
					t.Errorf("the engine accepted %d connections and %d are idle, want 1 and 0", n, c.pool.size())
				}
				eventually(t, "the connection is closed", func() bool { return e.open.Load() == 0 })
			})
		}
	}
}

func TestContextEndsWhileConnecting(t *testing.T) {
	silent := startEngine(t, func(_ *net.TCPConn, in *bufio.Reader) { io.Copy(io.Discard, in) })
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for silent.taken.Load() == 0 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel(why)
	}()
	c := transport(t)
	if _, err := c.RoundTrip(postIn(ctx, t, strings.Replace(silent.url, "http", "https", 1), "{}")); !errors.Is(err, why) {
		t.Error(err)
	}
	var op *net.OpError
	if _, err := c.RoundTrip(postIn(ctx, t, silent.url, "{}")); !errors.Is(err, why) || errors.As(err, &op) {
		t.Error(err)
	}
	if n := silent.taken.Load(); n != 1 {
		t.Errorf("the engine accepted %d connections", n)
	}
}

// TestContextEndsWithTheResponse: the context ends at the moment at which the response ends. No
// aborted connection is used again, and no connection is leaked.
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
		if n := c.pool.size(); n > 1 {
			t.Fatalf("%d connections are idle, want 1 at most", n)
		}
	}
	eventually(t, "only idle connections are open", func() bool { return e.open.Load() == int64(c.pool.size()) })
}

func TestContextEndsUnderTLS(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			io.WriteString(w, "data: x\n\n")
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done() // the server notices the disconnect because the request has no unread body
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

// TestCloseWithTheEnd closes bodies while their last bytes are read. The connection is put into the
// pool once, or is closed.
func TestCloseWithTheEnd(t *testing.T) {
	e := startAnswering(t, okAnswer, false)
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
		if n := c.pool.size(); n > 1 {
			t.Fatalf("%d connections are idle, want 1 at most", n)
		}
	}
	eventually(t, "only idle connections are open", func() bool { return e.open.Load() == int64(c.pool.size()) })
}

// TestReadsAfterTheEnd: reads after the end of a body return the body's result again, and do not
// touch the connection, which may serve another request.
func TestReadsAfterTheEnd(t *testing.T) {
	whole, cut := startAnswering(t, okAnswer, false), startAnswering(t, okAnswer[:len(okAnswer)-1], true)
	c := transport(t)
	for e, want := range map[*engine]error{whole: io.EOF, cut: io.ErrUnexpectedEOF} {
		response, err := c.RoundTrip(post(t, e.url, "{}"))
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, response.Body)
		response.Body.(*roundTrip).abort() // as if the context ended after the response
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
		t.Errorf("the engine accepted %d connections", n)
	}
}

// watchedContext counts the functions that are registered for its end.
type watchedContext struct {
	context.Context
	watchers atomic.Int64
}

// AfterFunc implements the interface by which package context registers a function.
func (w *watchedContext) AfterFunc(func()) (stop func() bool) {
	w.watchers.Add(1)
	return func() bool {
		w.watchers.Add(-1)
		return true
	}
}

// Value hides the parent context from package context, which would register the function there.
func (w *watchedContext) Value(any) any { return nil }

// TestContextIsReleased: no function stays registered with the context, however a response ends.
func TestContextIsReleased(t *testing.T) {
	ctx := &watchedContext{Context: t.Context()}
	c := transport(t)
	for _, test := range answers[:7] {
		fetch(c, postIn(ctx, t, startAnswering(t, test.answer, true).url, "{}"))
		fetch(c, postIn(ctx, t, startAnswering(t, test.answer[:len(test.answer)-3], true).url, "{}"))
		readOneByte(t, c, postIn(ctx, t, startAnswering(t, test.answer, true).url, "{}"))
	}
	if n := ctx.watchers.Load(); n != 0 {
		t.Errorf("%d functions are still registered with the context, want 0", n)
	}
}
