package admission

import (
	"testing"
	"testing/synctest"
	"time"
)

// startWithHandle starts an Admit and returns the handle for its position.
func (d testController) startWithHandle(tenant string, r Request) *WaitHandle {
	d.t.Helper()
	r.Tenant, r.WaitHandle = tenant, new(WaitHandle)
	d.start(d.t.Context(), r)
	time.Sleep(time.Nanosecond) // of equal requests the older is first
	return r.WaitHandle
}

func (d testController) wantPositions(want map[*WaitHandle]int) {
	d.t.Helper()
	for s, n := range want {
		if got := d.Position(s); got != n {
			d.t.Errorf("position %d, want %d", got, n)
		}
	}
}

// TestPositionsAreTheOrder: waiters are admitted one by one, and each must have position 1 just
// before.
func TestPositionsAreTheOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1, QueueTimeout: time.Hour})
		d.SetTenants(map[string]TenantLimits{"heavy": {Weight: 2}})
		current := d.startTokens(0)
		r := Request{Tokens: 10}
		var many []*WaitHandle
		for range 20 {
			many = append(many, d.startWithHandle("many", r))
		}
		one, heavy, second := d.startWithHandle("one", r), d.startWithHandle("heavy", r), d.startWithHandle("heavy", r)
		urgent := d.startWithHandle("one", Request{Priority: Interactive})
		batch := d.startWithHandle("one", Request{Priority: Batch})
		// two of heavy's requests go for one of the others
		d.wantPositions(map[*WaitHandle]int{urgent: 1, heavy: 2, many[0]: 3, one: 4, second: 5, many[1]: 6, many[19]: 24, batch: 25, new(WaitHandle): 0})
		current.release()
		synctest.Wait()
		d.wantPositions(map[*WaitHandle]int{urgent: 0, heavy: 1, batch: 24})
		d.Close()
		synctest.Wait()
		d.wantPositions(map[*WaitHandle]int{heavy: 0, batch: 0})
	})
}

// TestPositionsBesideOthers: waiters behind a limit of their own tenant do not count, and a long
// queue is not counted to its end.
func TestPositionsBesideOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 2, MaxQueue: 5000, QueueTimeout: time.Hour})
		d.SetTenants(map[string]TenantLimits{"capped": {MaxPrefill: 1}})
		d.start(t.Context(), Request{Tenant: "capped", Prefill: true})
		parked := d.startWithHandle("capped", Request{Prefill: true})
		d.startTokens(0)
		first := d.startWithHandle("t", Request{})
		d.wantPositions(map[*WaitHandle]int{first: 1, parked: 1})
		for range maxWalked {
			d.startWithHandle("t", Request{})
		}
		last := d.startWithHandle("t", Request{})
		d.wantPositions(map[*WaitHandle]int{first: 1, last: maxWalked + 3}) // all waiters
		d.Close()
		synctest.Wait()
	})
}
