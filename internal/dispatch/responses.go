package dispatch

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/steady"
)

// The next process of the gateway learns from this one which replica has which response. Responses
// returns that knowledge, a file or a connection carries it, and RestoreResponses takes it. A
// response is found again if its replica exists and its engine was not started again.

// ReplicaResponses are responses that one replica has given. One process of the gateway passes them
// to another.
type ReplicaResponses struct {
	Model   string `json:"model"`
	Replica string `json:"replica"`
	// Run identifies the run of the engine, whose responses end with it. Run is empty for a server
	// that someone else runs, because Sluice does not see when that server starts.
	Run string `json:"run,omitempty"`
	// Responses are records of recordSize bytes, little endian: the key and the owner of a
	// sessionID, the history, and when the response was last used in Unix seconds.
	Responses []byte `json:"responses"`
}

const (
	// recordSize is the size of a record in ReplicaResponses.
	recordSize = 8 + 4 + 4 + 4
	// maxResponses bounds what Responses returns of the tables of all models, and of the restored
	// responses whose replicas are not known yet.
	maxResponses = 1 << 17
)

func appendRecord(b []byte, x *session) []byte {
	b = binary.LittleEndian.AppendUint64(b, x.key)
	b = binary.LittleEndian.AppendUint32(b, x.owner)
	b = binary.LittleEndian.AppendUint32(b, x.history)
	asked := (x.asked + clockStep(time.Now())) / int64(time.Second)
	return binary.LittleEndian.AppendUint32(b, uint32(min(max(asked, 0), math.MaxUint32)))
}

// sessions returns the responses that are remembered at that time. Their field replica is nil.
func (r *ReplicaResponses) sessions(now time.Time) []session {
	var all []session
	for record := range slices.Chunk(r.Responses, recordSize) {
		if len(record) < recordSize {
			break
		}
		x := session{sessionID: sessionID{key: binary.LittleEndian.Uint64(record), owner: binary.LittleEndian.Uint32(record[8:])},
			history: binary.LittleEndian.Uint32(record[12:])}
		used := time.Unix(int64(binary.LittleEndian.Uint32(record[16:])), 0)
		x.asked = min(used.UnixNano()-clockStep(now), steady.Nanos(now)) // the clock may have been set back
		if x.key != 0 && x.owner != 0 && steady.Nanos(now)-x.asked < int64(sessionTTL) {
			all = append(all, x)
		}
	}
	return all
}

// run is one run of the engine of a replica.
type run struct {
	replica string
	// process is the zero value for a server that someone else runs.
	process process
}

func runOf(r *engines.Replica) run {
	if r.Launcher == engines.Upstream {
		return run{replica: r.ID}
	}
	return run{r.ID, processOf(r)}
}

// text returns ReplicaResponses.Run.
func (r *run) text() string {
	if r.process == (process{}) {
		return ""
	}
	return fmt.Sprintf("%s pid=%d restarts=%d", r.process.address, r.process.pid, r.process.restarts)
}

// setRun records which run of its engine the counter counts for. The silence of an earlier run is
// not held against it.
func (c *counter) setRun(r run) {
	if before := c.run.Load(); before == nil || *before != r {
		c.run.Store(&r)
		c.endSilence()
	}
}

// ResponsesChanged returns a number that changes when a response is learned or used.
func (d *Dispatcher) ResponsesChanged() (sum uint64) {
	for _, e := range d.allEstimators() {
		e.sessions.mu.Lock()
		sum += e.sessions.changes
		e.sessions.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return sum + d.unplacedChanges
}

// allEstimators returns the estimators by model.
func (d *Dispatcher) allEstimators() map[string]*estimator {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.estimators)
}

// Responses returns the responses that were learned or used since that time. It also returns the
// restored responses whose replicas are not known yet. Of more than maxResponses it returns the
// latest.
func (d *Dispatcher) Responses(since time.Time) []ReplicaResponses {
	now := time.Now()
	known := map[string][]session{}
	for model, e := range d.allEstimators() {
		known[model] = e.sessions.responses(since, now)
	}
	from := earliest(known, maxResponses)
	all := d.unplacedResponses(now)
	for model, sessions := range known {
		all = appendReplicas(all, model, sessions, from)
	}
	return all
}

// earliest returns the time from which on no more than n of the sessions were used, by
// steady.Nanos.
func earliest(known map[string][]session, n int) int64 {
	sum := 0
	for _, sessions := range known {
		sum += len(sessions)
	}
	if sum <= n {
		return math.MinInt64
	}
	times := make([]int64, 0, sum)
	for _, sessions := range known {
		for i := range sessions {
			times = append(times, sessions[i].asked)
		}
	}
	slices.Sort(times)
	return times[sum-n-1] + 1
}

// appendReplicas appends the responses of a model that were used from a time on.
func appendReplicas(all []ReplicaResponses, model string, sessions []session, from int64) []ReplicaResponses {
	places := map[*counter]int{} // indexes in all
	for i := range sessions {
		x := &sessions[i]
		at := x.replica.run.Load()
		if x.asked < from || at == nil {
			continue
		}
		place, ok := places[x.replica]
		if !ok {
			place = len(all)
			places[x.replica] = place
			all = append(all, ReplicaResponses{Model: model, Replica: at.replica, Run: at.text()})
		}
		all[place].Responses = appendRecord(all[place].Responses, x)
	}
	return all
}

// unplacedResponses returns the restored responses whose replicas are not known yet. It drops those
// that are no longer remembered.
func (d *Dispatcher) unplacedResponses(now time.Time) []ReplicaResponses {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unplaced = latest(merged(d.unplaced, now), maxResponses, now)
	return slices.Clone(d.unplaced)
}

// latest returns the n responses of told that were used last, or all of them. told has each once.
func latest(told []ReplicaResponses, n int, now time.Time) []ReplicaResponses {
	known := map[string][]session{}
	for i := range told {
		known[told[i].Model] = append(known[told[i].Model], told[i].sessions(now)...)
	}
	from := earliest(known, n)
	if from == math.MinInt64 {
		return told
	}
	var last []ReplicaResponses
	for _, r := range told {
		kept := slices.DeleteFunc(r.sessions(now), func(x session) bool { return x.asked < from })
		if len(kept) > 0 {
			r.Responses = recordsOf(kept)
			last = append(last, r)
		}
	}
	return last
}

// merged returns each response once, as it was used last, and each run of an engine once. The
// successor of a process is told of responses that it has also read from the file. Those that are
// forgotten by now are dropped.
func merged(told []ReplicaResponses, now time.Time) (all []ReplicaResponses) {
	type place struct{ model, replica, run string }
	places, live := map[place]int{}, [][]session{} // indexes in all, and what those have
	for i := range told {
		r := &told[i]
		sessions := r.sessions(now)
		if len(sessions) == 0 {
			continue
		}
		at := place{r.Model, r.Replica, r.Run}
		n, again := places[at]
		if !again {
			places[at] = len(all)
			all, live = append(all, *r), append(live, sessions)
			continue
		}
		live[n] = append(live[n], sessions...)
		all[n].Responses = nil
	}
	for n := range all {
		if all[n].Responses == nil {
			all[n].Responses = recordsOf(live[n])
		}
	}
	return all
}

// recordsOf returns the records of responses, each once, as it was used last.
func recordsOf(all []session) (records []byte) {
	slices.SortFunc(all, func(a, b session) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.owner, b.owner), cmp.Compare(b.asked, a.asked))
	})
	all = slices.CompactFunc(all, func(a, b session) bool { return a.sessionID == b.sessionID })
	for i := range all {
		records = appendRecord(records, &all[i])
	}
	return records
}

// RestoreResponses adds responses that another process of the gateway has learned. If a replica is
// not known yet, its responses wait until it is, as long as they are remembered. The responses of
// an engine that was started again are dropped.
func (d *Dispatcher) RestoreResponses(told []ReplicaResponses) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unplaced = append(d.unplaced, told...)
	d.placeResponsesLocked()
	if len(d.unplaced) > 0 {
		d.unplacedChanges++
	}
}

// placeResponsesLocked adds the restored responses whose replicas are known by now.
func (d *Dispatcher) placeResponsesLocked() {
	if len(d.unplaced) == 0 {
		return
	}
	now, models := time.Now(), d.table.Load().snapshot.Models
	d.unplaced = slices.DeleteFunc(d.unplaced, func(told ReplicaResponses) bool {
		m, e := models[told.Model], d.estimators[told.Model]
		if m == nil || e == nil {
			return false
		}
		r := m.Replica(told.Replica)
		if r == nil {
			return false
		}
		at := runOf(r)
		if at.text() != told.Run {
			return r.State == engines.Ready // until then its launcher may not know the process
		}
		c := d.counterLocked(told.Model, told.Replica)
		c.setRun(at)
		for _, x := range told.sessions(now) {
			x.replica = c
			e.sessions.restore(x, now)
		}
		return true
	})
}

// WatchResponses calls f with each response that is learned from now on, and again when more is
// learned of it. f must be quick and must not call the Dispatcher. A nil f ends the calls.
func (d *Dispatcher) WatchResponses(f func(ReplicaResponses)) {
	if f == nil {
		d.onResponse.Store(nil)
		return
	}
	d.onResponse.Store(&f)
}

// tellResponse calls the function of WatchResponses, if there is one, with a response.
func (d *Dispatcher) tellResponse(model string, r *replica, x session) {
	f, at := d.onResponse.Load(), r.run.Load()
	if f == nil || at == nil {
		return
	}
	(*f)(ReplicaResponses{Model: model, Replica: r.id, Run: at.text(), Responses: appendRecord(nil, &x)})
}

// scanStep is how many entries of a table are read at once, while picks of the model wait.
const scanStep = 1 << 12

// responses returns the responses that were learned or used since a time and are not forgotten. It
// may miss one that is learned meanwhile.
func (p *sessionTable) responses(since, now time.Time) (all []session) {
	p.mu.Lock()
	size, used := len(p.entries), p.used
	p.mu.Unlock()
	all = make([]session, 0, used)
	for first, more := 0, true; more; first += scanStep {
		p.mu.Lock()
		if len(p.entries) != size { // the entries are in other places now
			first, size, all = 0, len(p.entries), all[:0]
		}
		next := min(first+scanStep, size)
		for i := first; i < next; i++ {
			x := &p.entries[i]
			if x.owner != 0 && x.isLiveAt(steady.Nanos(now)) && x.asked/int64(time.Second) >= steady.Nanos(since)/int64(time.Second) {
				all = append(all, *x)
			}
		}
		p.mu.Unlock()
		more = next < size
	}
	return all
}

// restore adds a session that was last used at a time before now. It replaces no session that was
// used later.
func (p *sessionTable) restore(x session, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes++
	at := steady.Nanos(now)
	if entry := p.roomLocked(x.sessionID, at); !entry.isLiveAt(at) || entry.asked <= x.asked {
		p.setEntryLocked(entry, x)
	}
}
