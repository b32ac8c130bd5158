package redistest

import (
	"net"
	"sync/atomic"
	"time"
)

// Slow returns the URL of a server whose answers come later by a pause, as those of a Redis that is
// far away. It ends with the test.
func Slow(s *Server, pause time.Duration) string {
	s.t.Helper()
	return front(s, pause).URL()
}

// Address is an address that stands for one server, as the name of a master does that is moved
// after a failure.
type Address struct {
	listener net.Listener
	server   atomic.Pointer[Server]
}

// Front returns an address that stands for the server. It ends with the test.
func Front(s *Server) *Address {
	s.t.Helper()
	return front(s, 0)
}

// URL returns the URL of the address.
func (a *Address) URL() string { return "redis://" + a.listener.Addr().String() }

// Move makes the address stand for another server. Connections that are open stay where they are.
func (a *Address) Move(to *Server) { a.server.Store(to) }

// front returns an address of the server, whose answers come later by a pause.
func front(s *Server, pause time.Duration) *Address {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	s.t.Cleanup(func() { _ = l.Close() })
	a := &Address{listener: l}
	a.Move(s)
	go a.serve(pause)
	return a
}

// serve forwards connections until the listener is closed.
func (a *Address) serve(pause time.Duration) {
	for {
		client, err := a.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", a.server.Load().Addr)
		if err != nil {
			_ = client.Close()
			continue
		}
		go forward(server, client, 0)
		go forward(client, server, pause)
	}
}

// forward copies what comes from a connection to another one, each part after a pause, until one of
// them ends.
func forward(to, from net.Conn, pause time.Duration) {
	defer to.Close()
	for b := make([]byte, 64<<10); ; {
		n, err := from.Read(b)
		time.Sleep(pause)
		if _, failed := to.Write(b[:n]); err != nil || failed != nil {
			return
		}
	}
}
