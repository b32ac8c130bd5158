package dispatch

import (
	"crypto/md5"
	"encoding/binary"
	"sync"
	"time"
)

// The ring key of a conversation changes between its first and its second turn, and the bound of
// loads may send any turn to another replica. So with Strategy Prefix a model remembers which
// replica was given the longest known beginning of a conversation. A beginning consists of whole
// turns up to a user message. The conversation continues on that replica within the same bound.
// Only beginnings with a user message are stored: requests that share nothing but a system prompt
// must spread.

const (
	// levels is how many turns back a conversation is searched. A client that edits an earlier turn
	// continues from there.
	levels = 8
	// affinityTTL is how long a beginning is kept after its last request.
	affinityTTL = 10 * time.Minute
	// The table is divided into sets of ways entries. It has minEntries at first and at most
	// maxEntries (2 MiB).
	ways       = 4
	minEntries = 256
	maxEntries = 1 << 16
)

// prefixIndex maps the beginning of a conversation to the replica that has served it. It is a
// set-associative table: a key belongs to one set, in which it replaces the entry that was used
// longest ago. A replica is identified by its counter, so a replica that was removed and comes back
// empty is not found. The zero value is ready to use.
type prefixIndex struct {
	mu sync.Mutex
	// entries is the table; used counts the entries that were ever set; guarded by mu
	entries []beginning
	used    int
	// latest is the time of the last find; guarded by mu
	latest time.Time
}

// beginning is one beginning of a conversation. An entry without a replica is empty.
type beginning struct {
	key     uint64
	replica *counter
	// asked is when the entry was last set or found, in Unix nanoseconds
	asked int64
}

// setLocked returns the set that the key belongs to.
func (p *prefixIndex) setLocked(key uint64) []beginning {
	sets := uint64(len(p.entries) / ways)
	at := int(key&(sets-1)) * ways
	return p.entries[at : at+ways]
}

func (x *beginning) isLiveAt(now int64) bool {
	return x.replica != nil && now-x.asked < int64(affinityTTL)
}

// find returns the replica of the first key that the index has. nil means that it has none of them.
func (p *prefixIndex) find(keys []uint64, now time.Time) *counter {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest = now
	if p.entries == nil {
		return nil
	}
	at := now.UnixNano()
	for _, key := range keys {
		set := p.setLocked(key)
		for i := range set {
			if set[i].key == key && set[i].isLiveAt(at) {
				set[i].asked = at
				return set[i].replica
			}
		}
	}
	return nil
}

// put records that the replica was given this beginning, at the time of the last find.
func (p *prefixIndex) put(key uint64, c *counter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if 2*p.used >= len(p.entries) && len(p.entries) < maxEntries {
		p.growLocked()
	}
	p.putLocked(beginning{key, c, p.latest.UnixNano()})
}

func (p *prefixIndex) putLocked(x beginning) {
	set := p.setLocked(x.key)
	entry := &set[0]
	for i := range set {
		if set[i].key == x.key && set[i].replica != nil {
			entry = &set[i]
			break
		}
		if set[i].asked < entry.asked { // an empty entry is the oldest
			entry = &set[i]
		}
	}
	if entry.replica == nil {
		p.used++
	}
	*entry = x
}

// growLocked doubles the table and drops the expired entries. If many have expired, the size stays.
func (p *prefixIndex) growLocked() {
	old, now, live := p.entries, p.latest.UnixNano(), 0
	for i := range old {
		if old[i].isLiveAt(now) {
			live++
		}
	}
	size := max(len(old), minEntries)
	if 4*live >= size {
		size *= 2
	}
	p.entries, p.used = make([]beginning, size), 0
	for i := range old {
		if old[i].isLiveAt(now) {
			p.putLocked(old[i])
		}
	}
}

// affinity is the replica of a model that has served the beginning of a conversation.
type affinity struct {
	model   string
	replica *counter
}

// hasAffinity reports whether conversations of the model stay on their replica: the strategy
// demands it, and the model has or may soon have more than one replica.
func (t *modelRoute) hasAffinity() bool {
	return t.strategy != nil && t.strategy.affinity && max(len(t.replicas), t.MaxReplicas) > 1
}

// findAffinity finds the replicas that have served the beginning of the request's conversation, and
// the key under which its own replica will be recorded. It searches once, before the request waits.
// The previous response of the conversation has ended long before that.
func (t *Ticket) findAffinity(c choice, r *Request) {
	if r.Keys == nil || !c.any((*modelRoute).hasAffinity) {
		return
	}
	keys := r.Keys(levels)
	if len(keys) == 0 {
		return
	}
	t.conversation, t.hasConversation = keys[0], true
	now := time.Now()
	for _, m := range c.members {
		if !m.hasAffinity() {
			continue
		}
		if replica := m.estimator.prefixIndex.find(keys, now); replica != nil {
			if t.affinities == nil {
				t.affinities = t.affinitySpace[:0]
			}
			t.affinities = append(t.affinities, affinity{m.Name, replica})
		}
	}
}

// recordAffinity records that this replica serves the conversation from now on.
func (t *Ticket) recordAffinity(m *modelRoute, c *counter) {
	if t.hasConversation && m.hasAffinity() {
		m.estimator.prefixIndex.put(t.conversation, c)
	}
}

// affineReplica returns the index of the replica that has served the beginning of the ticket's
// conversation; -1 means that there is none.
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

// firstNode returns the position of a replica's first virtual node on every ring (package
// ringhash). A key at this position belongs to the replica.
func firstNode(id string) uint64 {
	sum := md5.Sum([]byte(id + ":0"))
	return binary.BigEndian.Uint64(sum[:8])
}
