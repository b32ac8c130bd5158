package xds

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// ServerConfig is what a Server needs.
type ServerConfig struct {
	// Log gets what Envoy refuses. nil logs nothing.
	Log *zap.Logger
	// OnAck is called when Envoy knows a cluster of a model and has exactly these replicas in it, by id, at these addresses; with none when
	// it has none, or the cluster no more. A request that is routed to a replica before that fails. It is called for changes only, never
	// twice at once, must be quick, must not call the Server and must not change the map. nil is not called.
	OnAck func(cluster string, replicas map[string]netip.AddrPort)
	// Linger is how long Envoy keeps a cluster that is no longer wanted, and the last replicas of one that has none any more: a request that was
	// routed there a moment ago still has to find them, and nobody routes any more there. 0 means 2 s.
	Linger time.Duration
}

const defaultLinger = 2 * time.Second

// Server serves Resources to Envoy by the incremental form of the aggregated discovery service.
//
// It is written for one Envoy, and for two things that a general server leaves to its user. It knows which replicas Envoy has
// really taken, from Envoy's acknowledgements and from what a reconnecting Envoy says it has. And it sends the endpoints again
// with a cluster that changed, since Envoy warms such a cluster and would otherwise wait for them. The work for a change is that for
// the resources that changed and a glance at every model (BenchmarkScale).
//
// A response that Envoy refuses is sent again piece by piece, so that one bad resource is found and left as it was, and everything
// else goes on.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer

	log    *zap.Logger
	onAck  func(string, map[string]netip.AddrPort)
	linger time.Duration
	// ready is closed by the first Set. An Envoy that reconnects before that waits: an answer without its listener would remove it.
	ready chan struct{}

	mu sync.Mutex
	// world is what Envoy shall have; nil until the first Set; guarded by mu
	world *Resources
	// leaving are the clusters that are no longer wanted, and the endpoints that are to be none, while Envoy still has them; guarded by mu
	leaving [kindCount]map[string]*time.Timer
	// streams are the open streams; guarded by mu
	streams map[*stream]struct{}
	// newest is the stream that was opened last, whose Envoy counts; it stays when it has closed; guarded by mu
	newest *stream
	// status without Connected; guarded by mu
	status Status

	// ackMu is held while OnAck runs. It is taken before mu.
	ackMu sync.Mutex
	// told is what OnAck was told, by cluster; guarded by ackMu
	told map[string]*Resource
}

// Status is what the operator may want to know of the connection to Envoy.
type Status struct {
	// Connected says whether an Envoy has its stream open.
	Connected bool
	// NodeID and EnvoyVersion are what the Envoy said of itself.
	NodeID       string
	EnvoyVersion string
	// Configured says whether Envoy has taken a listener and its routes.
	Configured bool
	// Pushes counts the responses sent.
	Pushes uint64
	// Nacks counts the responses that Envoy refused. A response of several resources that was refused and then sent again piece by
	// piece counts once for the whole and once for each bad piece.
	Nacks uint64
	// LastNack is the last refusal that a single resource could be blamed for; nil when there was none.
	LastNack *Nack
	// Refused are the resources that Envoy does not take in their present form, by type and name. It goes on with what it had.
	Refused []Nack
}

// Nack is Envoy's refusal of a resource.
type Nack struct {
	// Type is "cluster", "endpoints", "listener" or "routes".
	Type string
	// Resource is the resource's name.
	Resource string
	// Message is Envoy's own.
	Message string
	Time    time.Time
}

// NewServer returns a server that has nothing to say until Set is called.
func NewServer(c ServerConfig) *Server {
	s := &Server{
		log: c.Log, onAck: c.OnAck, linger: cmp.Or(c.Linger, defaultLinger),
		ready: make(chan struct{}), streams: map[*stream]struct{}{}, told: map[string]*Resource{},
	}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	if s.onAck == nil {
		s.onAck = func(string, map[string]netip.AddrPort) {}
	}
	return s
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	discovery.RegisterAggregatedDiscoveryServiceServer(r, s)
}

// Set makes r what Envoy shall have. It returns before Envoy has it. Envoys are answered from the first Set on, so it must hold
// everything that an Envoy left running by an earlier process may still need.
func (s *Server) Set(r *Resources) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.world
	s.world = r
	if old == nil {
		close(s.ready)
		return // no stream has read anything yet
	}
	changed := differences(old, r)
	for name := range changed[clusterKind] {
		s.lingerLocked(clusterKind, name, r.find(clusterKind, name) == nil, changed)
	}
	for name := range changed[endpointKind] {
		m := r.byCluster[name]
		s.lingerLocked(endpointKind, name, m != nil && len(m.Replicas) == 0, changed)
	}
	s.spreadLocked(changed)
}

// spreadLocked has every stream look at what has changed.
func (s *Server) spreadLocked(changed names) {
	if changed.empty() {
		return
	}
	for st := range s.streams {
		st.dirty.add(changed)
		st.wakeUp()
	}
}

// lingerLocked takes a resource that leaves Envoy with nothing out of what has changed, until its time has come.
func (s *Server) lingerLocked(k resourceKind, name string, leaves bool, changed names) {
	if timer := s.leaving[k][name]; timer != nil {
		timer.Stop()
		delete(s.leaving[k], name)
	}
	if !leaves {
		return
	}
	delete(changed[k], name)
	var timer *time.Timer
	timer = time.AfterFunc(s.linger, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.leaving[k][name] == timer { // else it has come back since
			delete(s.leaving[k], name)
			var changed names
			changed.put(k, name)
			s.spreadLocked(changed)
		}
	})
	if s.leaving[k] == nil {
		s.leaving[k] = map[string]*time.Timer{}
	}
	s.leaving[k][name] = timer
}

// hold keeps endpoints that linger from being sent with a cluster that has changed: Envoy goes on with the cluster of before until it has them.
func (s *Server) hold(sub *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.leaving[endpointKind] {
		if r := sub.taken[name]; r != nil && len(r.replicas) > 0 {
			delete(sub.check, name)
		}
	}
}

// Status says how it stands with Envoy.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Connected = len(s.streams) > 0
	status.Refused = slices.Clone(status.Refused)
	return status
}

// DeltaAggregatedResources implements the discovery service.
func (s *Server) DeltaAggregatedResources(wire discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	ctx := wire.Context()
	select {
	case <-s.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	st := newStream(s, wire)
	s.open(st)
	defer s.close(st)
	return st.run(ctx)
}

func (s *Server) open(st *stream) {
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[st] = struct{}{}
	s.newest = st
	s.status.Configured = false
	s.status.Refused = nil
}

func (s *Server) close(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st)
}

// take returns the world together with what has changed in it since the last call for this stream.
func (s *Server) take(st *stream) (*Resources, names) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirty := st.dirty
	st.dirty = names{}
	return s.world, dirty
}

// current returns the world.
func (s *Server) current() *Resources {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.world
}

// report changes the status on behalf of a stream.
func (s *Server) report(st *stream, change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == st {
		change(&s.status)
	}
}

// tell calls OnAck if it is news that the stream's Envoy knows these endpoints of a model's cluster. nil: it knows none.
func (s *Server) tell(st *stream, cluster string, known *Resource) {
	if _, ok := headers.ClusterModel(cluster); !ok {
		return
	}
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	s.mu.Lock()
	stale := s.newest != st
	s.mu.Unlock()
	if stale {
		return
	}
	before := s.told[cluster]
	switch {
	case known == nil && before == nil:
	case known == nil:
		delete(s.told, cluster)
		s.onAck(cluster, nil)
	default:
		s.told[cluster] = known
		if before == nil || !maps.Equal(before.replicas, known.replicas) {
			s.onAck(cluster, known.replicas)
		}
	}
}

// recognise finds out what a resource holds that a reconnecting Envoy says it has: it is known when it is that of now, or that which
// was told last. Of any other, only the version is known.
func (s *Server) recognise(now *Resource, name, version string) *Resource {
	if now != nil && now.Version == version {
		return now
	}
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	if told := s.told[name]; told != nil && told.Version == version {
		return told
	}
	return &Resource{Name: name, Version: version}
}

// toldClusters lists the clusters that OnAck was told of.
func (s *Server) toldClusters() []string {
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	return slices.Collect(maps.Keys(s.told))
}
