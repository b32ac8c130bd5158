package http1

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// handlers are ordinary handlers, by the path that they serve.
var handlers = map[string]http.HandlerFunc{
	"nothing":      func(w http.ResponseWriter, r *http.Request) {},
	"echo":         echo,
	"error":        func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusTeapot) },
	"not found":    http.NotFound,
	"redirect":     http.RedirectHandler("/there", http.StatusSeeOther).ServeHTTP,
	"not modified": func(w http.ResponseWriter, r *http.Request) { w.Header().Set("etag", "x"); w.WriteHeader(304) },
	"no content": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("content-length", "3")
		w.WriteHeader(204)
	},
	"length": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("content-length", "2")
		io.WriteString(w, "ab")
	},
	"zero": func(w http.ResponseWriter, r *http.Request) { w.Header().Set("content-length", "0") },
	"short": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("content-length", "9")
		io.WriteString(w, "ab")
	},
	"late header": func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(201)
		w.Header().Set("a", "b")
		io.WriteString(w, "x")
	},
	"odd headers": func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h["lower"] = []string{"1", "2"}
		h.Set("c", "d\r\ne:f")
		h["g h"] = []string{"i"}
	},
	"large": func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, strings.Repeat("0123456789", 50000)) },
	"close": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("connection", "close")
		io.WriteString(w, "x")
	},
	"unread": func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "unread") },
	"abort":  func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
	"abort halfway": func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // a body that is not read may reset the connection before the peer reads the first half
		io.WriteString(w, "x")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	},
	"events": func(w http.ResponseWriter, r *http.Request) {
		for i := range 5 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			http.NewResponseController(w).Flush()
		}
	},
	"what it sees": func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		fmt.Fprint(w, r.Method, r.URL, r.Proto, r.Header, r.ContentLength, r.TransferEncoding, r.Close, r.Host, r.Form, r.Trailer, r.RequestURI, r.TLS, r.Pattern, string(b), err)
	},
}

// clientResult is everything that a client learns from a request.
type clientResult struct {
	Status int
	Header http.Header
	Body   string
	Err    string
}

// sendTo sends a request and returns what the client sees. It leaves out what differs between the
// servers on purpose.
func sendTo(t *testing.T, client *http.Transport, method, path string, body io.Reader) (s clientResult) {
	req, err := http.NewRequest(method, "http://host/"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("a-b", "c")
	if strings.HasPrefix(path, "abort") {
		// The server has closed the connection of a HEAD request after its answer, which the client
		// may not have noticed yet.
		client.CloseIdleConnections()
	}
	res, err := client.RoundTrip(req)
	if err != nil {
		s.Err = "no response"
		return s
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	s = clientResult{Status: res.StatusCode, Header: res.Header, Body: string(b)}
	if err != nil {
		// The error is an early end, or a reset if one server has left more of the request unread
		// than the other.
		s.Err = "cut off"
	}
	// net/http sets the length of a short body, and reads an unread body in order to keep the
	// connection.
	for _, name := range []string{"Date", "Content-Length", "Connection"} {
		s.Header.Del(name)
	}
	return s
}

// TestLikeNetHTTP: a client sees the same responses of Server and of net/http's server.
func TestLikeNetHTTP(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = nil // net/http would guess it
		handlers[r.URL.Path[1:]](w, r)
	}
	ours := startServer(t, handler, nil)
	theirs := &testServer{path: filepath.Join(t.TempDir(), "s")}
	l, err := net.Listen("unix", theirs.path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(handler)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() { server.Close(); within(t, served) })
	ourClient, theirClient := ours.transport(t), theirs.transport(t)
	for name := range handlers {
		path := strings.ReplaceAll(name, " ", "%20")
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"} {
			for _, body := range []string{"", "x", strings.Repeat("body", 5000)} {
				for _, chunked := range []bool{false, true} {
					sent := func() io.Reader {
						switch {
						case body == "" || method == "GET" || method == "HEAD":
							return nil
						case chunked:
							return io.MultiReader(strings.NewReader(body))
						}
						return strings.NewReader(body)
					}
					got, want := sendTo(t, ourClient, method, path, sent()), sendTo(t, theirClient, method, path, sent())
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%s /%s, body of %d, chunked %v: net/http - and ours +\n%.2000s", method, name, len(body), chunked, diff)
					}
				}
			}
		}
	}
}
