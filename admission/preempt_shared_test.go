package admission_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// startPreemptible asks for a preemptible lease, and counts how often it is preempted.
func (s *testGateway) startPreemptible(r admission.Request) (*admitCall, *atomic.Int64) {
	n := new(atomic.Int64)
	r.Unlocked.OnPreempt = func() { n.Add(1) }
	v := s.start(s.t.Context(), r)
	s.wantAdmitted(v, 10*time.Millisecond)
	return v, n
}

// modelTokensLeft is the level of the model's bucket.
func (s *testGateway) modelTokensLeft() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bucketLocked("model chat", 1000).left
}

// TestSharedPreemption: with shared state a lease of this gateway is preempted, and its charge is
// given back there too.
func TestSharedPreemption(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestGateway(t, newFakeStore(), admission.Limits{MaxConcurrent: 2, TokensPerMinute: 1000})
		batch := admission.Request{Tenant: "t", Priority: admission.Batch, Tokens: 100}
		older, first := s.startPreemptible(batch)
		younger, second := s.startPreemptible(batch)
		urgent := s.start(t.Context(), admission.Request{Priority: admission.Interactive, Tokens: 10})
		s.wantWaiting(urgent)
		if first.Load() != 0 || second.Load() != 1 {
			t.Fatalf("preempted %d and %d times", first.Load(), second.Load())
		}
		before := s.modelTokensLeft()
		younger.state().lease.Release()
		s.wantAdmitted(urgent, 50*time.Millisecond)
		// and what the bucket gains meanwhile
		if got := s.modelTokensLeft() - before; got < 90 || got > 92 {
			t.Errorf("%v tokens came back, less the 10 of the urgent one", got)
		}
		if !older.state().lease.FirstToken() {
			t.Error("a first token came too late")
		}
		late := s.start(t.Context(), admission.Request{Priority: admission.Interactive})
		s.wantWaiting(late)
		older.state().lease.Release()
		urgent.state().lease.Release()
		s.wantAdmitted(late, time.Second)
		if late.state().lease.Release(); first.Load() != 0 {
			t.Error("preempted after its first token")
		}
	})
}

// TestSharedPreemptedComesAgain: a preempted request whose tenant is at its limit of requests at
// once waits, where a new one is refused.
func TestSharedPreemptedComesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		here, other := newTestGateway(t, store, admission.Limits{MaxQueue: -1}), newTestGateway(t, store, admission.Limits{})
		limits := map[string]admission.TenantLimits{"t": {MaxConcurrent: 1}}
		here.SetTenants(limits)
		other.SetTenants(limits)
		running := other.start(t.Context(), admission.Request{Tenant: "t"})
		other.wantAdmitted(running, 10*time.Millisecond)
		here.wantRefused(here.start(t.Context(), admission.Request{Tenant: "t"}), admission.TenantStreams)
		again := here.start(t.Context(), admission.Request{Tenant: "t", Preempted: true})
		here.wantWaiting(again)
		running.state().lease.Release()
		here.wantAdmitted(again, time.Second)
		again.state().lease.Release()
	})
}
