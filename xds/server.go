package xds

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// ServerConfig holds the parameters of a Server. The zero value is valid.
type ServerConfig struct {
	// Log receives the resources that Envoy refuses. nil discards messages.
	Log *zap.Logger
	// OnAck is called when Envoy has acknowledged a change of the replicas of a model's cluster.
	// replicas are the ids and addresses of all replicas that Envoy has there. It is nil when Envoy
	// no longer has the cluster, or has no endpoints of it. A request that is routed to a replica
	// before Envoy has acknowledged it fails. With several Envoys, replicas are what all of them
	// have, but for those that refuse the cluster while others take it.
	//
	// The calls are sequential. OnAck must return quickly, must not call the Server, and must not
	// change the map. nil means no calls.
	OnAck func(cluster string, replicas map[string]netip.AddrPort)
	// Linger is how long Envoy keeps a cluster that is no longer wanted, and the last endpoints of
	// a cluster that no longer has any. A request that was routed there a moment ago must still
	// find them, while no new request is routed there. 0 means 2 s.
	Linger time.Duration
}

const defaultLinger = 2 * time.Second

// Server serves Resources to Envoy by the delta form of the aggregated discovery service.
//
// It serves the Envoy of this host, and Envoys of other hosts, which have clusters over TLS instead
// of unix sockets. It does two things that general servers leave to their users. It knows which
// replicas every Envoy really has, from their acknowledgements and from what a reconnecting Envoy
// reports (acks.go). And it sends the endpoints again after a cluster that changed, since Envoy
// warms such a cluster and would otherwise wait for them. A change costs the work for the resources
// that changed and a comparison for each model (BenchmarkScale).
//
// Envoy refuses a response as a whole. The Server then sends its resources again one by one. Envoy
// keeps its old version of the one bad resource, and all others take effect.
//
// Lock order: ackMu before mu.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer

	log    *zap.Logger
	onAck  func(string, map[string]netip.AddrPort)
	linger time.Duration
	// ready is closed by the first Set. An Envoy that reconnects before that has to wait, since it
	// would remove its listener after an answer without one.
	ready chan struct{}

	// retired ends with Retire.
	retired context.Context
	retire  context.CancelFunc

	mu sync.Mutex
	// resources is what Envoy should have. It is nil until the first Set. Guarded by mu.
	resources *Resources
	// lingering has a timer for each cluster that is no longer wanted and for each cluster whose
	// endpoints are to become none, while Envoy still has them. Guarded by mu.
	lingering [kindCount]map[string]*time.Timer
	// streams are the open streams. Guarded by mu.
	streams map[*stream]struct{}
	// predecessors are the nodes of the Envoys of this host that were replaced, each with what all
	// Envoys should have had at that moment. nil means that this was before this process. Guarded
	// by mu.
	predecessors map[string]*Resources
	// newestStream is the stream whose Envoy the status is about. It is the stream of this host
	// that counts, open or closed, or the stream of its successor. If this host never had one, it
	// is the last stream of another host. Guarded by mu.
	newestStream *stream
	// status is the current Status without Connected. Guarded by mu.
	status Status

	// ackMu is held while OnAck runs.
	ackMu sync.Mutex
	// acks say what each Envoy has. Guarded by ackMu.
	acks acks
}

// Status describes the connection to Envoy to an operator.
type Status struct {
	// Connected means that an Envoy has a stream open, and Envoys how many have.
	Connected bool
	Envoys    int
	// NodeID and EnvoyVersion are what Envoy reports about itself.
	NodeID       string
	EnvoyVersion string
	// Configured means that Envoy has acknowledged a listener, its routes and its secrets.
	Configured bool
	// Certificate is the chain of the listener's certificate that Envoy acknowledged last, in PEM.
	// It is empty if this process did not send it.
	Certificate string
	// Nacks counts the responses that any Envoy refused. If a response with several resources is
	// refused, it counts once, and each bad resource that is then refused alone counts once.
	Nacks uint64
	// LastNack is the last refusal of a single resource by any Envoy. nil means that there was
	// none.
	LastNack *Nack
	// Refused are the resources whose current version Envoy refuses, by type and name, and then
	// those that each other Envoy of another host refuses. An Envoy keeps its old versions.
	Refused []Nack
}

// Nack is Envoy's refusal of a resource.
type Nack struct {
	// Type is "cluster", "endpoints", "filter", "secret", "listener" or "routes".
	Type string
	// Envoy is the node and the address of an Envoy of another host. It is empty for the Envoy of
	// this host.
	Envoy string
	// Resource is the name of the resource.
	Resource string
	// Message is Envoy's own message.
	Message string
	Time    time.Time
}

// NewServer returns a server that answers no Envoy until Set is called.
func NewServer(c ServerConfig) *Server {
	s := &Server{
		log: cmp.Or(c.Log, zap.NewNop()), onAck: c.OnAck, linger: cmp.Or(c.Linger, defaultLinger),
		ready: make(chan struct{}), streams: map[*stream]struct{}{}, acks: newAcks(),
	}
	s.retired, s.retire = context.WithCancel(context.Background())
	if s.onAck == nil {
		s.onAck = func(string, map[string]netip.AddrPort) {}
	}
	return s
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	discovery.RegisterAggregatedDiscoveryServiceServer(r, s)
}

// Set replaces the resources that Envoy should have. It returns before Envoy has them. From the
// first Set on, Envoys are answered, so r must contain everything that an Envoy of an earlier
// process may still need.
func (s *Server) Set(r *Resources) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.resources
	s.resources = r
	if old == nil {
		close(s.ready)
		// No stream has read any resources yet.
		return
	}
	changed := differences(old, r)
	for name := range changed[clusterKind] {
		s.lingerLocked(clusterKind, name, r.find(clusterKind, name) == nil, changed)
	}
	for name := range changed[endpointKind] {
		m := r.byCluster[name]
		s.lingerLocked(endpointKind, name, m != nil && len(m.Replicas) == 0, changed)
	}
	s.notifyStreamsLocked(changed)
}

// notifyStreamsLocked makes every stream check the resources that changed. s.mu is held.
func (s *Server) notifyStreamsLocked(changed nameSet) {
	if changed.empty() {
		return
	}
	for st := range s.streams {
		st.changed.add(changed)
		st.signal()
	}
}

// lingerLocked removes a resource from changed if Envoy would have nothing afterwards, and starts
// the timer that changes it later. A timer of an earlier change is stopped. s.mu is held.
func (s *Server) lingerLocked(k resourceKind, name string, gone bool, changed nameSet) {
	if timer := s.lingering[k][name]; timer != nil {
		timer.Stop()
		delete(s.lingering[k], name)
	}
	if !gone {
		return
	}
	delete(changed[k], name)
	var timer *time.Timer
	timer = time.AfterFunc(s.linger, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		// Otherwise the resource has returned since.
		if s.lingering[k][name] == timer {
			delete(s.lingering[k], name)
			var changed nameSet
			changed.put(k, name)
			s.notifyStreamsLocked(changed)
		}
	})
	if s.lingering[k] == nil {
		s.lingering[k] = map[string]*time.Timer{}
	}
	s.lingering[k][name] = timer
}

// skipLingeringEndpoints prevents sub from sending endpoints that linger after their cluster has
// changed. Envoy keeps the old cluster until it gets endpoints.
func (s *Server) skipLingeringEndpoints(sub *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.lingering[endpointKind] {
		if r := sub.acked[name]; r != nil && len(r.replicas) > 0 {
			delete(sub.toCheck, name)
		}
	}
}

// Status returns the current status.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Connected, status.Envoys = len(s.streams) > 0, len(s.streams)
	status.Refused = s.refusedLocked()
	return status
}

// refusedLocked returns the refusals of the Envoy that the status is about, and of those of other
// hosts. s.mu is held.
func (s *Server) refusedLocked() []Nack {
	var all []Nack
	add := func(st *stream) {
		for _, n := range st.refused {
			n.Envoy = st.name()
			all = append(all, n)
		}
	}
	if s.newestStream != nil {
		add(s.newestStream)
	}
	others := slices.DeleteFunc(slices.Collect(maps.Keys(s.streams)), func(st *stream) bool { return st == s.newestStream || st.remote == nil })
	for _, st := range slices.SortedFunc(slices.Values(others), func(a, b *stream) int { return strings.Compare(a.name(), b.name()) }) {
		add(st)
	}
	return all
}

// DeltaAggregatedResources implements the discovery service.
func (s *Server) DeltaAggregatedResources(wire discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	ctx, cancel := context.WithCancel(wire.Context())
	defer cancel()
	defer context.AfterFunc(s.retired, cancel)()
	select {
	case <-s.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	st := newStream(s, wire)
	if st.remote = remoteOf(wire.Context()); st.remote != nil {
		s.log.Info("Envoy of another host connected", zap.String("address", st.remote.peer))
	}
	return st.run(ctx)
}

// SetPredecessors names the nodes of those Envoys of this host that another one replaces. Such an
// Envoy keeps its listener, its routes and its filters, whatever Set says from now on. They are for
// its successor, and a listener that changes would cut its streams. It counts for OnAck until its
// successor has a whole configuration. Each call replaces the list.
func (s *Server) SetPredecessors(nodes []string) {
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	s.mu.Lock()
	before := s.predecessors
	s.predecessors = make(map[string]*Resources, len(nodes))
	for _, node := range nodes {
		known, was := before[node]
		if !was {
			known = s.resources
		}
		s.predecessors[node] = known
	}
	for st := range s.streams {
		s.markLocked(st)
	}
	// A stream that has ended stays that of a predecessor, whose successor is to count.
	if st := s.acks.local; st != nil {
		s.preferLocked(st)
	}
	s.mu.Unlock()
	s.tellAllLocked()
}

// preferLocked has another Envoy of this host count in the place of a predecessor, if there is
// one. s.ackMu and s.mu are held.
func (s *Server) preferLocked(to *stream) {
	for st := range s.streams {
		if to.predecessor && st.remote == nil && !st.predecessor && st.counts {
			s.promoteLocked(st)
		}
	}
}

// promoteLocked has the Envoy of a stream of this host count in the place of the one that counted.
// The status is about it from now on. s.ackMu and s.mu are held.
func (s *Server) promoteLocked(st *stream) {
	s.acks.local = st
	if s.newestStream == st {
		return
	}
	s.newestStream = st
	s.status.NodeID, s.status.EnvoyVersion, s.status.Configured = st.about.NodeID, st.about.EnvoyVersion, st.about.Configured
	s.status.Certificate = cmp.Or(st.about.Certificate, s.status.Certificate)
}

// isNewestLocked reports whether the status is to be about a stream that is added. s.ackMu and s.mu
// are held.
func (s *Server) isNewestLocked(st *stream) bool {
	before, local := s.newestStream, s.acks.local
	switch {
	case before == nil || before.remote != nil:
		return true
	case st.remote != nil:
		return false
	case local != nil && local != st && local.predecessor == st.predecessor:
		return false // the other one is open; see acks.addLocal
	}
	return !st.predecessor || before.predecessor
}

// markLocked notes whether the Envoy of a stream is a predecessor. s.ackMu and s.mu are held.
func (s *Server) markLocked(st *stream) {
	_, replaced := s.predecessors[st.node]
	st.predecessor = replaced && st.remote == nil
}

// Retire ends all streams, and every later one at once: another process tells Envoy what it should
// have from now on. Envoy connects again.
func (s *Server) Retire() { s.retire() }

// addStream adds an open stream. The Envoy of this host may have broken off an earlier one.
func (s *Server) addStream(st *stream) {
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[st] = struct{}{}
	s.markLocked(st)
	s.acks.add(st)
	if s.isNewestLocked(st) {
		s.newestStream = st
		s.status.Configured = false
	}
}

// removeStream forgets a stream that has ended.
func (s *Server) removeStream(st *stream) {
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	s.mu.Lock()
	delete(s.streams, st)
	s.acks.end(st)
	if next := s.acks.successor(); st == s.acks.local && next != nil {
		s.promoteLocked(next)
	}
	s.mu.Unlock()
	s.tellAllLocked()
}

// resourcesAndChanges returns the resources and the names that changed since the last call for this
// stream. It also returns whether the resources that do not depend on the fleet are those of this
// Envoy. Those of an Envoy that has left before this process began are not known.
func (s *Server) resourcesAndChanges(st *stream) (r *Resources, changed nameSet, static bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = st.changed
	st.changed = nameSet{}
	if known, replaced := s.predecessors[st.node]; replaced && st.remote == nil {
		if known == nil {
			return s.resources, changed, false
		}
		return s.resources.with(known), changed, true
	}
	return s.resources, changed, true
}

// currentResources returns the resources that Envoy should have.
func (s *Server) currentResources() *Resources {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resources
}

// updateStatus calls change, with s.mu held, for the status of the stream's own Envoy. It also
// calls change for the status of the server if that is about this Envoy.
func (s *Server) updateStatus(st *stream, change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&st.about)
	if s.newestStream == st {
		change(&s.status)
	}
}

// countNack counts a response that an Envoy refused.
func (s *Server) countNack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Nacks++
}

// setLastNack records the refusal of a single resource.
func (s *Server) setLastNack(n *Nack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.LastNack = n
}
