package upstream

import (
	"io"
	"net"
	"testing"
)

// A server whose list of models only the end of the connection ends is known for it from the first
// check on.
func TestX6_CheckSeesCloseDelimitedServers(t *testing.T) {
	const list = `{"data":[{"id":"m"}]}` // 21 bytes
	for answer, want := range map[string]bool{
		"HTTP/1.0 200 OK\r\n\r\n" + list:                                                       true,
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + list:                                  true,
		"HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n" + list:                                 false,
		"HTTP/1.0 200 OK\r\nContent-Length: 21\r\n\r\n" + list:                                 false,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n15\r\n" + list + "\r\n0\r\n\r\n": false,
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 4096))
				_, _ = io.WriteString(conn, answer)
				conn.Close()
			}
		}()
		l, fleet := newTestLauncher(t, Desired{Discover: discover("http://" + ln.Addr().String())})
		l.CheckOnce(t.Context())
		m := fleet.Snapshot().Models["m"]
		if m == nil || len(m.Replicas) != 1 || m.Replicas[0].CloseDelimited != want {
			t.Errorf("%q: %+v", answer, m)
		}
	}
}
