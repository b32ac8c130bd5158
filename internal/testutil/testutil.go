// Package testutil finds what tests need beside the code. Tests of any package use it.
package testutil

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
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
	message := path + " is missing: run `make tools`"
	if inCI() {
		t.Fatal(message)
	} else {
		t.Skip(message)
	}
	return path
}

// inCI tells whether the environment variable CI says that this is a run of the continuous
// integration.
func inCI() bool {
	ci := os.Getenv("CI")
	return ci != "" && ci != "false" && ci != "0"
}
