package config

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUnsupported checks that every row of the table of unsupported fields is refused with its
// text.
func TestUnsupported(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"envoy_admin": "envoy_admin: 127.0.0.1:7000",
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(unsupported())), slices.Sorted(maps.Keys(files))); diff != "" {
		t.Fatalf("rows of the table (-) and files of this test (+) differ: %s", diff)
	}
	for row, file := range files {
		faults := faultsOf(t, file)
		if len(faults) != 1 || !strings.HasSuffix(faults[0], "not supported by this version ("+unsupported()[row]+"): remove it") || strings.Contains(faults[0], "secret") {
			t.Errorf("%s: %q", row, faults)
		}
	}
}
