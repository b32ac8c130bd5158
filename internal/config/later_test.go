package config

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What comes later is refused in so many words, every row of the table.
func TestLater(t *testing.T) {
	t.Parallel()
	model := "models: [{name: a, engine: sim, task: embedding, "
	files := map[string]string{
		"envoy_admin":                   "envoy_admin: 127.0.0.1:7000",
		"models[].stream.mode=managed":  model + "stream: {mode: managed}}]",
		"models[].stream.heartbeat":     model + "stream: {heartbeat: 15s}}]",
		"models[].stream.resume":        model + "stream: {resume: 5s}}]",
		"models[].stream.ttft_timeout":  model + "stream: {ttft_timeout: 0s}}]",
		"models[].stream.stall_timeout": model + "stream: {stall_timeout: 0s}}]",
		"models[].stream.inject_usage":  model + "stream: {inject_usage: false}}]",
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(later())), slices.Sorted(maps.Keys(files))); diff != "" {
		t.Fatalf("rows of the table and files that provoke them: %s", diff)
	}
	for row, file := range files {
		faults := faultsOf(t, file)
		if len(faults) != 1 || !strings.HasSuffix(faults[0], "not supported by this version yet ("+later()[row]+")") || strings.Contains(faults[0], "secret") {
			t.Errorf("%s: %q", row, faults)
		}
	}
}
