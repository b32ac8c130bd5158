package http1

import (
	"io"
	"net"
	"net/http"
	"strings"
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

// A descriptor in blocking mode is refused, because it would block a thread without the knowledge
// of Go's scheduler.
func TestBlockingDescriptorIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := checkNonblocking(raw); err != nil {
		t.Errorf("a connection of package net is refused: %v", err)
	}
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Fd() // puts the descriptor into blocking mode, and with it the connection's
	if err := checkNonblocking(raw); err == nil || !strings.Contains(err.Error(), "blocking mode") {
		t.Errorf("a descriptor in blocking mode is accepted: %v", err)
	}
}
