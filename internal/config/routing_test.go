package config

import (
	"strings"
	"testing"
)

// TestStrategies checks that the file accepts every strategy of the table and no other, and that a
// fault lists all of them.
func TestStrategies(t *testing.T) {
	t.Parallel()
	var all []string
	for _, strategy := range Strategies() {
		all = append(all, string(strategy))
		c := parsed(t, sims+", routing: {strategy: "+string(strategy)+"}}]")
		if got := c.Models[0].Routing.Strategy; got != strategy {
			t.Errorf("strategy %s was read as %q", strategy, got)
		}
	}
	faults := faultsOf(t, sims+", routing: {strategy: fastest}}]")
	want := "1: models[a].routing.strategy: must be one of " + strings.Join(all, ", ") + ", is fastest"
	if len(faults) != 1 || faults[0] != want {
		t.Errorf("faults %q, want %q", faults, want)
	}
}
