//go:build !race

package nowait

import (
	"syscall"
	"unsafe"
)

func read(fd uintptr, p []byte) (int, error) { return call(syscall.SYS_READ, fd, p) }

func write(fd uintptr, p []byte) (int, error) { return call(syscall.SYS_WRITE, fd, p) }

func call(number, fd uintptr, p []byte) (int, error) {
	n, _, fault := syscall.RawSyscall(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if fault != 0 {
		return 0, fault
	}
	return int(n), nil
}
