package condition

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// alertedTypes matches the types of conditions in a rule of Prometheus.
var alertedTypes = regexp.MustCompile(`\btype=~?"([^"]+)"`)

// TestS17_EveryConditionAlerts: one alert names each condition that an operator must act on, and no
// alert names a type that does not exist.
func TestS17_EveryConditionAlerts(t *testing.T) {
	rules, err := os.ReadFile(filepath.Join(testutil.Root(), "examples", "monitoring", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]int{}
	for _, m := range alertedTypes.FindAllStringSubmatch(string(rules), -1) {
		for name := range strings.SplitSeq(m[1], "|") {
			named[name]++
		}
	}
	for _, r := range types {
		want := 1
		if r.severity == Info {
			want = 0
		}
		if n := named[string(r.kind)]; n != want {
			t.Errorf("%d alerts name %s (%s), want %d", n, r.kind, r.severity, want)
		}
		delete(named, string(r.kind))
	}
	if len(named) > 0 {
		t.Errorf("alerts name conditions that do not exist: %v", named)
	}
}
