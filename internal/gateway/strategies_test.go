package gateway

import (
	"slices"
	"testing"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/dispatch"
)

// Every strategy that a file may name exists, and every one that exists may be named.
func TestStrategiesOfFileAndDispatch(t *testing.T) {
	var named, exist []string
	for _, s := range config.Strategies() {
		named = append(named, string(s))
	}
	for _, s := range dispatch.Strategies() {
		exist = append(exist, string(s))
	}
	slices.Sort(named)
	slices.Sort(exist)
	if !slices.Equal(named, exist) {
		t.Errorf("a file may name %v, and dispatch has %v", named, exist)
	}
}
