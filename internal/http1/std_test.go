package http1

import (
	"io"
	"net/http"
	"testing"
)

// With SLUICE_HTTP1=std, the client and the server are those of net/http.
func TestStdLeavesEverythingToNetHTTP(t *testing.T) {
	t.Setenv("SLUICE_HTTP1", "std")
	if _, ok := new(Transport).Client().(*http.Transport); !ok {
		t.Error("the client is not net/http's")
	}
	server := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		if _, own := w.(*ResponseWriter); own {
			t.Error("the response writer is this package's")
		}
		body, _ := io.ReadAll(r.Body)
		w.Write(body)
	}, nil)
	client := server.transport(t)
	for range 2 {
		response, body, err := fetch(client, post(t, "http://host/", "hello"))
		if err != nil || response.StatusCode != http.StatusOK || body != "hello" {
			t.Errorf("got %v, %q, %v", response, body, err)
		}
	}
}

// Without SLUICE_HTTP1, the client and the server are those of this package.
func TestServerAnswersItself(t *testing.T) {
	server := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		if _, own := w.(*ResponseWriter); !own {
			t.Errorf("the response writer is a %T", w)
		}
	}, nil)
	if _, _, err := fetch(server.transport(t), post(t, "http://host/", "hello")); err != nil {
		t.Error(err)
	}
	if c := new(Transport); c.Client() != Client(c) {
		t.Error("the client is not this package's")
	}
}
