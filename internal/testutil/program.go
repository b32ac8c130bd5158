package testutil

import (
	"os"
	"syscall"
	"testing"
)

// WriteProgram writes a script that its user may run. The kernel runs no file that a process has
// open for writing. A child that another goroutine starts just then would have a copy of the
// descriptor for a moment, so no child is started while the file is open.
func WriteProgram(t testing.TB, path, script string) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte(script), 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}
