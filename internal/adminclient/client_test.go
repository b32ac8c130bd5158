package adminclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
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
		{Client{address, "secret"}, http.MethodGet, "/status", ""},
		{Client{server.URL + "/", "secret"}, http.MethodGet, "/status", ""},
		{Client{address, ""}, http.MethodGet, "/status", "needs a token. For this command set SLUICE_ADMIN_TOKEN"},
		{Client{address, ""}, http.MethodGet, "/other", "answered 418"},
		{Client{address, ""}, http.MethodGet, "/text", "is no admin listener of Sluice"},
		{Client{"127.0.0.1:1", ""}, http.MethodGet, "/status", "no gateway answers at 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused: start it"},
		{Client{"a b", ""}, http.MethodGet, "/status", `the address "a b" of the admin listener is neither HOST:PORT nor a URL`},
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
