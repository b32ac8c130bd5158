package dispatch

import (
	"maps"
	"net/netip"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Failure is a kind of failure on a replica's side, or a set of them. What a client did (a 4xx, or
// that it left) is none.
type Failure uint8

// The kinds of failures.
const (
	// Connect: the replica took no connection.
	Connect Failure = 1 << iota
	// Reset: it broke a connection off that had a request on it.
	Reset
	// FiveHundreds: it answered with 500 or more, but not 503.
	FiveHundreds
	// Unavailable: it answered 503, which engines say when they have too much to do.
	Unavailable
)

// What makes a replica unhealthy where the policy does not say: of a server that someone else runs
// everything; of one that was launched not its back-pressure, and not a broken connection, behind
// which may be one bad request and whose launcher sees it when it ends.
const (
	upstreamUnhealthyOn = Connect | Reset | FiveHundreds | Unavailable
	launchedUnhealthyOn = Connect | FiveHundreds
)

// Answered is the failure that a replica's answer with this status is; 0 for none.
func Answered(status int) Failure {
	switch {
	case status == 503:
		return Unavailable
	case status >= 500:
		return FiveHundreds
	}
	return 0
}

// FailureOf returns what an entry of Envoy's access log says that the replica did wrong; 0 when
// nothing. The log of attempts tells of broken connections, at once and of each replica that was
// tried; the log of requests tells of answers.
func FailureOf(e *request.Entry) (kind Failure, reason string) {
	switch {
	case e.Log == headers.LogRequests && !e.Interim && e.Details == "via_upstream":
		return Answered(e.Status), "answered " + strconv.Itoa(e.Status)
	case e.Moved():
		return 0, ""
	case e.Log == headers.LogAttempts && e.HasFlag("UF"):
		return Connect, "refused a connection"
	case e.Log == headers.LogAttempts && (e.HasFlag("UC") || e.HasFlag("UR") || e.HasFlag("UPE")):
		return Reset, "broke a response off"
	}
	return 0, ""
}

// A suspension lasts suspendedFor at most, twice as long each time it begins again within
// goodService after the last, up to suspendedMost.
const (
	suspendedFor  = 10 * time.Second
	suspendedMost = time.Minute
	goodService   = time.Minute
)

// suspension is that a replica gets no requests for a while, or what is remembered of it.
type suspension struct {
	model, reason string
	process       process
	// times is how often it was suspended without good service between
	times int
	on    bool
	// ended is when it was last over
	ended time.Time
	timer *time.Timer
}

// process tells one life of a replica from the next.
type process struct {
	address       netip.AddrPort
	pid, restarts int
}

func processOf(r *engines.Replica) process { return process{r.Address, r.PID, r.Restarts} }

// Failed tells that a request failed on the replica's side. It returns the launcher that is to look
// at the replica at once, empty when the model's UnhealthyOn does not count such a failure or the
// replica is out already. One that was launched is no candidate from now on, until EndSuspension or for
// 10 s to a minute, unless it is the last candidate of its model: that stays. An upstream is its
// launcher's to take out.
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
	if s := d.suspensions[replica]; s != nil && s.on {
		return ""
	}
	if len(t.replicas) > 1 {
		d.suspendLocked(r, reason)
	}
	return r.Launcher
}

// EndSuspension tells that the launcher has found the replica well after it was suspended. It is a
// candidate again. Who fails again within a minute of that is not believed a second time, and comes
// back when its time is over.
func (d *Dispatcher) EndSuspension(replica string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.suspensions[replica]; s != nil && s.on && s.times == 1 {
		d.endLocked(s)
	}
}

// Suspended lists the replicas that get no requests because some failed there, with the reason.
func (d *Dispatcher) Suspended() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]string{}
	for id, s := range d.suspensions {
		if c := d.counters[id]; s.on && (c == nil || len(c.models()) == 0) { // else it is all that is left, and serves
			out[id] = s.reason
		}
	}
	return out
}

// pickableLocked finds a replica that may be picked, and one of the models that it serves; nil when
// it may not.
func (d *Dispatcher) pickableLocked(id string) (*engines.Replica, *modelRoute) {
	c := d.counters[id]
	if c == nil || len(c.models()) == 0 {
		return nil, nil
	}
	t := d.table.Load().routes[c.models()[0]]
	for i := range t.source.Replicas {
		if r := &t.source.Replicas[i]; r.ID == id {
			return r, t
		}
	}
	return nil, nil
}

// unhealthyOnLocked is the model's own rule, or that of the launcher for a model without one, and
// for a server that is not one model's alone.
func (d *Dispatcher) unhealthyOnLocked(r *engines.Replica, t *modelRoute) Failure {
	own := t.policy.UnhealthyOn
	if own != 0 && !t.Discovered && len(d.counters[r.ID].models()) == 1 {
		return own
	}
	if r.Launcher == engines.Upstream {
		return upstreamUnhealthyOn
	}
	return launchedUnhealthyOn
}

func (d *Dispatcher) suspendLocked(r *engines.Replica, reason string) {
	now := time.Now()
	maps.DeleteFunc(d.suspensions, func(_ string, s *suspension) bool { return !s.on && now.Sub(s.ended) >= goodService })
	s := &suspension{model: r.Model, process: processOf(r), reason: reason, times: 1, on: true}
	if before := d.suspensions[r.ID]; before != nil && before.process == s.process {
		s.times = before.times + 1
	}
	d.suspensions[r.ID] = s
	s.timer = time.AfterFunc(min(suspendedFor<<(min(s.times, 8)-1), suspendedMost), func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if s.on {
			d.endLocked(s)
		}
	})
	d.dirty[r.Model] = struct{}{}
	d.rebuildLocked()
}

// endLocked makes the replica a candidate again.
func (d *Dispatcher) endLocked(s *suspension) {
	s.stop()
	d.dirty[s.model] = struct{}{}
	d.rebuildLocked()
}

func (s *suspension) stop() {
	s.on, s.ended = false, time.Now()
	s.timer.Stop()
}

// wellLocked leaves out who is suspended, unless that is everybody. A replica that was started
// again has nothing to do with what was.
func (d *Dispatcher) wellLocked(known []*engines.Replica) []*engines.Replica {
	if len(d.suspensions) == 0 {
		return known
	}
	well := make([]*engines.Replica, 0, len(known))
	for _, r := range known {
		s := d.suspensions[r.ID]
		if s != nil && s.process != processOf(r) {
			s.stop()
			delete(d.suspensions, r.ID)
			s = nil
		}
		if s == nil || !s.on {
			well = append(well, r)
		}
	}
	if len(well) == 0 {
		return known
	}
	return well
}
