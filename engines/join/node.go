package join

import (
	"crypto/ecdsa"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/internal/redact"
)

// Node is a machine that has joined, as the gateway knows it. Its methods may be called from
// different goroutines.
type Node struct {
	server *Server
	name   string

	// mu guards all fields below. The fleet is updated with mu held, so updates reach the fleet in
	// order.
	mu sync.Mutex
	// key is the hash of the node's public key. It is empty while unknown. lastSeen is when the
	// node last connected or disconnected.
	key      string
	lastSeen time.Time
	// session is the node's current stream, or nil.
	session *session
	// replaced counts the sessions since replacedSince that ended because a newer one came.
	replaced      int
	replacedSince time.Time
	// lastHeard is when the last report came, or when restartSilence was last called.
	lastHeard time.Time
	// lost is true since lostAt. nodeStopping is true if the node reported that it is stopping.
	lost, nodeStopping bool
	lostAt             time.Time
	// inventory is what the node reported about its machine. It is nil until the node has reported
	// in this run of the gateway.
	inventory *engines.Node
	// reported is the content of the last snapshot.
	reported []engines.Replica
	// isNewMachine is true if the node joined in this run and has not reported its replicas yet.
	// Such a node cannot run replicas of this gateway. hasReportedOnce is true if the node has
	// reported its replicas in this run.
	isNewMachine, hasReportedOnce bool
	// assignment is valid if isAssigned is true. assignedIDs are the replica ids in it. revision
	// grows with each change.
	assignment  assignment
	isAssigned  bool
	assignedIDs map[string]bool
	// known holds the ids of the replicas that were assigned to the node in this run, or were when
	// the gateway stopped. The fleet does not see any other that the node reports.
	known map[string]bool
	// peer is the address that the node last connected from.
	peer netip.Addr
	// redactors holds the result of redactorsOf for the assignment.
	redactors map[string]*redact.Redactor
	revision  uint64
	// restarts holds the text of assignment.Restarts for each replica that was restarted.
	restarts map[string]string
	// logs holds the calls for logs by their ids. askedLogs lists the requests that were not sent
	// yet.
	logs      map[string]*logCall
	askedLogs []logRequest
	// silent holds the ids of the replicas for which Suspect was called and the node was not told.
	silent []string
	// gatewayStopping is true once stop was called. The assignment is then final.
	gatewayStopping bool
	// unassignedSince holds, for each reported replica that is not assigned, since when it is not.
	unassignedSince map[string]time.Time
	// hidden holds the ids of replicas that the fleet must not see, because other nodes may have
	// replaced them while this node was lost.
	hidden map[string]bool
}

func newNode(s *Server, name string) *Node {
	return &Node{server: s, name: name, unassignedSince: map[string]time.Time{}, hidden: map[string]bool{}, known: map[string]bool{}}
}

// Name returns the name under which the node joined.
func (n *Node) Name() string { return n.name }

// Node returns the node's resources and whether the node is lost. The second result is false while
// the gateway knows neither. A node that is stopping counts as lost.
func (n *Node) Node() (engines.Node, bool) {
	labels := n.server.config.Labels(n.name)
	n.mu.Lock()
	defer n.mu.Unlock()
	lost := n.lost || n.nodeStopping
	if n.inventory == nil && !lost {
		return engines.Node{}, false
	}
	var node engines.Node
	if n.inventory != nil {
		node = *n.inventory
	}
	node.Name, node.Labels, node.Lost, node.Left = n.name, labels, lost, n.nodeStopping
	return node, true
}

// HasLeft reports whether the node has said that it stops, and has not come back since. That nobody
// hears of such a node is no fault.
func (n *Node) HasLeft() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodeStopping
}

// Replicas returns the replicas that the node reports to the fleet. A replica is included even
// while the fleet does not know the replica's model.
func (n *Node) Replicas() []engines.Replica {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.visibleReplicasLocked()
}

// Set assigns replicas to the node. The Indices of each model select them. Set does not block. A
// node that is disconnected gets the assignment when it reconnects.
func (n *Node) Set(models []local.Model) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gatewayStopping {
		return
	}
	n.assignLocked(assignment{Models: slices.Clone(models)})
}

// stop tells the node to drain all replicas. drain replaces the drain timeouts of the models.
func (n *Node) stop(drain time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gatewayStopping = true
	n.assignLocked(assignment{Models: withoutReplicas(n.assignment.Models), Stop: drain})
}

// assignLocked replaces the assignment and tells the session.
func (n *Node) assignLocked(a assignment) {
	n.isAssigned, n.assignedIDs = true, assignedIDs(a.Models)
	a.Restarts = n.restartsLocked()
	n.assignment = a
	n.redactors = redactorsOf(a.Models)
	maps.Copy(n.known, n.assignedIDs)
	signal(n.server.unsaved)
	n.revision++
	n.publishLocked()
	if n.session != nil {
		n.session.wakeSender()
	}
}

// redactorsOf returns, by model, what hides the secrets of the model's environment in the lines of
// its replicas.
func redactorsOf(models []local.Model) map[string]*redact.Redactor {
	all := map[string]*redact.Redactor{}
	for _, m := range models {
		all[m.Name] = redact.ForEnvironment(m.Env, m.SecretEnv)
	}
	return all
}

// nextAssignment returns the assignment and its revision, or nil if the caller has that revision.
func (n *Node) nextAssignment(revision uint64) (*assignment, uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.isAssigned || n.revision == revision {
		return nil, revision
	}
	current := n.assignment
	return &current, n.revision
}

// restartSilence makes the silence of the node count from now on. The server calls it when it
// starts and after it could not receive reports itself.
func (n *Node) restartSilence() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lastHeard = time.Now()
}

// record returns what the gateway stores about the node.
func (n *Node) record() nodeRecord {
	n.mu.Lock()
	defer n.mu.Unlock()
	seen := n.lastSeen
	if n.session != nil {
		seen = time.Now()
	}
	return nodeRecord{Name: n.name, Key: n.key, LastSeen: seen, Left: n.nodeStopping, Replicas: n.recordedIDsLocked()}
}

// recordedIDsLocked returns the ids of the replicas that the node may report after a restart of the
// gateway. These are the assigned replicas, and those that the node still stops. It is never nil.
func (n *Node) recordedIDsLocked() []string {
	ids := n.known
	if n.isAssigned {
		ids = maps.Clone(n.assignedIDs)
		for _, r := range n.reported {
			if n.known[r.ID] {
				ids[r.ID] = true
			}
		}
	}
	list := slices.AppendSeq([]string{}, maps.Keys(ids))
	slices.Sort(list)
	return list
}

// claimName binds the node's name to a key. It fails if the name belongs to another key, unless
// replace says that the name changes its owner. A session of the previous owner then ends.
func (n *Node) claimName(key *ecdsa.PublicKey, replace bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	hash := keyHash(key)
	if n.key != "" && n.key != hash && !replace {
		return status.Errorf(codes.AlreadyExists,
			"another machine has joined as %q: start this node with another --name, or make a token with `sluice node token --replace %s`", n.name, n.name)
	}
	if n.key != hash {
		n.disownLocked()
		n.isNewMachine = true
	}
	now := time.Now()
	n.key, n.lastSeen, n.lastHeard = hash, now, now
	return nil
}

// disownLocked forgets what the machine that owned the name has reported. n.mu is held.
func (n *Node) disownLocked() {
	if n.session != nil {
		n.session.end(errReplaced)
		n.session = nil
	}
	n.reported, n.known = nil, maps.Clone(n.assignedIDs)
	if n.known == nil {
		n.known = map[string]bool{}
	}
	n.publishLocked()
}

// checkKey returns an error if the name is bound to another key. If the name is not bound, because
// its record was forgotten, checkKey binds the name to this key: the authority has certified the
// key for the name.
func (n *Node) checkKey(key *ecdsa.PublicKey) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.checkKeyLocked(key)
}

// checkKeyLocked is checkKey with n.mu held.
func (n *Node) checkKeyLocked(key *ecdsa.PublicKey) error {
	hash := keyHash(key)
	if n.key == "" {
		n.key, n.isNewMachine = hash, true
	}
	if n.key != hash {
		return status.Errorf(codes.PermissionDenied,
			"another machine has joined as %q since: join again with a token", n.name)
	}
	return nil
}

// openSession makes s the node's session. A previous session is an old connection of the same node
// and is ended.
func (n *Node) openSession(s *session, key *ecdsa.PublicKey) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkKeyLocked(key); err != nil {
		return err
	}
	if n.session != nil {
		n.session.end(errReplaced)
		n.countReplacedLocked(s)
	}
	n.session, n.peer, n.lastHeard, n.lastSeen = s, s.peer, time.Now(), time.Now()
	return nil
}

// maxReplaced is how many sessions a node may replace within replacedWindow before the log says so.
// A node whose connection breaks replaces one, if the gateway has not noticed.
const (
	maxReplaced    = 10
	replacedWindow = time.Minute
)

// countReplacedLocked counts that s replaces the node's session. Two machines with copies of one
// state directory replace each other's without end, and the log says that once in replacedWindow.
func (n *Node) countReplacedLocked(s *session) {
	if now := time.Now(); now.Sub(n.replacedSince) >= replacedWindow {
		n.replaced, n.replacedSince = 0, now
	}
	if n.replaced++; n.replaced == maxReplaced {
		n.server.config.Log.Warn("node has replaced its connection several times within a minute; "+
			"if two machines have copies of one state directory, remove the copy and join that machine under another name",
			zap.String("node", n.name), zap.Stringer("from", s.peer), zap.Stringer("before", n.session.peer))
	}
}

// closeSession removes s from the node. The node becomes lost at once if it reported that it is
// stopping, else after LostAfter.
func (n *Node) closeSession(s *session) {
	n.mu.Lock()
	isCurrent := n.session == s
	if isCurrent {
		n.session, n.lastSeen = nil, time.Now()
	}
	lost := isCurrent && n.nodeStopping && n.markLostLocked(time.Now())
	n.mu.Unlock()
	n.notify(lost)
}

// checkSilence marks the node as lost if the gateway has not heard from it for LostAfter.
func (n *Node) checkSilence(now time.Time) {
	n.mu.Lock()
	lost := now.Sub(n.lastHeard) >= n.server.config.LostAfter && n.markLostLocked(now)
	n.mu.Unlock()
	if lost {
		n.notify(true)
	}
}

// markLostLocked marks the node as lost and ends its session. It returns false if the node was lost
// already. n.mu must be held.
func (n *Node) markLostLocked(now time.Time) bool {
	if n.lost {
		return false
	}
	n.lost, n.lostAt = true, now
	if n.session != nil {
		n.session.end(errSilent)
		n.session = nil
	}
	if log := n.server.config.Log; n.nodeStopping {
		log.Info("node left", zap.String("node", n.name))
	} else {
		log.Warn("node lost", zap.String("node", n.name), zap.Int("replicas", len(n.reported)))
	}
	n.publishLocked()
	return true
}

// notify tells ServerConfig.Changed of a change and wakes the goroutines in Server.waitFor. n.mu
// must not be held.
func (n *Node) notify(changed bool) {
	if changed {
		n.server.config.Changed()
	}
	n.server.notify()
}

// applyReport applies a report. It returns false if s is no longer the node's session.
func (n *Node) applyReport(s *session, r *report) bool {
	n.mu.Lock()
	if n.session != s {
		n.mu.Unlock()
		return false
	}
	n.lastHeard = time.Now()
	changed := false
	if r.Inventory != nil {
		now := boundInventory(r.Inventory)
		changed = n.inventory == nil || !reflect.DeepEqual(n.inventory, now)
		n.inventory = now
	}
	if r.Stopping != n.nodeStopping && (r.Stopping || r.Replicas != nil) {
		n.nodeStopping, changed = r.Stopping, true
		signal(n.server.unsaved)
	}
	if r.Replicas != nil {
		changed = n.applyReplicasLocked(s, r.Replicas) || changed
	}
	n.mu.Unlock()
	if changed || r.Replicas != nil {
		n.notify(changed)
	}
	return true
}

// applyReplicasLocked applies a snapshot. It returns true if the node was lost or if the session
// had not reported replicas before.
func (n *Node) applyReplicasLocked(s *session, p *replicaSnapshot) (back bool) {
	s.followClock(p.Clock)
	n.reported = s.acceptReplicas(p.Replicas)
	present := map[string]bool{}
	var invented []string
	// If the node was lost, or has not reported in this run, other nodes may run its replicas by
	// now. A new machine may run replicas of another gateway. A replica that was never assigned to
	// the node is the node's own invention.
	doubtful := n.isNewMachine || n.isAssigned && (n.lost || !n.hasReportedOnce)
	for _, r := range n.reported {
		present[r.ID] = true
		if (doubtful || !n.known[r.ID]) && !n.assignedIDs[r.ID] {
			n.hidden[r.ID] = true
		}
		if !n.known[r.ID] {
			invented = append(invented, r.ID)
		}
	}
	if len(invented) > 0 && !s.warned {
		s.warned = true
		n.server.config.Log.Warn("node reports replicas that were not assigned to it, they get no requests",
			zap.String("node", n.name), zap.Int("replicas", len(invented)), zap.String("first", invented[0]))
	}
	maps.DeleteFunc(n.hidden, func(id string, _ bool) bool { return !present[id] })
	back = n.lost || !s.hasReported
	if !s.hasReported {
		n.server.config.Log.Info("node connected", zap.String("node", n.name),
			zap.Int("replicas", len(n.reported)), zap.Bool("was_lost", n.lost))
	}
	n.lost, n.isNewMachine, n.hasReportedOnce, s.hasReported = false, false, true, true
	n.publishLocked()
	s.snapshots = append(s.snapshots, publishedSnapshot{p.Sequence, time.Now()})
	return back
}

// publishLocked updates unassignedSince and hidden and reports the node's replicas to the fleet.
func (n *Node) publishLocked() {
	now := time.Now()
	present := map[string]bool{}
	for _, r := range n.reported {
		if n.isAssigned && !n.assignedIDs[r.ID] {
			present[r.ID] = true
			if _, ok := n.unassignedSince[r.ID]; !ok {
				n.unassignedSince[r.ID] = now
			}
		} else if n.isAssigned {
			delete(n.hidden, r.ID)
		}
	}
	maps.DeleteFunc(n.unassignedSince, func(id string, _ time.Time) bool { return !present[id] })
	n.server.config.Fleet.Set("node/"+n.name, engines.Part{Replicas: n.visibleReplicasLocked()})
}

// visibleReplicasLocked returns the replicas to show in the fleet, with the states that the gateway
// derives. A replica has failed if the node is lost, and drains if it is not assigned.
func (n *Node) visibleReplicasLocked() []engines.Replica {
	var shown []engines.Replica
	for _, r := range n.reported {
		since, unassigned := n.unassignedSince[r.ID]
		switch {
		case n.hidden[r.ID], n.lost && unassigned:
			continue
		case !n.mayListenLocked(r.Address):
			r = asFailed(r, fmt.Sprintf("the node reports it at %s and connects from %s: start the node with --address %s, or list the address in nodes",
				r.Address.Addr(), n.peer, n.peer))
		case n.lost:
			r = asFailed(r, fmt.Sprintf("node %s does not answer", n.name))
			r.Since = n.lostAt.UTC()
		case unassigned && r.State != engines.Draining:
			r.State, r.Reason, r.Since = engines.Draining, "no longer wanted", since.UTC()
		}
		shown = append(shown, r)
	}
	return shown
}

// mayListenLocked reports whether a replica of the node may be at the address. It may be at the one
// that the node connects from, or at one that the configuration lists for the node. Otherwise a
// node could have the gateway send requests to any machine that the gateway reaches. A replica
// without an address gets no requests.
func (n *Node) mayListenLocked(address netip.AddrPort) bool {
	ip := address.Addr().Unmap()
	contains := func(p netip.Prefix) bool { return p.Contains(ip) }
	return !address.IsValid() || ip == n.peer || slices.ContainsFunc(n.server.config.Addresses(n.name), contains)
}

// republish reports the node's replicas to the fleet again.
func (n *Node) republish() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.publishLocked()
}

// asFailed returns r in state failed, without process and address, so that no request is sent to
// it. Nobody knows when the replica is started again.
func asFailed(r engines.Replica, why string) engines.Replica {
	r.State, r.Reason = engines.Failed, why
	r.PID, r.Address, r.NextStart = 0, netip.AddrPort{}, time.Time{}
	return r
}

// hasReported reports whether the node has reported its replicas in its current session or is lost.
func (n *Node) hasReported() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lost || n.session != nil && n.session.hasReported
}

// mayHaveReplicas reports whether the node is connected or expected back, and has or may have
// replicas.
func (n *Node) mayHaveReplicas() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.lost && (len(n.reported) > 0 || n.session != nil && !n.session.hasReported)
}

// replicaAddresses returns the addresses of the reported replicas by their ids.
func (n *Node) replicaAddresses() map[string]netip.AddrPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make(map[string]netip.AddrPort, len(n.reported))
	for _, r := range n.reported {
		all[r.ID] = r.Address
	}
	return all
}
