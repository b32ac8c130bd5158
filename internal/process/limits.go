package process

import (
	"fmt"
	"syscall"
)

// mostFiles bounds the raised limit: some programs walk all possible descriptors, and a container may allow a billion of them.
const mostFiles = 1 << 20

// RaiseFileLimit raises this process's soft limit of open files to the hard limit, at most 1,048,576, and lets children
// inherit it. The Go runtime raises the limit too, but gives children the old one back unless it is set explicitly.
func RaiseFileLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	limit.Cur = min(limit.Max, mostFiles)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the limit of open files to %d: %w", limit.Cur, err)
	}
	return nil
}
