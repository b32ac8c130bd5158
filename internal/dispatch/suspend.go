package dispatch

import (
	"maps"
	"net/netip"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/steady"
)

// Failure is a set of kinds of failures that a replica causes. What a client causes (a 4xx, or that
// it disconnects) is not a failure.
type Failure uint8

// The kinds of failures.
const (
	// Connect: the replica accepted no connection.
	Connect Failure = 1 << iota
	// Reset: the replica broke off a connection that had a request on it.
	Reset
	// FiveHundreds: the replica answered with status 500 or more, but not 503.
	FiveHundreds
	// Unavailable: the replica answered 503, which an engine answers when it is overloaded.
	Unavailable
	// Silent: silentInARow requests in a row had no byte of an answer when their clients left or
	// their time was over, silentAfter or later. It counts under every policy.
	Silent
	// Stuck: the replica is Silent for stuckInARow requests in a row, and the first of them ended
	// stuckAfter ago or earlier. The count then begins again.
	Stuck
)

// always are the failures that count under every policy.
const always = Silent | Stuck

const (
	silentInARow = 3
	silentAfter  = 5 * time.Second
	stuckInARow  = 10
	stuckAfter   = 10 * time.Minute
)

// silentReason is why a replica is suspended for Silent.
const silentReason = "left several requests in a row without an answer"

// noteSilenceLocked notes whether the replica has answered the request. It returns Silent or Stuck
// if the replica is, else 0. Ticket.mu is held.
func (t *Ticket) noteSilenceLocked(r Response) Failure {
	c := t.replicaLocked().counter
	switch {
	case r.Lost: // it may have been answered
	case r.Abandoned && time.Since(t.reservedAt) >= silentAfter:
		return c.countSilent(steady.Nanos(time.Now()))
	case !r.Abandoned && c.silent.Load() != 0: // a failure is an answer, too
		c.endSilence()
	}
	return 0
}

// countSilent counts a request that ended now without a byte. It returns Silent or Stuck if the
// replica is, else 0.
func (c *counter) countSilent(now int64) Failure {
	c.silentSince.CompareAndSwap(0, now) // before the request counts for others
	switch n := c.silent.Add(1); {
	case n >= stuckInARow && now-c.silentSince.Load() >= int64(stuckAfter):
		c.endSilence()
		return Stuck
	case n >= silentInARow:
		return Silent
	}
	return 0
}

// endSilence has the count begin again.
func (c *counter) endSilence() {
	c.silent.Store(0)
	c.silentSince.Store(0)
}

// These failures make a replica unhealthy if the policy names none. Of an upstream, all failures
// count. Of a launched replica, a 503 does not count, because it is back-pressure. A reset does not
// count either: one bad request may cause it, and the launcher notices if the process exits.
const (
	upstreamUnhealthyOn = Connect | Reset | FiveHundreds | Unavailable
	launchedUnhealthyOn = Connect | FiveHundreds
)

// Answered returns the failure that an answer with this status is, and 0 if it is none.
func Answered(status int) Failure {
	switch {
	case status == 503:
		return Unavailable
	case status >= 500:
		return FiveHundreds
	}
	return 0
}

// FailureOf returns the failure of the replica in an entry of Envoy's access log, and the reason in
// words; 0 if there is none. The log of attempts has an entry for each replica that was tried.
func FailureOf(e *request.Entry) (kind Failure, reason string) {
	switch {
	case e.Log != headers.LogAttempts || e.Interim:
		return 0, ""
	case Answered(e.Status) != 0:
		return Answered(e.Status), "answered " + strconv.Itoa(e.Status)
	case e.HasFlag("UF"):
		return Connect, "refused a connection"
	case e.HasFlag("UC") || e.HasFlag("UR") || e.HasFlag("UPE"):
		return Reset, "broke a response off"
	}
	return 0, ""
}

// A suspension lasts suspendedFor at first. It lasts twice as long, up to maxSuspended, each time
// the replica is suspended again within healthyPeriod after the last suspension.
const (
	suspendedFor  = 10 * time.Second
	maxSuspended  = time.Minute
	healthyPeriod = time.Minute
)

// suspension records that a replica gets no requests for a while. It is kept for healthyPeriod
// after its end.
type suspension struct {
	model, reason string
	process       process
	// times counts the suspensions that followed each other within healthyPeriod
	times  int
	active bool
	// ended is when the suspension last ended
	ended time.Time
	timer *time.Timer
}

// process identifies one run of a replica's process.
type process struct {
	address       netip.AddrPort
	pid, restarts int
}

func processOf(r *engines.Replica) process { return process{r.Address, r.PID, r.Restarts} }

// Failed reports that a request failed on the replica's side. It returns the launcher that has to
// check the replica at once. The launcher is empty if the model's UnhealthyOn does not contain the
// failure, or if the replica is suspended already.
//
// A launched replica is suspended: it is not picked until EndSuspension or for 10 s to a minute.
// The last pickable replica of a model is never suspended. An upstream is not suspended here,
// because its launcher takes it out of rotation.
func (d *Dispatcher) Failed(replica string, kind Failure, reason string) engines.Launcher {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, t := d.pickableLocked(replica)
	if r == nil || kind&d.unhealthyOnLocked(r, t) == 0 {
		return ""
	}
	if r.Launcher == engines.Upstream {
		return r.Launcher
	}
	if s := d.suspensions[replica]; s != nil && s.active {
		return ""
	}
	if len(t.replicas) > 1 {
		d.suspendLocked(r, reason)
	}
	return r.Launcher
}

// EndSuspension reports that the launcher has found the replica healthy after it was suspended. The
// replica may be picked again. If it was suspended more than once within a minute, it stays
// suspended until its time is over.
func (d *Dispatcher) EndSuspension(replica string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.suspensions[replica]; s != nil && s.active && s.times == 1 {
		d.endSuspensionLocked(s)
	}
}

// Suspended returns the suspended replicas by id, with the reason for each.
func (d *Dispatcher) Suspended() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]string{}
	for id, s := range d.suspensions {
		if c := d.counters[id]; s.active && (c == nil || len(c.models()) == 0) { // else the replica is the last of its model, and serves
			out[id] = s.reason
		}
	}
	return out
}

// pickableLocked returns a replica that may be picked, and one of the models that it serves. Both
// are nil if the replica may not be picked.
func (d *Dispatcher) pickableLocked(id string) (*engines.Replica, *modelRoute) {
	c := d.counters[id]
	if c == nil || len(c.models()) == 0 {
		return nil, nil
	}
	t := d.table.Load().routes[c.models()[0]]
	if r := t.source.Replica(id); r != nil {
		return r, t
	}
	return nil, nil
}

// unhealthyOnLocked returns the failures that count for the replica: those of the model's policy,
// else those of its kind of launcher. A replica that serves several models follows no model's
// policy.
func (d *Dispatcher) unhealthyOnLocked(r *engines.Replica, t *modelRoute) Failure {
	own := t.policy.UnhealthyOn
	if own != 0 && !t.Discovered && len(d.counters[r.ID].models()) == 1 {
		return own | always
	}
	if r.Launcher == engines.Upstream {
		return upstreamUnhealthyOn | always
	}
	return launchedUnhealthyOn | always
}

// suspendLocked suspends a launched replica and starts the timer that ends the suspension.
func (d *Dispatcher) suspendLocked(r *engines.Replica, reason string) {
	now := time.Now()
	maps.DeleteFunc(d.suspensions, func(_ string, s *suspension) bool { return !s.active && now.Sub(s.ended) >= healthyPeriod })
	s := &suspension{model: r.Model, process: processOf(r), reason: reason, times: 1, active: true}
	if before := d.suspensions[r.ID]; before != nil && before.process == s.process {
		s.times = before.times + 1
	}
	d.suspensions[r.ID] = s
	s.timer = time.AfterFunc(min(suspendedFor<<(min(s.times, 8)-1), maxSuspended), func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if s.active {
			d.endSuspensionLocked(s)
		}
	})
	d.dirty[r.Model] = struct{}{}
	d.rebuildLocked()
}

// endSuspensionLocked makes the replica pickable again.
func (d *Dispatcher) endSuspensionLocked(s *suspension) {
	s.stop()
	d.dirty[s.model] = struct{}{}
	d.rebuildLocked()
}

// stop ends the suspension without a rebuild of the routing table. Dispatcher.mu is held.
func (s *suspension) stop() {
	s.active, s.ended = false, time.Now()
	s.timer.Stop()
}

// healthyLocked returns the replicas that are not suspended. If all are suspended, it returns all.
// A replica whose process was restarted is no longer suspended.
func (d *Dispatcher) healthyLocked(known []*engines.Replica) []*engines.Replica {
	if len(d.suspensions) == 0 {
		return known
	}
	healthy := make([]*engines.Replica, 0, len(known))
	for _, r := range known {
		s := d.suspensions[r.ID]
		if s != nil && s.process != processOf(r) {
			s.stop()
			delete(d.suspensions, r.ID)
			s = nil
		}
		if s == nil || !s.active {
			healthy = append(healthy, r)
		}
	}
	if len(healthy) == 0 {
		return known
	}
	return healthy
}
