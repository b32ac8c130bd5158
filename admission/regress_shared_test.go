package admission_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// TestSharedPollKeepsNobody: a task that does not wait lacked tokens. A request that needs fewer is neither told to stay away as long,
// nor does it wait.
func TestSharedPollKeepsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, newStore(), admission.Limits{TokensPerMinute: 6000})
		s.SetPools(map[string][]string{"auto": {"chat"}})
		s.wantIn(s.ask(t.Context(), admission.Request{Tokens: 3000}), time.Millisecond)
		for _, r := range []admission.TaskRequest{{Model: "chat"}, {Pool: "auto"}} {
			r.Tokens = 6000
			if _, wait, err := s.Schedule(t.Context(), r); err != nil || wait < 20*time.Second {
				t.Fatal(wait, err)
			}
			s.wantIn(s.ask(t.Context(), admission.Request{Tokens: 10}), 10*time.Millisecond)
		}
	})
}

// TestSharedTokensOfOneThatLeft: who waits behind one that lacks tokens goes when that leaves.
func TestSharedTokensOfOneThatLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, newStore(), admission.Limits{TokensPerMinute: 6000})
		s.wantIn(s.ask(t.Context(), admission.Request{Tokens: 3000}), time.Millisecond)
		ctx, leave := context.WithCancel(t.Context())
		large := s.ask(ctx, admission.Request{Tokens: 6000})
		s.wantWaiting(large)
		small := s.ask(t.Context(), admission.Request{Tokens: 10})
		s.wantWaiting(large, small)
		leave()
		s.wantIn(small, 10*time.Millisecond)
	})
}

// TestSharedAnswerOfOldLimits: limits change while a question is on its way. What the answer says of the old ones keeps nobody.
func TestSharedAnswerOfOldLimits(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*site){
		"model":  func(s *site) { s.SetLimits("chat", admission.Limits{}) },
		"tenant": func(s *site) { s.SetTenants(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, newStore(), admission.Limits{TokensPerMinute: 600})
				if name == "tenant" {
					s.SetLimits("chat", admission.Limits{})
					s.SetTenants(map[string]admission.TenantLimits{"a": {TokensPerMinute: 600}})
				}
				s.wantIn(s.ask(t.Context(), admission.Request{Tenant: "a", Tokens: 600}), time.Millisecond)
				s.set(func() { s.meanwhile = func() { change(s) } })
				s.wantIn(s.ask(t.Context(), admission.Request{Tenant: "a", Tokens: 600}), 10*time.Millisecond)
			})
		})
	}
}

// TestSharedFreedMeanwhile: a lease ends while a question is on its way, and the answer does not know of it.
func TestSharedFreedMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, newStore(), admission.Limits{MaxConcurrent: 1})
		first := s.ask(t.Context(), admission.Request{})
		s.wantIn(first, time.Millisecond)
		s.set(func() { s.meanwhile = first.get().lease.Release })
		s.wantIn(s.ask(t.Context(), admission.Request{}), 5*time.Millisecond)
	})
}

// TestSharedDenialEndsWithWhoWaited: what a tenant lacked for one that waited and has left is nothing to the next.
func TestSharedDenialEndsWithWhoWaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		here, there := newSite(t, store, admission.Limits{MaxConcurrent: 1}), newSite(t, store, admission.Limits{MaxConcurrent: 1})
		for _, s := range []*site{here, there} {
			s.SetTenants(map[string]admission.TenantLimits{"a": {TokensPerMinute: 600}})
		}
		there.SetLimits("other", admission.Limits{})
		busy := there.ask(t.Context(), admission.Request{})
		there.wantIn(busy, time.Millisecond)
		ctx, leave := context.WithCancel(t.Context())
		large := here.ask(ctx, admission.Request{Tenant: "a", Tokens: 600})
		here.wantWaiting(large)
		there.wantIn(there.ask(t.Context(), admission.Request{Model: "other", Tenant: "a", Tokens: 300}), time.Millisecond)
		busy.get().lease.Release()
		here.wantWaiting(large)
		leave()
		synctest.Wait()
		here.wantIn(here.ask(t.Context(), admission.Request{Tenant: "a", Tokens: 10}), 10*time.Millisecond)
	})
}
