package gateway

import (
	"testing"

	"github.com/sluice-gateway/sluice/internal/config"
)

// TestBoundByRoute: the routes of Envoy have the longest bound of all models. A request to a model
// with a shorter one has to carry it.
func TestBoundByRoute(t *testing.T) {
	for file, want := range map[string]map[string]bool{
		"models: [{name: a, engine: sim}, {name: b, engine: sim, stream: {max_duration: 2s}}]": {"a": true, "b": false},
		"models: [{name: a, engine: sim}, {name: b, engine: sim, stream: {max_duration: 1h}}]": {"a": false, "b": true},
	} {
		c, err := config.Parse("f", []byte(file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range c.Models {
			if p := policy(m, maxDuration(c)); p.BoundByRoute != want[m.Name] || p.MaxDuration == 0 {
				t.Errorf("%s: the policy of %s: %+v", file, m.Name, p)
			}
		}
	}
}
