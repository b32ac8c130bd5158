package admission

import (
	"testing"
	"testing/synctest"
	"time"
)

// spot asks for a place in the queue, and can be looked at.
func (d desk) spot(tenant string, r Request) *Spot {
	d.t.Helper()
	r.Tenant, r.Spot = tenant, new(Spot)
	d.ask(d.t.Context(), r)
	time.Sleep(time.Nanosecond) // of equals the older is first
	return r.Spot
}

func (d desk) positions(want map[*Spot]int) {
	d.t.Helper()
	for s, n := range want {
		if got := d.Position(s); got != n {
			d.t.Errorf("position %d, want %d", got, n)
		}
	}
}

// The position is that in which they go: those who wait are let in one by one, and each must be the first then.
func TestPositionsAreTheOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, Limits{MaxConcurrent: 1, QueueTimeout: time.Hour})
		d.SetTenants(map[string]TenantLimits{"heavy": {Weight: 2}})
		current := d.request(0)
		r := Request{Tokens: 10}
		var many []*Spot
		for range 20 {
			many = append(many, d.spot("many", r))
		}
		one, heavy, second := d.spot("one", r), d.spot("heavy", r), d.spot("heavy", r)
		urgent := d.spot("one", Request{Priority: Interactive})
		batch := d.spot("one", Request{Priority: Batch})
		// of heavy two go for one of the others
		d.positions(map[*Spot]int{urgent: 1, heavy: 2, many[0]: 3, one: 4, second: 5, many[1]: 6, many[19]: 24, batch: 25, new(Spot): 0})
		current.release()
		synctest.Wait()
		d.positions(map[*Spot]int{urgent: 0, heavy: 1, batch: 24})
		d.Close()
		synctest.Wait()
		d.positions(map[*Spot]int{heavy: 0, batch: 0})
	})
}

// Who waits behind a limit of its own tenant is in nobody's way, and a long queue is not counted through.
func TestPositionsBesideOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, Limits{MaxConcurrent: 2, MaxQueue: 5000, QueueTimeout: time.Hour})
		d.SetTenants(map[string]TenantLimits{"capped": {MaxPrefill: 1}})
		d.ask(t.Context(), Request{Tenant: "capped", Prefill: true})
		parked := d.spot("capped", Request{Prefill: true})
		d.request(0)
		first := d.spot("t", Request{})
		d.positions(map[*Spot]int{first: 1, parked: 1})
		for range walked {
			d.spot("t", Request{})
		}
		last := d.spot("t", Request{})
		d.positions(map[*Spot]int{first: 1, last: walked + 3}) // all that are there
		d.Close()
		synctest.Wait()
	})
}
