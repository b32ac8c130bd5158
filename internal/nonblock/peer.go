package nonblock

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// PeerPID returns the process that has made a connection to a unix socket; 0: not known.
func PeerPID(socket net.Conn) int {
	unixSocket, ok := socket.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := unixSocket.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	}) // it fails for a closed socket only, which tells nothing
	return pid
}
