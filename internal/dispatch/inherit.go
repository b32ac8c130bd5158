package dispatch

import (
	"maps"
	"slices"
	"sync"

	"github.com/sluice-gateway/sluice/admission"
)

// inheritance is the requests that still run from before a restart: Envoy kept them going, nobody here knows more of them than
// where they are. Each holds a slot on its replica and a lease of its model, so that no limit is exceeded meanwhile. The zero
// value is ready to use.
type inheritance struct {
	mu sync.Mutex
	// held by replica; guarded by mu
	held map[Place][]inherited
}

// Place is a replica as Envoy names it: a model, and an address (ip:port).
type Place struct{ Model, Address string }

// inherited is one such request.
type inherited struct {
	lease   *admission.Lease
	counter *counter
	replica string
}

// Inherit counts the requests of before a restart that still run, by where they are. A place that is nobody's any more is ignored:
// its requests weigh on no replica that could be picked.
func (d *Dispatcher) Inherit(running map[Place]int) {
	d.rebuild() // Run may not have followed the fleet yet
	for at, n := range running {
		if id, ok := d.replicaAt(at); ok && n > 0 {
			d.inherit(at, id, n)
		}
	}
}

func (d *Dispatcher) inherit(at Place, id string, n int) {
	d.mu.Lock()
	c := d.counterLocked(id)
	d.mu.Unlock()
	d.past.mu.Lock()
	defer d.past.mu.Unlock()
	if d.past.held == nil {
		d.past.held = map[Place][]inherited{}
	}
	for range n {
		lease, err := d.admission.Resume(at.Model)
		if err != nil {
			return
		}
		c.load.Add(1)
		d.past.held[at] = append(d.past.held[at], inherited{lease, c, id})
	}
}

// Settle is told how many of the inherited requests may be left at most at each place (none where it says nothing), and frees the
// others: they have ended.
func (d *Dispatcher) Settle(most map[Place]int) {
	d.past.mu.Lock()
	places := slices.Collect(maps.Keys(d.past.held))
	d.past.mu.Unlock()
	for _, at := range places {
		d.settle(at, func(int) int { return most[at] })
	}
}

// SettleOne frees one of the inherited requests at this place, if there is one: it has ended.
func (d *Dispatcher) SettleOne(at Place) {
	d.settle(at, func(now int) int { return now - 1 })
}

func (d *Dispatcher) settle(at Place, left func(now int) int) {
	d.past.mu.Lock()
	held := d.past.held[at]
	keep := max(left(len(held)), 0)
	if keep >= len(held) {
		d.past.mu.Unlock()
		return
	}
	ended := held[keep:]
	d.past.held[at] = held[:keep]
	if keep == 0 {
		delete(d.past.held, at)
	}
	d.past.mu.Unlock()
	for _, r := range ended {
		r.counter.load.Add(-1)
		r.lease.Release()
		d.freed(r.replica, at.Model)
	}
}

// Inherited is the number of inherited requests that still run.
func (d *Dispatcher) Inherited() int {
	d.past.mu.Lock()
	defer d.past.mu.Unlock()
	n := 0
	for _, held := range d.past.held {
		n += len(held)
	}
	return n
}

func (d *Dispatcher) replicaAt(at Place) (id string, ok bool) {
	m, ok := d.fleet.Snapshot().Models[at.Model]
	if !ok {
		return "", false
	}
	for _, r := range m.Replicas {
		if r.Address.String() == at.Address {
			return r.ID, true
		}
	}
	return "", false
}
