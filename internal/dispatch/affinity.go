package dispatch

import (
	"crypto/md5"
	"encoding/binary"
	"sync"
	"time"
)

// The key of a conversation on the ring changes between its first turn and its second, and the
// bound of loads may send any turn elsewhere. So with Strategy Prefix a model remembers which
// replica was given the longest known beginning of a conversation, over whole turns up to a user
// message, and goes on there within the same bound. Only beginnings with a user message count: a
// system prompt that all share must spread.

const (
	// levels is how many turns back a conversation is looked for: a client that edits an earlier
	// turn continues from there.
	levels = 8
	// affinityTTL is how long a beginning is kept that no request asks for.
	affinityTTL = 10 * time.Minute
	// A table has places in sets of ways, leastPlaces at first and mostPlaces (2 MiB) at most.
	ways        = 4
	leastPlaces = 256
	mostPlaces  = 1 << 16
)

// prefixIndex finds the replica of a model that has served the beginning of a conversation. It is a
// set-associative table: a key belongs to one set, in which it replaces the entry that was asked
// for longest ago. A replica is known by its counter, so one that is gone and comes back empty is
// not found. The zero value is ready to use.
type prefixIndex struct {
	mu sync.Mutex
	// places, of which used are or were taken; guarded by mu
	places []prefix
	used   int
	// latest is the time of the last look; guarded by mu
	latest time.Time
}

// prefix is one beginning of a conversation. Without a replica there is none.
type prefix struct {
	key     uint64
	replica *counter
	// asked is when it was put or found last, in Unix nanoseconds
	asked int64
}

// set is where the key has its place.
func (p *prefixIndex) setLocked(key uint64) []prefix {
	sets := uint64(len(p.places) / ways)
	at := int(key&(sets-1)) * ways
	return p.places[at : at+ways]
}

func (x *prefix) livesAt(now int64) bool { return x.replica != nil && now-x.asked < int64(affinityTTL) }

// find is the replica that knows the first of the keys that is known at all; nil: none is.
func (p *prefixIndex) find(keys []uint64, now time.Time) *counter {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest = now
	if p.places == nil {
		return nil
	}
	at := now.UnixNano()
	for _, key := range keys {
		set := p.setLocked(key)
		for i := range set {
			if set[i].key == key && set[i].livesAt(at) {
				set[i].asked = at
				return set[i].replica
			}
		}
	}
	return nil
}

// put notes that the replica was given this beginning, at the time of the last look.
func (p *prefixIndex) put(key uint64, c *counter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if 2*p.used >= len(p.places) && len(p.places) < mostPlaces {
		p.growLocked()
	}
	p.putLocked(prefix{key, c, p.latest.UnixNano()})
}

func (p *prefixIndex) putLocked(x prefix) {
	set := p.setLocked(x.key)
	place := &set[0]
	for i := range set {
		if set[i].key == x.key && set[i].replica != nil {
			place = &set[i]
			break
		}
		if set[i].asked < place.asked { // also where nothing is
			place = &set[i]
		}
	}
	if place.replica == nil {
		p.used++
	}
	*place = x
}

// growLocked makes room for twice as many, or none if enough of them are forgotten by now.
func (p *prefixIndex) growLocked() {
	old, now, lives := p.places, p.latest.UnixNano(), 0
	for i := range old {
		if old[i].livesAt(now) {
			lives++
		}
	}
	size := max(len(old), leastPlaces)
	if 4*lives >= size {
		size *= 2
	}
	p.places, p.used = make([]prefix, size), 0
	for i := range old {
		if old[i].livesAt(now) {
			p.putLocked(old[i])
		}
	}
}

// affinity is the replica of a model that has served the beginning of a conversation.
type affinity struct {
	model   string
	replica *counter
}

// hasAffinity reports whether conversations of the model stay at their replica: the strategy wants
// it, and there is more than one replica now, or may be soon.
func (t *modelRoute) hasAffinity() bool {
	return t.strategy != nil && t.strategy.affinity && max(len(t.replicas), t.MaxReplicas) > 1
}

// findAffinity finds the replicas that have served the beginning of the request's conversation, and
// the key under which its own replica will be recorded. It looks once, before the request waits:
// the response that the conversation goes on from ended long ago.
func (t *Ticket) findAffinity(c choice, r *Request) {
	if r.Keys == nil || !c.any((*modelRoute).hasAffinity) {
		return
	}
	keys := r.Keys(levels)
	if len(keys) == 0 {
		return
	}
	t.turn, t.turned = keys[0], true
	now := time.Now()
	for _, m := range c.members {
		if !m.hasAffinity() {
			continue
		}
		if replica := m.estimator.prefixIndex.find(keys, now); replica != nil {
			if t.affinities == nil {
				t.affinities = t.space[:0]
			}
			t.affinities = append(t.affinities, affinity{m.Name, replica})
		}
	}
}

// recordAffinity records that the conversation is served at this replica from now on.
func (t *Ticket) recordAffinity(m *modelRoute, c *counter) {
	if t.turned && m.hasAffinity() {
		m.estimator.prefixIndex.put(t.turn, c)
	}
}

// affineReplica returns the index of the replica that has served the beginning of the ticket's
// conversation; -1: there is none.
func (t *modelRoute) affineReplica(ticket *Ticket) int {
	for _, h := range ticket.affinities {
		if h.model != t.Name {
			continue
		}
		for i := range t.replicas {
			if t.replicas[i].counter == h.replica {
				return i
			}
		}
	}
	return -1
}

// firstNode is where the first virtual node of a replica sits on every ring (package ringhash). A
// key there belongs to that replica.
func firstNode(id string) uint64 {
	sum := md5.Sum([]byte(id + ":0"))
	return binary.BigEndian.Uint64(sum[:8])
}
