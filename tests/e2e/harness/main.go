// Package harness runs the built program for tests: gateways with a real Envoy, upstreams, clients
// and what waits for them. The packages below tests/e2e use it, each for the tests of one subject.
package harness

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

const (
	// runMark is an environment variable that every process which the tests start inherits. Its
	// value is the process id of the test binary. The name begins with LC_, because Sluice passes
	// variables of the locale on to all its children, and hardly any others.
	runMark = "LC_SLUICE_E2E_RUN"

	// directoryMark is the beginning of an environment variable that a gateway passes to every
	// process it starts. Its value is the gateway's state directory.
	directoryMark = "LC_SLUICE_E2E_DIR="

	// orphanPatience is how long Main waits for the last processes to exit.
	orphanPatience = testutil.Patience
)

// program is the path of the built program. Main sets it before the first test runs.
var program string

// Program returns the path of the built program. Tests may call it only below Main.
func Program() string { return program }

// Main builds the program, runs the tests of m and returns the exit status of the test binary. Main
// fails if a process that the tests started is still running after the tests. TestMain of each
// package calls it.
func Main(m *testing.M) int {
	dir, err := build()
	defer os.RemoveAll(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv(runMark, fmt.Sprint(os.Getpid()))
	status := m.Run()
	if orphans := endOrphans(); len(orphans) > 0 {
		fmt.Fprintf(os.Stderr, "processes were still running after the tests: %v\n", orphans)
		return max(status, 1)
	}
	return status
}

// build builds the program into .out/e2e, where all test binaries of this checkout share it. The go
// command leaves a program in place that is up to date, so only the first build takes long.
//
// A lock keeps two test binaries from building at the same time. Each test binary runs the program
// through a hard link in a directory of its own, which build returns. A later build does not change
// the program under running tests.
func build() (dir string, err error) {
	shared := filepath.Join(testutil.Root(), ".out", "e2e")
	if err := os.MkdirAll(shared, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(shared, "lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close() // closing the file releases the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	built, args := filepath.Join(shared, "sluice"), []string{"build"}
	if os.Getenv("SLUICE_E2E_RACE") != "" {
		built, args = built+"-race", append(args, "-race")
	}
	command := exec.Command("go", append(args, "-o", built, "./cmd/sluice")...)
	command.Dir = testutil.Root()
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build of ./cmd/sluice: %w\n%s", err, out)
	}
	if dir, err = os.MkdirTemp(shared, "run-"); err != nil {
		return "", err
	}
	program = filepath.Join(dir, "sluice")
	return dir, os.Link(built, program)
}

// endOrphans waits until every process that the tests started has exited. After orphanPatience it
// kills those that are left, and returns their command lines by process id.
func endOrphans() map[int]string {
	own := fmt.Sprint(runMark, "=", os.Getpid())
	deadline := time.Now().Add(orphanPatience)
	for {
		left := processesWith(own)
		delete(left, os.Getpid())
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			for pid := range left {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			return left
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// processesWith returns the command lines of the processes whose environment has the variable,
// given as NAME=value, by process id. Processes that have exited but are not yet reaped do not
// count.
func processesWith(variable string) map[int]string {
	found, mark := map[int]string{}, []byte("\x00"+variable+"\x00")
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		environ, _ := os.ReadFile(name + "/environ")
		if !bytes.Contains(append([]byte{0}, environ...), mark) {
			continue
		}
		if cmdline, _ := os.ReadFile(name + "/cmdline"); len(cmdline) > 0 {
			pid, _ := strconv.Atoi(filepath.Base(name))
			found[pid] = strings.ReplaceAll(string(cmdline), "\x00", " ")
		}
	}
	return found
}

// Eventually waits until ok returns nil. It fails the test with the last error if that does not
// happen within testutil.Patience.
func Eventually(t testing.TB, what string, ok func() error) {
	t.Helper()
	testutil.EventuallyNil(t, what, ok)
}

// Receive returns the next value of c, or the zero value if c is closed. It fails the test if that
// does not happen within testutil.Patience.
func Receive[T any](t testing.TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(testutil.Patience):
		t.Fatalf("%s: not within %v", what, testutil.Patience)
	}
	return v
}
