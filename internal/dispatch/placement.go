package dispatch

import (
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/predict"
	"github.com/sluice-gateway/sluice/internal/prefix"
)

const (
	// indexBytes bounds the memory of all prefix indexes.
	indexBytes = 64 << 20
	// defaultCacheTokens is how many tokens the cache of a replica is taken to hold until its
	// engine tells. An index that is too large costs little, one that is too small costs much.
	defaultCacheTokens = 1 << 20
)

// newEstimator returns an estimator that has learned nothing.
func newEstimator(b *prefix.Budget) *estimator {
	return &estimator{index: prefix.NewIndex(b), rates: predict.NewModel(predict.DefaultRates), slots: map[string]*indexSlot{}}
}

// close releases the memory of the index.
func (l *estimator) close() {
	for _, s := range l.slots {
		l.index.Release(s.slot)
	}
}

// indexSlot is a replica in the prefix index of a model.
type indexSlot struct {
	slot int
	// process and since identify the run of the engine, whose cache was empty at its start.
	process process
	since   time.Time
	// cacheTokens is the capacity that the slot was given.
	cacheTokens int
}

// slotLocked returns the slot of a pickable replica in the prefix index, and applies the last news
// of its engine. The index forgets what a replica had before a restart. A server that someone else
// runs may have been restarted whenever it was not pickable. Dispatcher.mu is held.
func (l *estimator) slotLocked(r *engines.Replica, c *counter, since time.Time) int {
	s := l.slots[r.ID]
	if s == nil {
		s = &indexSlot{slot: l.index.Slot(l.cacheBytes(defaultCacheTokens)), process: processOf(r), since: since}
		l.slots[r.ID] = s
	}
	if s.process != processOf(r) || r.Launcher == engines.Upstream && !s.since.Equal(since) {
		l.index.Forget(s.slot)
	}
	s.process, s.since = processOf(r), since
	if news := c.news.Load(); news != nil {
		l.applyNewsLocked(r.ID, news)
	}
	return s.slot
}

// resizeLocked sets how many tokens the cache of a replica holds; 0 means not known.
func (l *estimator) resizeLocked(s *indexSlot, tokens int) {
	if tokens > 0 && tokens != s.cacheTokens {
		s.cacheTokens = tokens
		l.index.SetCapacity(s.slot, l.cacheBytes(tokens))
	}
}

// cacheBytes returns how many bytes of text so many tokens are.
func (l *estimator) cacheBytes(tokens int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(float64(tokens) * l.prompt.of(bytesPerPromptToken))
}

// dropSlotsLocked forgets the replicas that the model does not have any more.
func (l *estimator) dropSlotsLocked(m *engines.ModelSnapshot) {
	if len(l.slots) <= len(m.Replicas) {
		return
	}
	for id, s := range l.slots {
		if m.Replica(id) == nil {
			l.index.Release(s.slot)
			delete(l.slots, id)
		}
	}
}

// Placement says that a replica was given a prompt, and so will have it in its cache.
type Placement struct {
	Model string
	// Replica is the name of the replica among all gateways.
	Replica string
	// Chain has the beginnings of the prompt. It must not be changed.
	Chain prefix.Chain
	// Session identifies the session of the request; 0 means none. History are the tokens of the
	// session that its next request does not repeat.
	Session uint64
	History uint32
	// Owner identifies the tenant of a session that is a response; 0: the session is none.
	Owner uint32
}

// placeLocked records that the replica of the ticket has the prompt and serves the session from now
// on, and tells other gateways. Ticket.mu is held.
func (t *Ticket) placeLocked() {
	if !t.route.isCacheAware() {
		return
	}
	r := t.replicaLocked()
	p := Placement{Model: t.route.Name, Replica: r.sharedID, Chain: t.prompt.chain, Session: t.prompt.session.key}
	if p.Chain.Bytes == 0 && p.Session == 0 {
		return
	}
	t.place(r, p)
}

// place records a placement at a replica of the ticket's route, and tells other gateways of a
// replica that they may have as well.
func (t *Ticket) place(r *replica, p Placement) {
	t.route.record(r, &p)
	if p.Replica != "" {
		t.dispatcher.config.OnPlaced(p)
	}
}

// record remembers a placement at a replica of the route.
func (t *modelRoute) record(r *replica, p *Placement) {
	if len(p.Chain.Blocks)+len(p.Chain.Ends) > 0 {
		t.estimator.index.Record(r.slot, &p.Chain)
	}
	if p.Session != 0 {
		t.estimator.sessions.put(sessionID{p.Session, p.Owner}, r.counter, p.History, time.Now())
	}
}

// unplaceLocked records that the replica of the ticket does not get the prompt after all. Ticket.mu
// is held.
func (t *Ticket) unplaceLocked() {
	if t.route.isCacheAware() && t.prompt.chain.Bytes > 0 {
		t.route.estimator.index.Drop(t.replicaLocked().slot, &t.prompt.chain, int(t.matched))
	}
}

// moveWorkLocked moves the request to the queue of the replica that has taken it over. Ticket.mu is
// held.
func (t *Ticket) moveWorkLocked() {
	now := time.Now()
	t.work.Leave(now)
	r := t.replicaLocked()
	t.work = r.queue.Begin(now, int(r.load.Load())-1, t.prompt.tokens)
}

// learnLocked learns from a response that has ended: how long its first token took, and how much of
// the prompt was really cached. Ticket.mu is held.
func (t *Ticket) learnLocked(r Response) {
	now, l := time.Now(), t.estimator
	outcome := predict.Outcome{TTFT: r.TTFT, Uncached: -1}
	if r.Cached > 0 && !l.reportsCached.Load() {
		l.reportsCached.Store(true)
	}
	told := r.Known && r.Prompt > 0 && l.reportsCached.Load()
	if told {
		outcome.Uncached = float64(max(r.Prompt-r.Cached, 1))
	}
	t.work.End(now, outcome)
	if told && t.prompt.chain.Bytes > 0 && t.route.isCacheAware() {
		cached := float64(t.prompt.chain.Bytes) * float64(min(r.Cached, r.Prompt)) / float64(r.Prompt)
		l.index.Correct(t.replicaLocked().slot, int(t.matched), int(cached))
	}
	if t.response.key != 0 && r.Known {
		t.placeResponseLocked(int(r.Prompt + r.Completion))
	}
}

// Place records a placement of another gateway. A placement at an unknown replica is ignored, and
// so is one at a process of this gateway, which has no name that others know.
func (d *Dispatcher) Place(p Placement) {
	t, ok := d.table.Load().routes[p.Model]
	if !ok {
		return
	}
	if !t.isCacheAware() {
		p.Chain = prefix.Chain{}
	}
	for i := range t.replicas {
		r := &t.replicas[i]
		if r.sharedID != p.Replica || r.sharedID == "" {
			continue
		}
		t.record(r, &p)
		return
	}
}

// WaitingTokens returns, by replica, the uncached tokens of this gateway's requests that the
// replica has yet to compute. Replicas without any are not in it.
func (d *Dispatcher) WaitingTokens() map[string]int64 {
	now, waiting := time.Now(), map[string]int64{}
	for _, t := range d.table.Load().routes {
		for i := range t.replicas {
			r := &t.replicas[i]
			if n := int64(r.queue.Waiting(now)); n > 0 && r.sharedID != "" {
				waiting[r.sharedID] = n
			}
		}
	}
	return waiting
}

// SetRemoteWaiting sets the waiting tokens of another gateway by replica. Replicas that are not in
// the map have none; nil forgets the gateway.
func (d *Dispatcher) SetRemoteWaiting(gateway string, tokens map[string]int64) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.counters {
		c.queue.SetRemote(now, gateway, float64(tokens[c.sharedID]))
	}
}

// capPrefill excludes the replicas that would have more tokens to compute than
// MaxPrefillTokensPerReplica. All first tokens are reported while there is such a bound, so what a
// replica has yet to compute is known. Each first token makes the waiters retry.
func (t *modelRoute) capPrefill(p *pickInput) {
	most := float64(t.policy.MaxPrefillTokensPerReplica)
	if most <= 0 {
		return
	}
	for i := range t.replicas {
		pending := t.replicas[i].queue.Pending()
		if p.loads[i] >= 0 && pending > 0 && pending+p.forecasts.uncached[i] > most {
			p.loads[i], p.forecasts.candidates[i].Load = -1, -1
		}
	}
}
