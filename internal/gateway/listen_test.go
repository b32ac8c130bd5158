package gateway

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/envoy"
)

// A child process that gets a copy of a listener takes nothing from it: Accept of the original can
// be ended.
func TestX20_ASharedListenerCanBeClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := copyOf(l.(*net.TCPListener))
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("cat")
	child.ExtraFiles = []*os.File{file}
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	file.Close()
	if c, err := net.Dial("tcp", l.Addr().String()); err != nil {
		t.Error(err)
	} else {
		defer c.Close()
	}
	ended := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			c.Close()
			ended <- nil
		}
	}()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	l.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	input.Close()
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}

// A start without a predecessor removes the sockets of processes that were killed while they
// carried streams. It leaves those of processes that still do.
func TestX20_SocketsOfKilledProcessesAreRemoved(t *testing.T) {
	path := t.TempDir()
	g := newGateway(t, claimed(t, path), parse(t, path, ""))
	killed, carries, other := carriedSocket(g.dir, "0123abcd"), carriedSocket(g.dir, "4567abcd"), g.dir.Socket("other.sock")
	for _, path := range []string{killed, carries, other} {
		l, err := listenUnix(path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if path != carries {
			l.Close()
		}
	}
	runs(t, g)
	eventually(t, "the gateway serves", func() bool { return accepts(bootstrap(g.dir).ControlSocket) })
	for path, want := range map[string]bool{killed: false, carries: true, other: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", path, err == nil, want)
		}
	}
}

// TestListenErrorsSayWhatToDo checks that the errors of listeners name the field and say what to
// do.
func TestListenErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for address, want := range map[string]string{
		taken.Addr().String(): "address already in use: `ss -ltnp` shows the program that listens there; end it, or set admin to another port",
		"192.0.2.1:9090":      "cannot assign requested address: set admin to an address of this machine",
	} {
		if _, err := listenOperators("admin", address, nil, nil); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %s", address, err, want)
		}
	}
}

// The port of an Envoy that was killed is taken until the kernel has closed its sockets. A start
// waits for that, and names a program that keeps the port.
func TestX20_AStartWaitsForThePortOfAKilledEnvoy(t *testing.T) {
	t.Parallel()
	link := &envoyLink{process: new(envoy.Envoy), dir: claimed(t, t.TempDir())}
	ending, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(5*closeInterval, func() { _ = ending.Close() })
	if err := link.checkListen(t.Context(), ending.Addr().String()); err != nil {
		t.Errorf("the port was given back: %v", err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if err := link.checkListen(t.Context(), taken.Addr().String()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("another program has the port: %v", err)
	}
}
