package gateway

import (
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/condition"
)

// An operator who runs Envoy is told to start it, and not that Sluice does.
func TestB5_SluiceDoesNotStartAnEnvoyOfOthers(t *testing.T) {
	t.Parallel()
	r := condition.New(zap.NewNop())
	r.AddSource(func() []condition.Condition { return []condition.Condition{envoyAway()} })
	for _, c := range r.List() {
		if c.Type == condition.EnvoyUnresponsive && (strings.Contains(c.Message, "by itself") || !strings.Contains(c.Message, "`sluice bootstrap`")) {
			t.Errorf("the condition says: %s", c.Message)
		}
	}
}
