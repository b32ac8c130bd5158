package dispatch

import "testing"

// TestViewCountsEveryRequest: the scaler keeps a model for requests that come and go between two
// updates, so all of them count, also those whose tokens are measured anyway.
func TestViewCountsEveryRequest(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	s.must(t, newRequest("m", "k")).Release()
	tells := newRequest("m", "k")
	tells.TellsUsage = true
	s.must(t, tells).Release()
	if v, _ := s.View("m"); v.Admitted != 2 {
		t.Errorf("%d admitted, want 2", v.Admitted)
	}
}
