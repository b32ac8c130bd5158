package request

import "testing"

// TestX2_ADoubtedUsageIsReplaced: neither way of a request keeps a usage that cannot be true.
func TestX2_ADoubtedUsageIsReplaced(t *testing.T) {
	told, size := UsageOf(10, 1<<31, 5), Usage{Prompt: 11, Completion: 20}
	managed := Outcome{Answered: true, Usage: told}
	managed.Estimate(Cost{Usage: size, Doubted: true})
	if managed.Usage != size {
		t.Errorf("managed: %+v", managed.Usage)
	}
	for source, want := range map[string]Usage{"engine": size, "gateway": {}} {
		native := Summary{Source: source, Route: RouteNative, Status: 200}
		native.setUsage(told)
		native.estimate(Cost{Usage: size, Doubted: true})
		if native.Usage() != want {
			t.Errorf("native, answered by the %s: %+v", source, native.Usage())
		}
	}
}
