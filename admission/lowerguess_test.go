package admission

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestLowerLimitLowersGuesses: a limit falls below the estimate for a request that waits. Since
// most of the estimate is a guess, it is lowered as on arrival, and the request waits on.
func TestLowerLimitLowersGuesses(t *testing.T) {
	t.Parallel()
	lowerModel := func(d testController) { d.SetLimits("chat", Limits{MaxConcurrent: 1, TokensPerMinute: 400}) }
	lowerTenant := func(d testController) { d.SetTenants(map[string]TenantLimits{"a": {TokensPerMinute: 400}}) }
	for name, test := range map[string]struct {
		ask   Request
		lower func(d testController)
	}{
		"model":            {Request{Model: "chat"}, lowerModel},
		"model of a pool":  {Request{Pool: "auto"}, lowerModel},
		"tenant":           {Request{Model: "chat"}, lowerTenant},
		"tenant in a pool": {Request{Pool: "auto"}, lowerTenant},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newTestController(t, Limits{MaxConcurrent: 1, TokensPerMinute: 10_000})
				d.SetPools(map[string][]string{"auto": {"chat"}})
				d.SetTenants(map[string]TenantLimits{"a": {TokensPerMinute: 10_000}})
				running := d.startTokens(0)
				test.ask.Tenant, test.ask.Tokens, test.ask.Guessed = "a", 600, 500
				waiting := d.start(t.Context(), test.ask)
				test.lower(d)
				d.wantWaiting(waiting)
				d.wantWaitingTokens("a", 400)
				time.Sleep(time.Second)
				running.release()
				d.wantAdmitted(waiting, time.Second)
				if got := waiting.state().lease.Tokens(); got != 400 {
					t.Errorf("charged %d tokens, want 400", got)
				}
				d.wantWaitingTokens("a", 0)
				waiting.release()
			})
		})
	}
}

// TestLowerLimitLowersGuessUnderTask: the task covers a part of the estimate that is lowered.
func TestLowerLimitLowersGuessUnderTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{})
		task, _, err := d.Schedule(t.Context(), TaskRequest{Model: "chat", Tenant: "a", Tokens: 100})
		if err != nil {
			t.Fatal(err)
		}
		hasSlot := false
		waiting := d.start(t.Context(), Request{Tenant: "a", UnderTask: task.ID, Tokens: 600, Guessed: 500,
			Locked: LockedHooks{ReserveSlot: func(string) (Slot, bool) { return Slot{}, hasSlot }}})
		d.wantWaitingTokens("a", 500)
		d.SetLimits("chat", Limits{TokensPerMinute: 400})
		d.wantWaiting(waiting)
		d.wantWaitingTokens("a", 300)
		hasSlot = true
		d.RetryWaiters("chat")
		d.wantAdmitted(waiting, 0)
		d.wantWaitingTokens("a", 0)
		waiting.release()
	})
}

// wantWaitingTokens fails the test unless the sums of waiters agree that this many tokens wait.
func (d testController) wantWaitingTokens(tenant string, want int64) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	inBands, inFlows := int64(0), int64(0)
	for _, q := range []*queue{&d.gates["chat"].queue, d.queueOfPool("auto")} {
		for b := range q.bands {
			inBands += q.bands[b].tokens
			for _, f := range q.bands[b].flows {
				inFlows += f.tokens
			}
		}
	}
	if got := d.tenants[tenant].waitingTokens; got != want || inBands != want || inFlows != want {
		d.t.Errorf("%d tokens of the tenant, %d in bands and %d in flows wait, want %d", got, inBands, inFlows, want)
	}
}

func (d testController) queueOfPool(name string) *queue {
	if p := d.pools[name]; p != nil {
		return &p.queue
	}
	return &queue{}
}
