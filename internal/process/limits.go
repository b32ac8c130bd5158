package process

import (
	"fmt"
	"syscall"
)

// maxOpenFiles bounds the raised limit. Some programs iterate over all possible descriptors, and a
// container may allow a billion of them.
const maxOpenFiles = 1 << 20

// RaiseFileLimit raises this process's soft limit of open files to the hard limit, at most
// 1,048,576, and lets children inherit it. The Go runtime also raises the limit, but restores the
// old one for children unless the limit is set explicitly.
func RaiseFileLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	limit.Cur = min(limit.Max, maxOpenFiles)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the limit of open files to %d: %w", limit.Cur, err)
	}
	return nil
}

// FileLimit returns how many files this process, and each of its children, may have open. 0 means
// that the limit cannot be read.
func FileLimit() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, maxOpenFiles))
}

// OpenFiles returns how many descriptors this process has open. It needs no descriptor itself. 0
// means that the kernel does not say: Linux before 6.2, or no /proc.
func OpenFiles() int {
	var stat syscall.Stat_t
	if err := syscall.Stat("/proc/self/fd", &stat); err != nil {
		return 0
	}
	return int(stat.Size)
}
