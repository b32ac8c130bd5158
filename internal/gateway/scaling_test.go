package gateway

import (
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/scale"
)

// The targets of the file, and what the catalogue says of replicas before one runs, reach the
// scaler.
func TestU7_TargetsReachTheScaler(t *testing.T) {
	t.Parallel()
	c, err := config.Parse("f", []byte(`models:
  - {name: a, engine: sim, replicas: {max: 3}, cooldown: 1m, scale: {target: {running: 16}}, variables: {max_num_seqs: 40}}
  - {name: b, engine: sim, replicas: {min: 0, max: 2}, scale: {target: {ttft: 800ms}}}
  - {name: c, launcher: upstream, upstreams: [http://h:1]}
`))
	if err != nil {
		t.Fatal(err)
	}
	all := scales(c)
	if got, want := all["a"], (scale.Model{Min: 1, Max: 3, Cooldown: time.Minute, PerReplica: 40, Target: scale.Target{Running: 16}}); got != want {
		t.Errorf("a is %+v, want %+v", got, want)
	}
	if got, want := all["b"].Target, (scale.Target{TTFT: 800 * time.Millisecond}); got != want {
		t.Errorf("the target of b is %+v, want %+v", got, want)
	}
	if len(all) != 2 {
		t.Errorf("%d models, want 2", len(all))
	}
}
