package testutil

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// lastPort is the offset of the last port that FreePort tried.
var lastPort atomic.Int64

// FreePort returns a port of 127.0.0.1 that nothing listens on.
//
// The ports count up from a base that depends on the process id. They lie below the range from
// which the kernel takes ports for outgoing connections. A port of the kernel's choice would not
// do: Envoy and Sluice listen on the port a moment later, and the kernel could give it to another
// socket first.
func FreePort(t testing.TB) int {
	t.Helper()
	base := 11000 + os.Getpid()%1000*20
	for range 1000 {
		port := base + int(lastPort.Add(1))
		if l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("none of 1000 ports is free")
	return 0
}
