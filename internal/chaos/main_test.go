package main

import (
	"strings"
	"testing"
)

// A name that no fault has is refused. It ran no fault before, and wrote an empty table.
func TestUnknownFaultsAreRefused(t *testing.T) {
	for only, want := range map[string]int{"": len(faults), "envoy-kill": 1, "redis-kill,none": 2} {
		if chosen, err := choose(only); err != nil || len(chosen) != want {
			t.Errorf("-only %q: %d faults, %v", only, len(chosen), err)
		}
	}
	for _, only := range []string{"envoy-kil", "none,envoy", "none, envoy-kill", ","} {
		if chosen, err := choose(only); err == nil || !strings.Contains(err.Error(), "redis-kill") {
			t.Errorf("-only %q: %d faults, %v, want an error with the names that there are", only, len(chosen), err)
		}
	}
}
