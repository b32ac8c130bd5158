package nonblock

import (
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readEvents are the events that the poller waits for on each descriptor: something to read, the
// end of the stream, an error. unix.EPOLLOUT is not among them, see Conn.
const readEvents = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET

// maxEvents is how many events one system call fetches.
const maxEvents = 64

// poller is an epoll instance for the descriptors of all Conns. One goroutine waits for it by the
// poller of Go's runtime, which knows the descriptor of the epoll instance and none of the Conns'.
// So no thread waits in a system call.
type poller struct {
	// file has the descriptor of the epoll instance, which is epoll.
	file  *os.File
	epoll int
	// conns has the registered connections by their descriptors. Guarded by registry.mu.
	conns  map[int32]*Conn
	events [maxEvents]unix.EpollEvent
}

// registry has the poller of the process. It exists while there are Conns, so that a process
// without one has neither its goroutine nor its descriptor.
var registry struct {
	mu sync.Mutex
	// poller is nil while no Conn is registered. Guarded by mu.
	poller *poller
}

// register has a connection told of the events of its descriptor.
func register(c *Conn) error {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	p := registry.poller
	if p == nil {
		var err error
		if p, err = startPoller(); err != nil {
			return err
		}
	}
	err := p.control(unix.EPOLL_CTL_ADD, c.fd, readEvents)
	if err == nil {
		registry.poller, c.poller = p, p
		p.conns[int32(c.fd)] = c
	} else if registry.poller == nil {
		_ = p.file.Close() // no event can come
	}
	return err
}

// startPoller starts a poller, which ends when its file is closed.
func startPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	p := &poller{epoll: fd, conns: map[int32]*Conn{}}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd) // nobody uses it
		return nil, os.NewSyscallError("fcntl", err)
	}
	p.file = os.NewFile(uintptr(fd), "epoll")
	raw, err := p.file.SyscallConn()
	if err != nil {
		_ = p.file.Close() // as above
		return nil, err
	}
	go p.run(raw)
	return p, nil
}

// run wakes the goroutines that wait for a connection, until the last connection is forgotten.
func (p *poller) run(epoll syscall.RawConn) { _ = epoll.Read(p.distribute) } // the error says that the file is closed

// distribute fetches the events that are there. It always returns false: after that, epoll.Read
// waits for more and calls it again.
func (p *poller) distribute(fd uintptr) bool {
	for {
		n := fetchEvents(fd, p.events[:])
		if n == 0 {
			return false
		}
		p.wake(p.events[:n])
	}
}

// wake wakes the goroutines that wait for these events. An event of a connection that was closed
// since may wake those of another one with the same descriptor, which then look and wait on.
func (p *poller) wake(events []unix.EpollEvent) {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	for _, e := range events {
		c := p.conns[e.Fd]
		if c == nil {
			continue
		}
		if e.Events&^unix.EPOLLOUT != 0 {
			c.reading.wake()
		}
		if e.Events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			c.writing.wake()
		}
	}
}

// forget removes a connection. The caller closes the descriptor after that.
func (p *poller) forget(c *Conn) {
	if last := p.remove(c); last {
		_ = p.file.Close() // it waits for distribute, which may wait for registry.mu
	}
}

// remove removes a connection. It reports whether it was the last one.
func (p *poller) remove(c *Conn) (last bool) {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	_ = p.control(unix.EPOLL_CTL_DEL, c.fd, 0) // it is registered, so nothing can fail
	delete(p.conns, int32(c.fd))
	if last = len(p.conns) == 0; last {
		registry.poller = nil
	}
	return last
}

// control changes for which events the poller waits on a descriptor. With EPOLL_CTL_ADD and
// EPOLL_CTL_MOD, an event that is there already counts as a new one.
func (p *poller) control(operation, fd int, events uint32) error {
	err := unix.EpollCtl(p.epoll, operation, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
	return os.NewSyscallError("epoll_ctl", err)
}

// fetchEvents returns how many events there are, without waiting and without notice to Go's
// scheduler.
func fetchEvents(epoll uintptr, events []unix.EpollEvent) int {
	for {
		n, _, fault := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, epoll,
			uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
		switch fault {
		case 0:
			return int(n)
		case syscall.EINTR:
		default: // the arguments are wrong, and without events all connections would hang
			panic(os.NewSyscallError("epoll_pwait", fault))
		}
	}
}
