package testutil

import (
	"os"
	"path/filepath"
	"testing"
)

// recorder is a test that records how it ended instead of ending.
type recorder struct {
	testing.TB
	failed, skipped bool
}

func (r *recorder) Helper()      {}
func (r *recorder) Fatal(...any) { r.failed = true }
func (r *recorder) Skip(...any)  { r.skipped = true }

func TestRoot(t *testing.T) {
	if _, err := os.Stat(filepath.Join(Root(), "go.mod")); err != nil {
		t.Error(err)
	}
}

// TestAMissingToolFailsOnlyInCI: a missing tool skips a test of a developer and fails one of the
// continuous integration.
func TestAMissingToolFailsOnlyInCI(t *testing.T) {
	for ci, fails := range map[string]bool{"": false, "false": false, "true": true} {
		t.Setenv("CI", ci)
		r := &recorder{TB: t}
		Tool(r, "no-such-tool")
		if r.failed != fails || r.skipped == fails {
			t.Errorf("CI=%q: %+v", ci, r)
		}
	}
}

// TestEventually checks that Eventually returns as soon as its condition holds.
func TestEventually(t *testing.T) {
	checks := 0
	Eventually(t, "the third check", func() bool {
		checks++
		return checks == 3
	})
	if checks != 3 {
		t.Errorf("the condition was checked %d times, want 3", checks)
	}
}
