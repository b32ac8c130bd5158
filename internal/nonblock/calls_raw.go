//go:build !race

package nonblock

import (
	"syscall"
	"unsafe"
)

func readOnce(fd uintptr, p []byte) (int, error) { return rawCall(syscall.SYS_READ, fd, p) }

func writeOnce(fd uintptr, p []byte) (int, error) { return rawCall(syscall.SYS_WRITE, fd, p) }

func rawCall(number, fd uintptr, p []byte) (int, error) {
	n, _, fault := syscall.RawSyscall(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if fault != 0 {
		return 0, fault
	}
	return int(n), nil
}
