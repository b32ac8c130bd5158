package connections

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Sizes and constants of the kernel's interface, from linux/inet_diag.h and linux/sock_diag.h.
const (
	sockDiagByFamily = 20
	diagRequestSize  = unix.SizeofNlMsghdr + 56
	// diagMessageSize is the size of struct inet_diag_msg.
	diagMessageSize = 72
	// counted are the states of sockets that take a descriptor of the server: established, and
	// closed by the client alone. They are bits by the numbers of linux/tcp_states.h.
	counted = 1<<1 | 1<<8
	// listening is the state of listeners.
	listening = 1 << 10
	// dumpTimeout bounds the wait for an answer of the kernel, in seconds.
	dumpTimeout = 5
	dumpBuffer  = 64 << 10
)

// Count asks the kernel for the connections to a listener of this machine and returns their number
// by source. listen may be an unspecified address, which means all addresses of its port. Sources
// are as Source returns them.
func Count(listen netip.AddrPort) (map[netip.Addr]int, error) {
	sources := map[netip.Addr]int{}
	err := each(listen, counted, func(local, remote netip.Addr) {
		if listen.Addr().IsUnspecified() || local == listen.Addr().Unmap() {
			sources[Source(remote)]++
		}
	})
	return sources, err
}

// each calls f with the addresses of each socket in one of these states that has the port of
// listen, and may belong to a listener there.
func each(listen netip.AddrPort, states uint32, f func(local, remote netip.Addr)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return fmt.Errorf("sock_diag: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: dumpTimeout}); err != nil {
		return fmt.Errorf("sock_diag: %w", err)
	}
	// A listener on [::] has the connections of IPv4 clients as IPv6 sockets, so one dump has all.
	family := byte(unix.AF_INET6)
	if listen.Addr().Is4() {
		family = unix.AF_INET
	}
	if err := dump(fd, dumpRequest(family, listen.Port(), states), f); err != nil {
		return fmt.Errorf("sock_diag: %w", err)
	}
	return nil
}

// socketTotal returns the number of TCP sockets of this machine, or of this container. It is the
// number of the family that connections to listen have. Count has the kernel look through a table
// with hundreds of thousands of places. socketTotal costs a twentieth of that.
func socketTotal(listen netip.AddrPort) (int, error) {
	file, line := "/proc/self/net/sockstat6", "TCP6: inuse %d"
	if listen.Addr().Is4() {
		file, line = "/proc/self/net/sockstat", "TCP: inuse %d"
	}
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var buffer [1024]byte
	n, err := unix.Read(fd, buffer[:])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	for found := range bytes.Lines(buffer[:n]) {
		var total int
		if _, err := fmt.Sscanf(string(found), line, &total); err == nil {
			return total, nil
		}
	}
	return 0, fmt.Errorf("%s does not tell the number of TCP sockets", file)
}

// Source returns what counts as one source. That is an IPv4 address, or the first 64 bits of an
// IPv6 address, since a network of that size belongs to one subscriber.
func Source(client netip.Addr) netip.Addr {
	client = client.Unmap().WithZone("")
	if client.Is4() {
		return client
	}
	prefix, err := client.Prefix(64)
	if err != nil {
		return client
	}
	return prefix.Addr()
}

// dump calls f with the addresses of each socket that a request asks for.
func dump(fd int, request []byte, f func(local, remote netip.Addr)) error {
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buffer := make([]byte, dumpBuffer)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				return netlinkError(m.Data)
			case sockDiagByFamily:
				if local, remote, ok := parseSocket(m.Data); ok {
					f(local, remote)
				}
			}
		}
	}
}

// netlinkError returns the error of a message of type NLMSG_ERROR.
func netlinkError(data []byte) error {
	if len(data) < 4 {
		return errors.New("the kernel's answer is too short")
	}
	return syscall.Errno(-int32(binary.NativeEndian.Uint32(data)))
}

// dumpRequest asks for all TCP sockets of a family with this local port in one of these states.
func dumpRequest(family byte, port uint16, states uint32) []byte {
	b := make([]byte, diagRequestSize)
	binary.NativeEndian.PutUint32(b[0:], diagRequestSize)
	binary.NativeEndian.PutUint16(b[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	request := b[unix.SizeofNlMsghdr:] // struct inet_diag_req_v2
	request[0], request[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(request[4:], states)
	binary.BigEndian.PutUint16(request[8:], port)
	return b
}

// parseSocket reads the addresses of a struct inet_diag_msg.
func parseSocket(data []byte) (local, remote netip.Addr, ok bool) {
	if len(data) < diagMessageSize {
		return local, remote, false
	}
	return parseAddress(data[0], data[8:24]), parseAddress(data[0], data[24:40]), true
}

// parseAddress reads the address of a socket of a family. IPv4 takes the first 4 of the 16 bytes.
func parseAddress(family byte, b []byte) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(b))
	}
	return netip.AddrFrom16([16]byte(b)).Unmap()
}
