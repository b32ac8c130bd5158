package admission

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// hugeTokens is the estimate for a request that asks for a million answers.
const hugeTokens = 256 << 20

// sharing has tenants that always have five requests of 300 tokens waiting. Each takes a tenth of a
// second.
type sharing struct {
	testController
	ctx context.Context

	mu           sync.Mutex
	served, late map[string]int // guarded by mu
}

func (s *sharing) keepAsking(tenant string, r Request) {
	r.Tenant, r.Tokens = tenant, 300
	for range 5 {
		go func() {
			for s.ctx.Err() == nil {
				l, err := s.Admit(s.ctx, r)
				s.count(tenant, err)
				if err == nil {
					time.Sleep(100 * time.Millisecond)
					l.Release()
				}
			}
		}()
	}
	synctest.Wait()
}

func (s *sharing) count(tenant string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.served[tenant]++
	case errors.Is(err, ErrTimeout):
		s.late[tenant]++
	}
}

// admitHuge sends a request with a huge estimate, which costs nothing in the end.
func (s *sharing) admitHuge() {
	if l, err := s.Admit(s.ctx, Request{Model: "chat", Tenant: "huge", Tokens: hugeTokens}); err == nil {
		l.Correct(0)
		l.Release()
	}
}

// runSharing runs so for ten minutes at a model with one lease at a time, whose pool is "auto".
// Neither of the tenants "a" and "b" may wait for more than a minute, or get much less than the
// other.
func runSharing(t *testing.T, run func(s *sharing)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		d := newTestController(t, Limits{MaxConcurrent: 1})
		s := &sharing{testController: d, ctx: ctx, served: map[string]int{}, late: map[string]int{}}
		s.SetPools(map[string][]string{"auto": {"chat"}})
		run(s)
		time.Sleep(10 * time.Minute)
		stop()
		synctest.Wait()
		time.Sleep(time.Second)
		t.Logf("served %v, late %v", s.served, s.late)
		if s.late["a"]+s.late["b"] > 0 {
			t.Errorf("late: %v, want none", s.late)
		}
		if least, most := min(s.served["a"], s.served["b"]), max(s.served["a"], s.served["b"]); least < most*8/10 {
			t.Errorf("served: %v, want about the same for a and b", s.served)
		}
	})
}

// TestHugeEstimateThatWaits: a waiting request with a huge estimate makes no round of the fair
// order longer.
func TestHugeEstimateThatWaits(t *testing.T) {
	t.Parallel()
	runSharing(t, func(s *sharing) {
		s.keepAsking("a", Request{Model: "chat"})
		s.keepAsking("b", Request{Model: "chat"})
		go func() {
			for s.ctx.Err() == nil {
				s.admitHuge()
			}
		}()
	})
}

// TestHugeEstimateInQueueOfModel: after a request with a huge estimate to a model, the other
// requests to the model are served beside those to its pool.
func TestHugeEstimateInQueueOfModel(t *testing.T) {
	t.Parallel()
	runSharing(t, func(s *sharing) {
		s.keepAsking("a", Request{Pool: "auto"})
		go s.admitHuge()
		time.Sleep(time.Second)
		s.keepAsking("b", Request{Model: "chat"})
	})
}

// TestHugeTaskKeepsWeights: a task with a huge estimate does not send all that follows to the other
// models of its pool.
func TestHugeTaskKeepsWeights(t *testing.T) {
	t.Parallel()
	c := New(Config{})
	c.SetLimits("one", Limits{MaxConcurrent: 10})
	c.SetLimits("two", Limits{MaxConcurrent: 10})
	c.SetPools(map[string][]string{"auto": {"one", "two"}})
	runTask := func(tenant string, tokens int) (model string) {
		task, _, err := c.Schedule(t.Context(), TaskRequest{Pool: "auto", Tenant: tenant, Tokens: tokens})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Complete(t.Context(), tenant, task.ID, 0); err != nil {
			t.Fatal(err)
		}
		return task.Model
	}
	runTask("other", 1800)
	runTask("huge", hugeTokens)
	got := map[string]int{}
	for range 1000 {
		got[runTask("other", 1800)]++
	}
	if got["one"] < 450 || got["two"] < 450 {
		t.Errorf("1,000 tasks went to %v, want about as many to each model", got)
	}
}
