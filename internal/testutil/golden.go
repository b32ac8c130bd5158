package testutil

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Golden fails the test if the file is not want, which was generated. With update it writes the
// file first. Each package with such a file has a flag -update.
func Golden(t testing.TB, path, want string, update bool) {
	t.Helper()
	if update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("run the test with -update: %v", err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is out of date; run the test with -update (-want +got):\n%s", path, diff)
	}
}
