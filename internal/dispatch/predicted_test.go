package dispatch

import (
	"testing"
	"time"
)

// The flow of the model outlives a change of its replicas, and View counts those that may be
// picked.
func TestU7_ViewHasThePredictions(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("m", replicas("a", "b")...)
	s.table.Load().routes["m"].estimator.recent.Add(time.Now(), 3*time.Second, time.Second)
	s.put("m", replicas("a", "b", "c")...)
	v, _ := s.View("m")
	if v.Ready != 3 {
		t.Errorf("%d replicas are ready, want 3", v.Ready)
	}
	if p := v.Predicted; p.Requests > 0 && (p.TTFT/p.Requests-3 > 1e-9 || p.Prefill/p.Requests-1 > 1e-9) {
		t.Errorf("predicted is %v", p)
	}
}
