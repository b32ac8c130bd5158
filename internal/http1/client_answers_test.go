package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// answers are answers of engines. again tells whether the connection can serve another request
// after the answer.
var answers = []struct {
	name, answer string
	again        bool
}{
	{"length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nX-A: 2\r\n\r\nhello", true},
	{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", true},
	{"trailers", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n1\r\na\r\n0\r\nX-T: 1\r\nX-U: 2\r\n\r\n", true},
	{"empty", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true},
	{"empty chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true},
	{"no content", "HTTP/1.1 204 No Content\r\n\r\n", true},
	{"not modified", "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", true},
	{"to its end", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n", false},
	{"nothing to its end", "HTTP/1.1 200 OK\r\n\r\n", false},
	{"said to close", "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno", false},
	{"1.0", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", false},
	{"1.0 kept", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", false},
	{"more than said", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n", false},
	{"stray after none", "HTTP/1.1 204 No Content\r\n\r\nstray", false},
	{"hints", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true},
	{"bare newlines", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", true},
	{"no reason", "HTTP/1.1 500\r\nContent-Length: 2\r\n\r\nno", true},
	{"length twice", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", true},
	{"lengths differ", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", false},
	{"both lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", true},
	{"long line", "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("a", 5000) + "\r\nContent-Length: 2\r\n\r\nok", true},
	{"large body", "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("b", 100_000), true},
	{"large chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n" + strings.Repeat("b", 100_000) + "\r\n0\r\n\r\n", true},
	{"no HTTP", "SSH-2.0-OpenSSH_9.6\r\n", false},
	{"no number", "HTTP/1.1 abc OK\r\n\r\n", false},
	{"no colon", "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", false},
	{"bad length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", false},
	{"unknown encoding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", false},
	{"bad chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n0\r\n\r\n", false},
	{"chunk without end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd0\r\n\r\n", false},
	{"cut length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", false},
	{"cut chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", false},
	{"nothing", "", false},
	{"only hints", strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 4), false},
}

// outcome is everything that a caller learns from a round trip.
type outcome struct {
	Status, Proto string
	Code          int
	Header        http.Header
	Length        int64
	Encoding      []string
	Close         bool
	Body, Fault   string
}

func outcomeOf(response *http.Response, body string, err error) (what outcome) {
	switch {
	case err == nil:
	case errors.Is(err, io.ErrUnexpectedEOF):
		what.Fault = "cut"
	case errors.Is(err, io.EOF):
		what.Fault = "end"
	default:
		what.Fault = "other"
	}
	if r := response; r != nil {
		what.Status, what.Proto, what.Code, what.Header = r.Status, r.Proto, r.StatusCode, r.Header
		what.Length, what.Encoding, what.Close, what.Body = r.ContentLength, r.TransferEncoding, r.Close, body
	}
	return what
}

// TestAnswersAreAsNetHTTPHasThem compares the outcome of every answer with that of http.Transport.
// It also counts the connections that two requests use.
func TestAnswersAreAsNetHTTPHasThem(t *testing.T) {
	for _, test := range answers {
		t.Run(test.name, func(t *testing.T) {
			e := startAnswering(t, test.answer, !test.again)
			theirs := &http.Transport{DisableCompression: true}
			defer theirs.CloseIdleConnections()
			ours := transport(t)
			want, got := outcomeOf(fetch(theirs, post(t, e.url, "{}"))), outcomeOf(fetch(ours, post(t, e.url, "{}")))
			if d := cmp.Diff(want, got); d != "" {
				t.Fatal(d)
			}
			if n := ours.pool.size(); n == 1 != test.again {
				t.Errorf("%d connections are idle, want 1 at most", n)
			}
			theirs.CloseIdleConnections()
			before := e.taken.Load()
			if got := outcomeOf(fetch(ours, post(t, e.url, "{}"))); !cmp.Equal(want, got) {
				t.Error(cmp.Diff(want, got))
			}
			if again := e.taken.Load() == before; again != test.again {
				t.Errorf("used again: %v", again)
			}
		})
	}
}

// TestCutAnywhere cuts answers off after each of their bytes. The caller gets the whole answer or
// an error.
func TestCutAnywhere(t *testing.T) {
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n7\r\ndefghij\r\n0\r\n\r\n"
	const length = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabcdefghij"
	for _, answer := range []string{chunked, length} {
		for cut := range len(answer) + 1 {
			e := startAnswering(t, answer[:cut], true)
			response, body, err := fetch(transport(t), post(t, e.url, "{}"))
			switch {
			case cut == len(answer):
				if err != nil || body != "abcdefghij" {
					t.Errorf("whole: %q, %v", body, err)
				}
			case cut == 0:
				if !errors.Is(err, io.EOF) {
					t.Errorf("nothing: %v", err)
				}
			case !errors.Is(err, io.ErrUnexpectedEOF), body != "abcdefghij"[:len(body)]:
				t.Errorf("cut at %d: %v, %q, %v", cut, response, body, err)
			}
			e.Close()
		}
	}
}

func TestSwitchingProtocols(t *testing.T) {
	gone := make(chan struct{})
	e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
		readBody(in)
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhello")
		in.ReadByte()
		close(gone)
	})
	response, err := transport(t).RoundTrip(post(t, e.url, "{}"))
	if err != nil || response.StatusCode != 101 || response.Body == http.NoBody {
		t.Fatal(response, err)
	}
	select {
	case <-gone:
		t.Error("closed before Close")
	default:
	}
	response.Body.Close()
	<-gone
}

func TestHeadsAreBounded(t *testing.T) {
	for name, answer := range map[string]string{
		"one header": "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
		"many":       "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Y: abcdefgh\r\n", 1<<17) + "\r\n",
		"no newline": strings.Repeat("a", 1<<21),
	} {
		e := startAnswering(t, answer, true)
		if _, _, err := fetch(transport(t), post(t, e.url, "{}")); !errors.Is(err, errHeaderTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	e := startAnswering(t, strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 6)+"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true)
	if _, _, err := fetch(transport(t), post(t, e.url, "{}")); !errors.Is(err, errInformational) {
		t.Error(err)
	}
	// The limit is for the head and not for the body.
	e = startAnswering(t, "HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n"+strings.Repeat("a", 50_000), true)
	small := &Transport{MaxHeaderBytes: 100}
	if _, body, err := fetch(small, post(t, e.url, "{}")); err != nil || len(body) != 50_000 {
		t.Error(len(body), err)
	}
}

// TestHead: the answer to a HEAD request has no body, even if it has a Content-Length.
func TestHead(t *testing.T) {
	e := startAnswering(t, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", false)
	c := transport(t)
	for range 2 {
		r := post(t, e.url, "")
		r.Method = http.MethodHead
		if response, body, err := fetch(c, r); err != nil || body != "" || response.ContentLength != 5 {
			t.Fatal(response, body, err)
		}
	}
	if n := e.taken.Load(); n != 1 {
		t.Errorf("the engine accepted %d connections", n)
	}
}

// TestRequestsAreAsNetHTTPWritesThem compares the bytes of requests with those that net/http
// writes, except for net/http's own User-Agent.
func TestRequestsAreAsNetHTTPWritesThem(t *testing.T) {
	for _, test := range []struct {
		method, url, host, body string
		header                  http.Header
		close                   bool
	}{
		{method: "POST", url: "http://127.0.0.1:80/v1/chat?x=%20&y=%C3%A4", body: "{}", header: http.Header{"B": {"2"}, "A": {" 1 ", "3"}, "None": {}}},
		{method: "GET", url: "http://[::1]:8000"},
		{method: "GET", url: "http://[fe80::1%25lo]:8000/a%2Fb/ä"},
		{method: "", url: "http://engine", header: http.Header{"User-Agent": {"x ", "y"}, "Host": {"not"}, "Content-Length": {"9"}}},
		{method: "POST", url: "http://engine.example/", host: "other.example:9", close: true},
		{method: "PUT", url: "http://engine/?", header: http.Header{"Connection": {"close"}}, close: true},
		{method: "DELETE", url: "http://bücher.example/x", host: "bücher.example"},
		{method: "POST", url: "http://engine/", host: "a\r\nX-Smuggled: 1", body: "{}"},
		{method: "PATCH", url: "http://engine/", host: "a/b", body: strings.Repeat("x", 20<<10)},
		{method: "OPTIONS", url: "http://engine/*", header: http.Header{"lower-case": {"1"}, "Transfer-Encoding": {"chunked"}}},
	} {
		r := &http.Request{Method: test.method, Host: test.host, Header: test.header, Close: test.close}
		var err error
		if r.URL, err = url.Parse(test.url); err != nil {
			t.Fatal(err)
		}
		if test.body != "" {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(test.body)), int64(len(test.body))
		}
		var got, want bytes.Buffer
		writeHead(&got, r)
		got.WriteString(test.body)
		if err := r.Write(&want); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(strings.Replace(want.String(), "User-Agent: Go-http-client/1.1\r\n", "", 1), got.String()); d != "" {
			t.Errorf("%s: %s", test.url, d)
		}
	}
}

// TestInvalidRequestsAreRefused: the transport refuses a request that it cannot write as valid
// HTTP/1.1. It then closes the request's body and the connection.
func TestInvalidRequestsAreRefused(t *testing.T) {
	e := startAnswering(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false)
	for name, change := range map[string]func(r *http.Request){
		"newline in a value":  func(r *http.Request) { r.Header.Set("x-a", "1\r\nX-B: 2") },
		"newline in a name":   func(r *http.Request) { r.Header["X-A: 1\r\nX-B"] = []string{"2"} },
		"newline in a method": func(r *http.Request) { r.Method = "GET / HTTP/1.1\r\nX: " },
		"newline in a path":   func(r *http.Request) { r.URL.Opaque = "/a\r\nX: 1" },
		"connect":             func(r *http.Request) { r.Method = http.MethodConnect },
		"scheme":              func(r *http.Request) { r.URL.Scheme = "ftp" },
		"no host":             func(r *http.Request) { r.URL.Host = "" },
		"no URL":              func(r *http.Request) { r.URL = nil },
		"no length":           func(r *http.Request) { r.ContentLength = -1 },
		"chunked":             func(r *http.Request) { r.TransferEncoding = []string{"chunked"} },
		"longer":              func(r *http.Request) { r.ContentLength = 1 },
		"longer than none":    func(r *http.Request) { r.ContentLength = 0 },
		"shorter":             func(r *http.Request) { r.ContentLength = 3 },
		"much shorter":        func(r *http.Request) { r.ContentLength = 30 << 10 },
		"longer than large": func(r *http.Request) {
			r.ContentLength = syncBody + 1
			r.Body = io.NopCloser(strings.NewReader(strings.Repeat("a", syncBody+2)))
		},
		"very much shorter": func(r *http.Request) { r.ContentLength = 1 << 20 },
		"broken":            func(r *http.Request) { r.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), brokenBody{})) },
	} {
		r := post(t, e.url, "{}")
		change(r)
		closing := &closeRecorder{ReadCloser: r.Body}
		r.Body = closing
		if response, _, err := fetch(transport(t), r); err == nil || closedByPeer(err) || errors.Is(err, net.ErrClosed) { // the transport and not the engine must refuse the request
			t.Errorf("%s: %v, %v", name, response, err)
		}
		eventually(t, name+": the body is closed", closing.closed.Load)
	}
	eventually(t, "no connection is left", func() bool { return e.open.Load() == 0 })
}
