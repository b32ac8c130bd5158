//go:build race

package nonblock

import "syscall"

// The race detector learns from package syscall that what was written before a write is known after
// the read of it.

func readOnce(fd uintptr, p []byte) (int, error) {
	n, err := syscall.Read(int(fd), p)
	return max(n, 0), err
}

func writeOnce(fd uintptr, p []byte) (int, error) {
	n, err := syscall.Write(int(fd), p)
	return max(n, 0), err
}
