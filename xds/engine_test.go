package xds

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"
)

// seen is the request that an engine got.
type seen struct {
	Engine string
	// Method, Host and Path are those of the request.
	Method, Host, Path string
	Header             http.Header
	Size               int
	Digest             string
}

// newEngine starts an engine that answers with the request that it got.
func newEngine(t testing.TB, name string) net.Addr {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Server", "uvicorn")
		w.Header().Set("X-Sluice-Source", "forged")
		w.Header().Set("X-Sluice-Replica", "forged")
		json.NewEncoder(w).Encode(seen{Engine: name, Method: r.Method, Host: r.Host, Path: r.URL.Path, Header: r.Header, Size: len(b), Digest: digest(b)}) //nolint:errcheck // the client sees
	})
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func serve(t testing.TB, h http.HandlerFunc) net.Addr {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr()
}

// silentEngine accepts requests and never answers.
func silentEngine(t testing.TB) net.Addr {
	t.Helper()
	return serve(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // ends with the request
		<-r.Context().Done()
	})
}

// switchingEngine answers every request with a 101 that nobody has asked for, and what could be the
// answer to a later request of another client.
func switchingEngine(t testing.TB) net.Addr {
	t.Helper()
	return rawEngine(t, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
}

// rawEngine writes the text as its answer to a request, and closes the connection.
func rawEngine(t testing.TB, text string) net.Addr {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		io.WriteString(c, text) //nolint:errcheck // the client sees
	})
}

// droppingEngine closes every connection after n bytes of a request.
func droppingEngine(t testing.TB, n int64) net.Addr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				// The listener was closed.
				return
			}
			go func() {
				io.CopyN(io.Discard, c, n) //nolint:errcheck // dropped either way
				c.Close()
			}()
		}
	}()
	return l.Addr()
}

// deadAddress returns an address that refuses connections and that no other process can use.
func deadAddress(t testing.TB) net.Addr {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*syscall.SockaddrInet4).Port}
}

const chatPath = "/v1/chat/completions"

// answer is the response that a client got.
type answer struct {
	*http.Response
	body []byte
}

// do sends a request with headers in pairs. The test fails if there is no response.
func (g *gateway) do(t testing.TB, method, path string, body []byte, pairs ...string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+g.addr+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(pairs); i += 2 {
		request.Header.Set(pairs[i], pairs[i+1])
	}
	response, err := g.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response, b}
}

// chat sends a chat that ext_proc routes to a model with a list of replicas.
func (g *gateway) chat(t testing.TB, model, list string, pairs ...string) answer {
	t.Helper()
	return g.do(t, http.MethodPost, chatPath, []byte(`{"model":"x"}`),
		append(pairs, "x-test-cluster", "model/"+model, "x-test-list", list)...)
}

// raw sends bytes unchanged and reads one response.
func (g *gateway) raw(t testing.TB, text string) answer {
	t.Helper()
	c, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%.60q: %v", text, err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response, b}
}

// saw decodes the request that the engine got.
func (a answer) saw(t testing.TB) seen {
	t.Helper()
	var s seen
	if err := json.Unmarshal(a.body, &s); err != nil || s.Engine == "" {
		t.Fatalf("no engine answered: %d %s", a.StatusCode, a.body)
	}
	return s
}

func (a answer) code(t testing.TB) string {
	t.Helper()
	var e struct {
		Error struct {
			Message, Type, Code string
			Param               *string
		}
	}
	if err := json.Unmarshal(a.body, &e); err != nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Fatalf("not an error: %d %s (%v)", a.StatusCode, a.body, err)
	}
	if got := a.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
	return e.Error.Code
}
