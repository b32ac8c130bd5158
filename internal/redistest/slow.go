package redistest

import (
	"net"
	"time"
)

// Slow returns the URL of a server whose answers come later by a pause, as those of a Redis that is
// far away. It ends with the test.
func Slow(s *Server, pause time.Duration) string {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	s.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", s.Addr)
			if err != nil {
				_ = client.Close()
				continue
			}
			go forward(server, client, 0)
			go forward(client, server, pause)
		}
	}()
	return "redis://" + l.Addr().String()
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
