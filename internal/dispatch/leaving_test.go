package dispatch

import (
	"testing"
	"testing/synctest"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
)

// The rules of a removed model go before the model does. Its waiters wait until the model has gone,
// and are then refused. A model of this name that comes later has other limits.
func TestTheLimitsOfARemovedModelHoldUntilItHasGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		s.SetRules(Rules{Models: map[string]Policy{"m": {Limits: admission.Limits{MaxConcurrent: 1}}}})
		s.put("m", replicas("a")...)
		s.must(t, newRequest("m", "k")).Release()
		running := s.must(t, newRequest("m", "k"))
		waits := s.queue("m")
		s.SetRules(Rules{})
		s.SetRules(Rules{}) // as when a file is read again
		synctest.Wait()
		select {
		case <-waits:
			t.Error("a request that waited went to a replica of a model that is removed")
		default:
		}
		s.fleet.Set("test-m", engines.Part{})
		s.rebuild()
		if ticket := <-waits; ticket != nil {
			t.Errorf("a request for a removed model got %+v", ticket)
		}
		running.Release()
		s.put("m", replicas("a")...)
		s.must(t, newRequest("m", "k"))
		s.must(t, newRequest("m", "k"))
	})
}
