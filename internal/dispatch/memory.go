package dispatch

import (
	"crypto/md5"
	"encoding/binary"
	"sync"
	"time"
)

// The key of a conversation on the ring changes between its first turn and its second, and the bound of loads may send any turn elsewhere. So
// with Strategy Prefix a model remembers which replica was given the longest known beginning of a conversation, over whole turns up to
// a user message, and goes on there within the same bound. Only beginnings with a user message count: a system prompt that all share must
// spread.

const (
	// levels is how many turns back a conversation is looked for: a client that edits an earlier turn continues from there.
	levels = 8
	// generation is how long beginnings are collected before they become the old ones, which are kept as long again; mostRemembered bounds
	// those of one generation. So what nobody asks for is forgotten after 5 to 10 minutes, and a model remembers at most 65,536.
	generation     = 5 * time.Minute
	mostRemembered = 1 << 15
)

// prefixes is what a model remembers. A replica is known by its counter, so that one that is gone and comes back empty is not found. The zero
// value is ready to use.
type prefixes struct {
	mu sync.Mutex
	// young and old by key; guarded by mu
	young, old map[uint64]*counter
	// since is when the young ones began, latest the last look; guarded by mu
	since, latest time.Time
}

// find is the replica that knows the first of the keys that is known at all; nil: none is.
func (p *prefixes) find(keys []uint64, now time.Time) *counter {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest = now
	if age := now.Sub(p.since); age >= generation {
		p.agedLocked()
		if age >= 2*generation {
			p.old = nil
		}
	}
	for _, key := range keys {
		if c := p.young[key]; c != nil {
			return c
		}
		if c := p.old[key]; c != nil {
			p.putLocked(key, c)
			return c
		}
	}
	return nil
}

// put notes that the replica was given this beginning.
func (p *prefixes) put(key uint64, c *counter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.putLocked(key, c)
}

func (p *prefixes) putLocked(key uint64, c *counter) {
	if len(p.young) >= mostRemembered {
		p.agedLocked()
	}
	if p.young == nil {
		p.young = map[uint64]*counter{}
	}
	p.young[key] = c
}

func (p *prefixes) agedLocked() {
	p.old, p.young, p.since = p.young, nil, p.latest
}

// home is the replica of a model that knows a conversation.
type home struct {
	model   string
	replica *counter
}

// remembers says that the conversations of the model are remembered: where a request goes makes a difference now, or may soon.
func (t *target) remembers() bool {
	return (t.policy.Strategy == Prefix || t.policy.Strategy == "") && max(len(t.replicas), t.Most) > 1
}

// recall finds out where the conversation of a request is known, and what to remember of it. It looks once, before the request waits: what it
// goes on from was answered long ago.
func (t *Ticket) recall(c choice, r *Request) {
	if r.Keys == nil || !c.any((*target).remembers) {
		return
	}
	keys := r.Keys(levels)
	if len(keys) == 0 {
		return
	}
	t.turn, t.turned = keys[0], true
	now := time.Now()
	for _, m := range c.members {
		if !m.remembers() {
			continue
		}
		if replica := m.lessons.prefixes.find(keys, now); replica != nil {
			t.homes = append(t.homes, home{m.Name, replica})
		}
	}
}

// remember notes where the conversation is known from now on.
func (t *Ticket) remember(m *target, c *counter) {
	if t.turned && m.remembers() {
		m.lessons.prefixes.put(t.turn, c)
	}
}

// homeOf is the index of the replica that knows the conversation of the ticket; -1: none does.
func (t *target) homeOf(ticket *Ticket) int {
	for _, h := range ticket.homes {
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

// firstNode is where the first virtual node of a replica sits on every ring (package ringhash). A key there belongs to that replica.
func firstNode(id string) uint64 {
	sum := md5.Sum([]byte(id + ":0"))
	return binary.BigEndian.Uint64(sum[:8])
}
