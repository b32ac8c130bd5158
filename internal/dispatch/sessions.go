package dispatch

import (
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/steady"
)

// A client may name the session of a request. With Strategy Prefix a model remembers which replica
// has served each session, and Choose prefers that replica as long as it is not much slower than
// the fastest.
//
// With every strategy, a request that continues an earlier response goes to the replica which has
// given that response, because engines keep their responses to themselves. It waits for a slot
// there. Only when that replica is gone another one is picked, which has to compute the whole
// conversation.

const (
	// sessionTTL is how long a session is kept after its last request.
	sessionTTL = time.Hour
	// The table is divided into sets of ways entries. It has minEntries at first and at most
	// maxEntries (2.5 MiB). It grows as soon as a full set would lose a live entry. Of
	// 30,000 sessions in an hour it forgets half a percent.
	ways       = 8
	minEntries = 256
	maxEntries = 1 << 16
)

// sessionTable maps sessions to the replicas that have served them. It is a set-associative table:
// a key belongs to one set, in which it replaces the entry that was used longest ago. The entries
// of one key with several owners are in one set. A replica is identified by its counter, so a
// replica that was removed and comes back empty is not found. The zero value is ready to use.
type sessionTable struct {
	mu sync.Mutex
	// entries is the table; used counts the entries that were ever set; guarded by mu
	entries []session
	used    int
	// changes counts how often a response was set or found; guarded by mu
	changes uint64
}

// sessionID identifies a session in a table. The zero value identifies none.
type sessionID struct {
	key uint64
	// owner is a hash of the response and of the tenant that was given it. It is 0 for a session
	// that is no response, because the key of such a session is its tenant's own.
	owner uint32
}

// session is one session. An entry without a replica is empty.
type session struct {
	sessionID
	// history are the tokens of the conversation that its next request does not repeat.
	history uint32
	replica *counter
	// asked is when the entry was last set or found, by steady.Nanos.
	asked int64
}

// clockStep returns by how much the clock of the machine was ahead of steady.Nanos at a time.
func clockStep(t time.Time) int64 { return t.UnixNano() - steady.Nanos(t) }

// setLocked returns the set that the key belongs to.
func (p *sessionTable) setLocked(key uint64) []session {
	sets := uint64(len(p.entries) / ways)
	at := int(key&(sets-1)) * ways
	return p.entries[at : at+ways]
}

func (x *session) isLiveAt(now int64) bool {
	return x.replica != nil && now-x.asked < int64(sessionTTL)
}

// find returns the session with this id; false means that it is not known.
func (p *sessionTable) find(id sessionID, now time.Time) (x session, ok bool) {
	x, _ = p.lookUp(id, now)
	return x, x.replica != nil
}

// lookUp is find. Without such a session the result has no replica, and hasOther reports whether
// the key has another owner.
func (p *sessionTable) lookUp(id sessionID, now time.Time) (x session, hasOther bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.entries == nil {
		return session{}, false
	}
	at := steady.Nanos(now)
	set := p.setLocked(id.key)
	for i := range set {
		if set[i].key != id.key || !set[i].isLiveAt(at) {
			continue
		}
		if set[i].owner == id.owner {
			set[i].asked = at
			if id.owner != 0 {
				p.changes++
			}
			return set[i], false
		}
		hasOther = true
	}
	return session{}, hasOther
}

// put records that the replica serves the session from now on.
func (p *sessionTable) put(id sessionID, c *counter, history uint32, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id.owner != 0 {
		p.changes++
	}
	at := steady.Nanos(now)
	p.setEntryLocked(p.roomLocked(id, at), session{sessionID: id, history: history, replica: c, asked: at})
}

// roomLocked is entryLocked, but first enlarges a table that is too small.
func (p *sessionTable) roomLocked(id sessionID, now int64) *session {
	if 2*p.used >= len(p.entries) && len(p.entries) < maxEntries {
		p.growLocked(now)
	}
	entry := p.entryLocked(id)
	for entry.sessionID != id && entry.isLiveAt(now) && len(p.entries) < maxEntries {
		p.resizeLocked(2*len(p.entries), now)
		entry = p.entryLocked(id)
	}
	return entry
}

// entryLocked returns the entry of the session, or else the one that the session replaces.
func (p *sessionTable) entryLocked(id sessionID) *session {
	set := p.setLocked(id.key)
	entry := &set[0]
	for i := range set {
		if set[i].sessionID == id && set[i].replica != nil {
			return &set[i]
		}
		if set[i].asked < entry.asked { // an empty entry is the oldest
			entry = &set[i]
		}
	}
	return entry
}

func (p *sessionTable) setEntryLocked(entry *session, x session) {
	if entry.replica == nil {
		p.used++
	}
	*entry = x
}

// growLocked doubles the table and drops the expired entries. If many have expired, the size stays.
func (p *sessionTable) growLocked(now int64) {
	live := 0
	for i := range p.entries {
		if p.entries[i].isLiveAt(now) {
			live++
		}
	}
	size := max(len(p.entries), minEntries)
	if 4*live >= size {
		size *= 2
	}
	p.resizeLocked(size, now)
}

// resizeLocked gives the table this size and drops the expired entries. A table that does not
// shrink keeps each live entry, because the entries of one set come from one smaller set.
func (p *sessionTable) resizeLocked(size int, now int64) {
	old := p.entries
	p.entries, p.used = make([]session, size), 0
	for i := range old {
		if old[i].isLiveAt(now) {
			p.setEntryLocked(p.entryLocked(old[i].sessionID), old[i])
		}
	}
}

// sessionKey returns the key of a session of a tenant; 0 means none.
func sessionKey(tenant, name string) uint64 {
	if name == "" {
		return 0
	}
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(tenant) // never fails
	_, _ = d.Write([]byte{0})
	_, _ = d.WriteString(name)
	return max(d.Sum64(), 1)
}

// sessionOf returns the id of a session of a tenant that is no response.
func sessionOf(tenant, name string) sessionID { return sessionID{key: sessionKey(tenant, name)} }

// responseOf returns the id of the session of a response that the tenant was given, or says that it
// was. The key is the same for all tenants, so one look-up tells whether the response is known and
// whose it is.
func responseOf(tenant, name string) sessionID {
	if name == "" {
		return sessionID{}
	}
	return sessionID{key: sessionKey(anyTenant, name), owner: max(uint32(sessionKey(tenant, name)), 1)}
}

// anyTenant is not the name of a tenant. The keys of responses are made with it.
const anyTenant = "\x00"

// LearnResponse tells the id of the response that the replica of the ticket gives, so that a
// request which continues the response finds the replica. It may be called more than once, and
// after Release.
func (t *Ticket) LearnResponse(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id == "" {
		return
	}
	t.response = responseOf(t.estimate.tenant, openai.ResponseSession(id))
	t.awaitUsageLocked()
	t.placeResponseLocked(t.estimate.tokens.total())
}

// continuesOther reports whether a request continues a response that another tenant has been given.
func (w *routingTable) continuesOther(r *Request, now time.Time) bool {
	if r.Previous == "" {
		return false
	}
	id, isKnown := responseOf(r.Tenant, r.Previous), false
	for _, t := range w.routes {
		own, hasOther := t.estimator.sessions.lookUp(id, now)
		if own.replica != nil {
			return false
		}
		isKnown = isKnown || hasOther
	}
	return isKnown
}

// chooseByPrevious narrows the choice to the model whose replica has the response that the request
// continues. Without such a replica the choice stays as it is.
func (c choice) chooseByPrevious(r *Request, now time.Time) choice {
	if r.Previous == "" || len(c.members) == 1 {
		return c
	}
	id := responseOf(r.Tenant, r.Previous)
	for _, t := range c.members {
		if known, ok := t.estimator.sessions.find(id, now); ok && t.indexOf(known.replica) >= 0 {
			return choice{members: []*modelRoute{t}}
		}
	}
	return c
}

// placeResponseLocked records that the replica of the ticket has its response, and tells other
// gateways and the successor of this process. history are the tokens of the conversation up to the
// response. Ticket.mu is held.
func (t *Ticket) placeResponseLocked(history int) {
	r := t.replicaLocked()
	t.place(r, Placement{Model: t.route.Name, Replica: r.sharedID, Session: t.response.key, Owner: t.response.owner, History: uint32(history)})
	t.dispatcher.tellResponse(t.route.Name, r, session{sessionID: t.response, history: uint32(history), asked: steady.Nanos(time.Now())})
}
