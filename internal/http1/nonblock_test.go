package http1

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
)

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
	if n, err := readNonblock(b, buffer); n != 0 || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("nothing is there: %d, %v", n, err)
	}
	sent := bytes.Repeat([]byte("event "), 1<<18)
	written := 0
	for {
		n, err := writeNonblock(a, sent[written:])
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
		n, err := readNonblock(b, buffer)
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
	if n, err := writeNonblock(b, []byte("x")); n != 0 || !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the peer has gone: %d, %v", n, err)
	}
	if _, err := readNonblock(1<<20, buffer); !errors.Is(err, syscall.EBADF) {
		t.Errorf("no descriptor: %v", err)
	}
}
