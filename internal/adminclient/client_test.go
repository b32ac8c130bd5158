package adminclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// Answers of the listener become values or errors with a message that says what to do.
func TestO8_Call(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.URL.Path == "/status" && r.Header.Get("Authorization") == "Bearer secret":
			io.WriteString(w, `{"version":"1"}`)
		case r.URL.Path == "/status":
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"error":{"message":"This listener needs a token."}}`)
		case r.URL.Path == "/v1":
			w.Header().Set("x-sluice-source", "gateway")
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"error":{"message":"You didn't provide an API key."}}`)
		case r.URL.Path == "/text":
			io.WriteString(w, "hello")
		case r.Method == http.MethodPost && string(body) == "{}" && r.Header.Get("Content-Type") == "application/json":
			w.WriteHeader(http.StatusNoContent)
		default:
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	t.Cleanup(server.Close)
	address := strings.TrimPrefix(server.URL, "http://")
	for _, test := range []struct {
		client       Client
		method, path string
		want         string // of the error; empty: none
	}{
		{Client{address, "secret", 0}, http.MethodGet, "/status", ""},
		{Client{server.URL + "/", "secret", 0}, http.MethodGet, "/status", ""},
		{Client{address, "", 0}, http.MethodGet, "/status", "needs a token. For this command set SLUICE_ADMIN_TOKEN"},
		{Client{address, "", 0}, http.MethodGet, "/other", "answered 418"},
		{Client{address, "", 0}, http.MethodGet, "/v1", "the listener for clients answers at " + address + ": name the address of `admin` by --admin HOST:PORT"},
		{Client{address, "", 0}, http.MethodGet, "/text", "is no admin listener of Sluice"},
		{Client{"127.0.0.1:1", "", 0}, http.MethodGet, "/status", "no gateway answers at 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused: start it"},
		{Client{"a b", "", 0}, http.MethodGet, "/status", `the address "a b" of the admin listener is neither HOST:PORT nor a URL`},
	} {
		var answer struct{ Version string }
		err := test.client.Call(t.Context(), test.method, test.path, nil, &answer)
		if test.want == "" && (err != nil || answer.Version != "1") || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%v %s: %v, %+v; want %q", test.client, test.path, err, answer, test.want)
		}
	}
	if err := (Client{Address: address}).Call(t.Context(), http.MethodPost, "/action", nil, nil); err != nil {
		t.Error("a call without a body:", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (Client{Address: address}).Call(ended, http.MethodGet, "/status", nil, nil); !errors.Is(err, context.Canceled) {
		t.Error("a call that was cancelled:", err)
	}
}

// A gateway that accepts connections and does not answer, as one that is stopped, ends no command
// late. An answer that streams may take longer.
func TestO8_SilentGateway(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/silent" {
			io.WriteString(w, "first ")
			w.(http.Flusher).Flush()
		}
		if r.URL.Path == "/stream" {
			time.Sleep(300 * time.Millisecond)
			io.WriteString(w, "second")
			return
		}
		<-stop
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(stop) })
	client := Client{Address: server.URL, Patience: 100 * time.Millisecond}
	for _, path := range []string{"/silent", "/cut"} {
		var answer any
		err := client.Call(t.Context(), http.MethodGet, path, nil, &answer)
		if silent := new(SilentError); !errors.As(err, &silent) || !strings.Contains(err.Error(), "has not answered for 100ms: its process is stopped") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := client.Do(t.Context(), http.MethodGet, "/silent", nil); !errors.As(err, new(*SilentError)) {
		t.Errorf("the head of a stream: %v", err)
	}
	var resp *http.Response
	testutil.EventuallyNil(t, "the stream begins in time, which a busy machine may prevent", func() (err error) {
		resp, err = client.Do(t.Context(), http.MethodGet, "/stream", nil)
		return err
	})
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "first second" {
		t.Errorf("a stream: %q, %v", text, err)
	}
	if got := (Client{}).patience(); got != 30*time.Second {
		t.Errorf("the default is %v", got)
	}
}

// TestO8_ProxyOfTheEnvironment: a listener is called directly. A URL is called as the environment
// says.
func TestO8_ProxyOfTheEnvironment(t *testing.T) {
	transport := http.DefaultTransport.(*http.Transport)
	before := transport.Proxy
	t.Cleanup(func() { transport.Proxy = before; transport.CloseIdleConnections() })
	transport.Proxy = func(*http.Request) (*url.URL, error) { return nil, errors.New("the proxy is away") }
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }))
	t.Cleanup(server.Close)
	if err := (Client{Address: server.Listener.Addr().String()}).Call(t.Context(), http.MethodGet, "/", nil, nil); err != nil {
		t.Errorf("by HOST:PORT: %v", err)
	}
	if err := (Client{Address: server.URL}).Call(t.Context(), http.MethodGet, "/", nil, nil); err == nil || !strings.Contains(err.Error(), "the proxy is away") {
		t.Errorf("by URL: %v", err)
	}
}

func TestDialAddress(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"0.0.0.0:80": "127.0.0.1:80", ":80": "127.0.0.1:80", "[::]:80": "[::1]:80", "10.0.0.1:80": "10.0.0.1:80", "localhost:80": "localhost:80",
	} {
		if got := DialAddress(listen); got != want {
			t.Errorf("%s is reached at %s, want %s", listen, got, want)
		}
	}
}
