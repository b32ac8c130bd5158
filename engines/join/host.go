package join

import (
	"crypto/ecdsa"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

// Host is a node that has joined, as the gateway knows it.
type Host struct {
	server *Server
	name   string

	// mu guards all that follows. The fleet is told under it, so that it never hears an older state last.
	mu sync.Mutex
	// key is the hash of the node's public key; empty until it is known. seen is when it came or went last.
	key  string
	seen time.Time
	// session is the stream that the node has; nil while it has none.
	session *session
	// heard is when it gave its last sign of life, or when it was last expected to give one from now on.
	heard time.Time
	// lost since lostAt; leaving: it said that it is about to end.
	lost, leaving bool
	lostAt        time.Time
	// inventory is what it has; nil until it has said so in this run of the gateway.
	inventory *engines.Node
	// told is what it said last of its replicas.
	told []engines.Replica
	// fresh: it joined in this run and has not said yet what it has, so that nothing there can be ours. heardOf: it has said so in this run.
	fresh, heardOf bool
	// wish is what shall be there once wished is true; named are the ids in it, edition tells wishes apart.
	wish    wish
	wished  bool
	named   map[string]bool
	edition uint64
	// stopping: the gateway stops, and the wish is final.
	stopping bool
	// unnamed is since when a replica that is still there is wanted no longer.
	unnamed map[string]time.Time
	// expelled are replicas that the fleet never hears of: others took over while the node was lost.
	expelled map[string]bool
}

func newHost(s *Server, name string) *Host {
	return &Host{server: s, name: name, unnamed: map[string]time.Time{}, expelled: map[string]bool{}}
}

// Name is the name that the node joined by.
func (h *Host) Name() string { return h.name }

// Node is what the node has, and whether it is lost; false before that is known. A node that is about to end counts as lost.
func (h *Host) Node() (engines.Node, bool) {
	labels := h.server.config.Labels(h.name)
	h.mu.Lock()
	defer h.mu.Unlock()
	lost := h.lost || h.leaving
	if h.inventory == nil && !lost {
		return engines.Node{}, false
	}
	var node engines.Node
	if h.inventory != nil {
		node = *h.inventory
	}
	node.Name, node.Labels, node.Lost = h.name, labels, lost
	return node, true
}

// Replicas are those that the fleet is told of. Unlike the fleet's they are complete before the fleet knows their models.
func (h *Host) Replicas() []engines.Replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shownLocked()
}

// Set says which replicas, by the models' Indices, there shall be on the node. It does not block: a node that is away is told when it
// is back.
func (h *Host) Set(models []local.Model) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping {
		return
	}
	h.setLocked(wish{Models: slices.Clone(models)})
}

// stop has the node end its replicas.
func (h *Host) stop(drain time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping = true
	h.setLocked(wish{Models: without(h.wish.Models), Stop: drain})
}

func (h *Host) setLocked(w wish) {
	h.wish, h.wished, h.named = w, true, named(w.Models)
	h.edition++
	h.publishLocked()
	if h.session != nil {
		h.session.poke()
	}
}

// newWish is the wish, if its edition is another one.
func (h *Host) newWish(edition uint64) (*wish, uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.wished || h.edition == edition {
		return nil, edition
	}
	w := h.wish
	return &w, h.edition
}

// expect begins to wait for a node, of an earlier run, or when we could not hear it.
func (h *Host) expect() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = time.Now()
}

// known is what is kept of the node.
func (h *Host) known() knownNode {
	h.mu.Lock()
	defer h.mu.Unlock()
	return knownNode{Name: h.name, Key: h.key, Seen: h.seen}
}

// take makes the name this key's, unless a living node has it.
func (h *Host) take(key *ecdsa.PublicKey) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	hash := keyHash(key)
	now := time.Now()
	alive := h.session != nil || now.Sub(h.heard) < h.server.config.LostAfter
	if h.key != "" && h.key != hash && alive {
		return status.Errorf(codes.AlreadyExists, "another node is connected as %q: give this one a name of its own (--name)", h.name)
	}
	if h.key != hash {
		h.fresh = true
	}
	h.key, h.seen, h.heard = hash, now, now
	return nil
}

// holds refuses a key that is not the name's. A name that nobody has any more is the key's that comes with a certificate for it.
func (h *Host) holds(key *ecdsa.PublicKey) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holdsLocked(key)
}

func (h *Host) holdsLocked(key *ecdsa.PublicKey) error {
	hash := keyHash(key)
	if h.key == "" {
		h.key, h.fresh = hash, true
	}
	if h.key != hash {
		return status.Errorf(codes.PermissionDenied, "another machine has joined as %q since: join again", h.name)
	}
	return nil
}

// attach makes the session the node's. One before it is an old connection of the same node, and ends.
func (h *Host) attach(s *session, key *ecdsa.PublicKey) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.holdsLocked(key); err != nil {
		return err
	}
	if h.session != nil {
		h.session.end(errReplaced)
	}
	h.session, h.heard, h.seen = s, time.Now(), time.Now()
	return nil
}

// detach is the end of a session. The node is not lost yet, unless it said goodbye.
func (h *Host) detach(s *session) {
	h.mu.Lock()
	gone := h.session == s
	if gone {
		h.session, h.seen = nil, time.Now()
	}
	lost := gone && h.leaving && h.loseLocked(time.Now())
	h.mu.Unlock()
	h.spread(lost)
}

// look finds out whether the node is lost.
func (h *Host) look(now time.Time) {
	h.mu.Lock()
	lost := now.Sub(h.heard) >= h.server.config.LostAfter && h.loseLocked(now)
	h.mu.Unlock()
	if lost {
		h.spread(true)
	}
}

func (h *Host) loseLocked(now time.Time) bool {
	if h.lost {
		return false
	}
	h.lost, h.lostAt = true, now
	if h.session != nil {
		h.session.end(errSilent)
		h.session = nil
	}
	if log := h.server.config.Log; h.leaving {
		log.Info("a node has left", zap.String("node", h.name))
	} else {
		log.Warn("a node does not answer", zap.String("node", h.name), zap.Int("replicas", len(h.told)))
	}
	h.publishLocked()
	return true
}

// spread tells others of a change. The lock is not held.
func (h *Host) spread(changed bool) {
	if changed {
		h.server.config.Changed()
	}
	h.server.tell()
}

// hear takes in what the node says. False: the session is no longer the node's.
func (h *Host) hear(s *session, r *report) bool {
	h.mu.Lock()
	if h.session != s {
		h.mu.Unlock()
		return false
	}
	h.heard = time.Now()
	changed := false
	if r.Inventory != nil {
		now := checkInventory(r.Inventory)
		changed = h.inventory == nil || !reflect.DeepEqual(h.inventory, now)
		h.inventory = now
	}
	if r.Leaving != h.leaving && (r.Leaving || r.Replicas != nil) {
		h.leaving, changed = r.Leaving, true
	}
	if r.Replicas != nil {
		changed = h.acceptLocked(s, r.Replicas) || changed
	}
	h.mu.Unlock()
	if changed || r.Replicas != nil {
		h.spread(changed)
	}
	return true
}

// acceptLocked takes in a picture of the node's replicas, and tells whether with it the node is back.
func (h *Host) acceptLocked(s *session, p *replicas) (back bool) {
	h.told = s.check(p.Replicas)
	present := map[string]bool{}
	// Others may have taken over what the node had when it was lost, or before we heard of it; what it has of its own is not ours.
	doubtful := h.fresh || h.wished && (h.lost || !h.heardOf)
	for _, r := range h.told {
		present[r.ID] = true
		if doubtful && !h.named[r.ID] {
			h.expelled[r.ID] = true
		}
	}
	for id := range h.expelled {
		if !present[id] {
			delete(h.expelled, id)
		}
	}
	back = h.lost || !s.told
	if !s.told {
		h.server.config.Log.Info("a node is connected", zap.String("node", h.name), zap.Int("replicas", len(h.told)), zap.Bool("was_lost", h.lost))
	}
	h.lost, h.fresh, h.heardOf, s.told = false, false, true, true
	h.publishLocked()
	s.pictures = append(s.pictures, picture{p.Sequence, time.Now()})
	return back
}

// publishLocked reports to the fleet.
func (h *Host) publishLocked() {
	now := time.Now()
	present := map[string]bool{}
	for _, r := range h.told {
		if h.wished && !h.named[r.ID] {
			present[r.ID] = true
			if _, ok := h.unnamed[r.ID]; !ok {
				h.unnamed[r.ID] = now
			}
		} else if h.wished {
			delete(h.expelled, r.ID)
		}
	}
	for id := range h.unnamed {
		if !present[id] {
			delete(h.unnamed, id)
		}
	}
	h.server.config.Fleet.Set("node/"+h.name, engines.Part{Replicas: h.shownLocked()})
}

// shownLocked is what the fleet hears.
func (h *Host) shownLocked() []engines.Replica {
	var shown []engines.Replica
	for _, r := range h.told {
		since, unnamed := h.unnamed[r.ID]
		switch {
		case h.expelled[r.ID], h.lost && unnamed:
			continue
		case h.lost:
			r = failed(r, fmt.Sprintf("node %s does not answer", h.name))
			r.Since = h.lostAt.UTC()
		case unnamed && r.State != engines.Draining:
			r.State, r.Reason, r.Since = engines.Draining, "no longer wanted", since.UTC()
		}
		shown = append(shown, r)
	}
	return shown
}

// failed is the replica as nobody should call it.
func failed(r engines.Replica, why string) engines.Replica {
	r.State, r.Reason = engines.Failed, why
	r.PID, r.Address = 0, noAddress
	return r
}

// settled: the node has said in this session which replicas it has, or is lost.
func (h *Host) settled() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost || h.session != nil && h.session.told
}

// occupied: there are replicas, or may be, and the node can be told to end them.
func (h *Host) occupied() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.lost && (len(h.told) > 0 || h.session != nil && !h.session.told)
}

// ids are the node's replicas.
func (h *Host) ids() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := make([]string, len(h.told))
	for i, r := range h.told {
		ids[i] = r.ID
	}
	return ids
}
