package dispatch

import (
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gateway/sluice/internal/openai"
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
	// maxEntries (2 MiB).
	ways       = 4
	minEntries = 256
	maxEntries = 1 << 16
)

// sessionTable maps sessions to the replicas that have served them. It is a set-associative table:
// a key belongs to one set, in which it replaces the entry that was used longest ago. A replica is
// identified by its counter, so a replica that was removed and comes back empty is not found. The
// zero value is ready to use.
type sessionTable struct {
	mu sync.Mutex
	// entries is the table; used counts the entries that were ever set; guarded by mu
	entries []session
	used    int
	// latest is the time of the last find; guarded by mu
	latest time.Time
}

// session is one session. An entry without a replica is empty.
type session struct {
	key     uint64
	replica *counter
	// history are the tokens of the conversation that its next request does not repeat.
	history uint32
	// asked is when the entry was last set or found, in Unix nanoseconds
	asked int64
}

// setLocked returns the set that the key belongs to.
func (p *sessionTable) setLocked(key uint64) []session {
	sets := uint64(len(p.entries) / ways)
	at := int(key&(sets-1)) * ways
	return p.entries[at : at+ways]
}

func (x *session) isLiveAt(now int64) bool {
	return x.replica != nil && now-x.asked < int64(sessionTTL)
}

// find returns the session with this key; false means that it is not known.
func (p *sessionTable) find(key uint64, now time.Time) (session, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest = now
	if p.entries == nil {
		return session{}, false
	}
	at := now.UnixNano()
	set := p.setLocked(key)
	for i := range set {
		if set[i].key == key && set[i].isLiveAt(at) {
			set[i].asked = at
			return set[i], true
		}
	}
	return session{}, false
}

// put records that the replica serves the session from now on.
func (p *sessionTable) put(key uint64, c *counter, history uint32, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest = now
	if 2*p.used >= len(p.entries) && len(p.entries) < maxEntries {
		p.growLocked()
	}
	p.putLocked(session{key: key, history: history, replica: c, asked: p.latest.UnixNano()})
}

func (p *sessionTable) putLocked(x session) {
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
func (p *sessionTable) growLocked() {
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
	p.entries, p.used = make([]session, size), 0
	for i := range old {
		if old[i].isLiveAt(now) {
			p.putLocked(old[i])
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

// LearnResponse tells the id of the response that the replica of the ticket gives, so that a
// request which continues the response finds the replica. It may be called more than once, and
// after Release.
func (t *Ticket) LearnResponse(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id == "" {
		return
	}
	session := openai.ResponseSession(id)
	t.response = sessionKey(t.estimate.tenant, session)
	t.placeSessionLocked(t.response, t.estimate.tokens.total())
	t.placeSessionLocked(sessionKey(anyTenant, session), 0)
}

// anyTenant is not the name of a tenant. Under it the table has the responses of all tenants, so
// that a tenant who names the response of another one is known.
const anyTenant = "\x00"

// continuesOther reports whether a request continues a response that another tenant has been given.
func (w *routingTable) continuesOther(r *Request, now time.Time) bool {
	if r.Previous == "" {
		return false
	}
	ownKey, anyKey := sessionKey(r.Tenant, r.Previous), sessionKey(anyTenant, r.Previous)
	isOwn, isKnown := false, false
	for _, t := range w.routes {
		_, found := t.estimator.sessions.find(ownKey, now)
		_, known := t.estimator.sessions.find(anyKey, now)
		isOwn, isKnown = isOwn || found, isKnown || known
	}
	return isKnown && !isOwn
}

// placeSessionLocked records that the replica of the ticket serves the session from now on, and
// tells other gateways. Ticket.mu is held.
func (t *Ticket) placeSessionLocked(key uint64, history int) {
	if key == 0 {
		return
	}
	r := &t.route.replicas[t.replicaIndex]
	t.place(r, Placement{Model: t.route.Name, Replica: r.id, Session: key, History: uint32(history)})
}
