package telemetry

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestU10_EnginesInTheMetrics: what engines tell is in the metrics as long as the replica is there,
// and what they do not tell is not.
func TestU10_EnginesInTheMetrics(t *testing.T) {
	t.Parallel()
	engines := []EngineGauges{
		{Model: "chat", Replica: "chat-0", Running: 3, Waiting: 0, KVUsage: 0.5},
		{Model: "chat", Replica: "chat-1", Running: -1, Waiting: 2, KVUsage: -1},
		{Model: "beyond", Replica: "beyond-0", Running: 9},
	}
	m := NewMetrics(MetricsConfig{MaxModels: 1, Gauges: func() Gauges { return Gauges{Engines: engines} }})
	want := []string{
		`sluice_engine_kv_usage{model="chat",replica="chat-0"} 0.5`,
		`sluice_engine_running{model="chat",replica="chat-0"} 3`,
		`sluice_engine_waiting{model="chat",replica="chat-0"} 0`,
		`sluice_engine_waiting{model="chat",replica="chat-1"} 2`,
	}
	if diff := cmp.Diff(want, scrape(t, m, "sluice_engine_")); diff != "" {
		t.Error(diff)
	}
	engines = nil
	if left := scrape(t, m, "sluice_engine_"); len(left) > 0 {
		t.Errorf("engines that have gone: %q", left)
	}
}
