package nonblock

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Bytes that are written to one end are read at the other. No call blocks, and a close by the peer
// is reported.
func TestSocket(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := uintptr(pair[0]), uintptr(pair[1])
	defer syscall.Close(pair[1])
	buffer := make([]byte, 1<<20)
	if n, err := read(b, buffer); n != 0 || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("nothing is there: %d, %v", n, err)
	}
	sent := bytes.Repeat([]byte("event "), 1<<18)
	written := 0
	for {
		n, err := write(a, sent[written:])
		written += n
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil || n == 0 {
			t.Fatalf("after %d bytes: %d, %v", written, n, err)
		}
	}
	syscall.Close(pair[0])
	var got []byte
	for {
		n, err := read(b, buffer)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		got = append(got, buffer[:n]...)
	}
	if written == 0 || !bytes.Equal(got, sent[:written]) {
		t.Errorf("%d bytes were written, %d read", written, len(got))
	}
	if n, err := write(b, []byte("x")); n != 0 || !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the peer has gone: %d, %v", n, err)
	}
	if _, err := read(1<<20, buffer); !errors.Is(err, syscall.EBADF) {
		t.Errorf("no descriptor: %v", err)
	}
}

// pair returns both ends of a connection.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close() })
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return dialed.(*net.UnixConn), accepted.(*net.UnixConn)
}

// conn is a connection of either kind.
type conn interface {
	net.Conn
	CloseWrite() error
}

// forBoth runs a test with a connection of package net and with a Conn. a and b are its ends.
func forBoth(t *testing.T, test func(t *testing.T, a, b conn)) {
	t.Parallel()
	t.Run("net", func(t *testing.T) {
		t.Parallel()
		a, b := pair(t)
		test(t, a, b)
	})
	t.Run("Conn", func(t *testing.T) {
		t.Parallel()
		a, b := detachedPair(t)
		test(t, a, b)
	})
}

// Read and Write wait as those of the connection do: more is written than the socket holds. A close
// of the other end is the end.
func TestReaderAndWriterWait(t *testing.T) { forBoth(t, testReaderAndWriterWait) }

func testReaderAndWriterWait(t *testing.T, a, b conn) {
	sent := bytes.Repeat([]byte("event "), 1<<19)
	written := make(chan error, 1)
	go func() {
		n, err := WriterOf(a).Write(sent)
		if n != len(sent) && err == nil {
			err = io.ErrShortWrite
		}
		a.Close()
		written <- err
	}()
	r := ReaderOf(b)
	if _, ok := r.(*Reader); !ok {
		t.Fatalf("the connection is read by a %T", r)
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes were read: %v", len(got), len(sent), err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
	if _, err := WriterOf(b).Write(sent); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the peer has closed: %v", err)
	}
}

// Try writes what the socket takes, and nothing to a full one.
func TestTry(t *testing.T) { forBoth(t, testTry) }

func testTry(t *testing.T, a, b conn) {
	w, err := NewWriter(a)
	if err != nil {
		t.Fatal(err)
	}
	sent := bytes.Repeat([]byte("event "), 1<<19)
	n, err := w.Try(sent)
	if err != nil || n == 0 || n == len(sent) {
		t.Fatalf("%d of %d bytes were written: %v", n, len(sent), err)
	}
	for more := 1; more > 0; n += more {
		if more, err = w.Try(sent[n:]); err != nil {
			t.Fatal(err)
		}
	}
	a.CloseWrite()
	if got, err := io.ReadAll(ReaderOf(b)); err != nil || !bytes.Equal(got, sent[:n]) {
		t.Errorf("%d bytes were written, %d read: %v", n, len(got), err)
	}
}

// The deadline of the connection holds, and its close ends a wait.
func TestDeadlineAndClose(t *testing.T) { forBoth(t, testDeadlineAndClose) }

func testDeadlineAndClose(t *testing.T, _, b conn) {
	r := ReaderOf(b)
	b.SetReadDeadline(time.Now())
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %d, %v", n, err)
	}
	b.SetReadDeadline(time.Time{})
	ended := make(chan error, 1)
	go func() {
		_, err := r.Read(make([]byte, 1))
		ended <- err
	}()
	b.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the connection was closed: %v", err)
	}
}

// Quiet tells whether there is anything to read.
func TestQuiet(t *testing.T) { forBoth(t, testQuiet) }

func testQuiet(t *testing.T, a, b conn) {
	r, err := NewReader(b)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Quiet() {
		t.Error("nothing has come")
	}
	if _, err := a.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if r.Quiet() {
		t.Error("a byte has come")
	}
	a.Close()
	if r.Quiet() {
		t.Error("the peer has closed")
	}
}

// A descriptor in blocking mode is refused, because it would block a thread without the knowledge
// of Go's scheduler. The connection is then used itself, and so is one without a descriptor.
func TestBlockingDescriptorIsRefused(t *testing.T) {
	t.Parallel()
	a, _ := pair(t)
	if _, err := NewReader(a); err != nil {
		t.Errorf("a connection of package net is refused: %v", err)
	}
	f, err := a.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Fd() // puts the descriptor into blocking mode, and with it the connection's
	if _, err := NewReader(a); err == nil || !strings.Contains(err.Error(), "blocking mode") {
		t.Errorf("a descriptor in blocking mode is read: %v", err)
	}
	if _, err := NewWriter(a); err == nil || !strings.Contains(err.Error(), "blocking mode") {
		t.Errorf("a descriptor in blocking mode is written: %v", err)
	}
	pipe, _ := net.Pipe()
	for _, c := range []net.Conn{a, pipe} {
		if ReaderOf(c) != c || WriterOf(c) != c {
			t.Errorf("%T is not used itself", c)
		}
	}
}
