// Package testutil finds what tests need beside the code. Tests of any package use it.
package testutil

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

const (
	// Patience is how long Eventually waits. It is long, because it only ends a test that fails, on
	// a machine that may be busy.
	Patience = 90 * time.Second

	// firstPollInterval is how long Eventually sleeps after the first check of the condition. Each
	// later sleep is twice as long as the one before, up to maxPollInterval. A check that takes
	// long, such as a program that runs, would keep a processor from what is waited for. So a sleep
	// is at least three times as long as the check was, up to costlyPollInterval.
	firstPollInterval  = time.Millisecond
	maxPollInterval    = 20 * time.Millisecond
	costlyPollInterval = 250 * time.Millisecond
)

// Root returns the path of the repository's root directory.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Tool returns the path of a program or directory that `make tools` puts under .tools.
//
// If the tool is missing, Tool skips the test. With the environment variable CI=true it fails the
// test instead, because a run of the continuous integration must not leave out tests.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(Root(), ".tools", name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	Missing(t, path)
	return path
}

// Missing skips the test because a tool is missing. With the environment variable CI=true it fails
// the test instead.
func Missing(t testing.TB, tool string) {
	t.Helper()
	message := tool + " is missing: run `make tools`"
	if inCI() {
		t.Fatal(message)
	} else {
		t.Skip(message)
	}
}

// inCI tells whether the environment variable CI says that this is a run of the continuous
// integration.
func inCI() bool {
	ci := os.Getenv("CI")
	return ci != "" && ci != "false" && ci != "0"
}

// Eventually waits until ok returns true. It fails the test, naming what it waited for, if that
// does not happen within Patience.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	EventuallyNil(t, what, func() error {
		if !ok() {
			return errNotYet
		}
		return nil
	})
}

// errNotYet says that a condition of Eventually does not hold.
var errNotYet = errors.New("the condition does not hold")

// EventuallyNil waits until ok returns nil. It fails the test with the last error if that does not
// happen within Patience.
func EventuallyNil(t testing.TB, what string, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for interval := firstPollInterval; ; interval = min(2*interval, maxPollInterval) {
		began := time.Now()
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, Patience, err)
		}
		time.Sleep(max(interval, min(3*time.Since(began), costlyPollInterval)))
	}
}
