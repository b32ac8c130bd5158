package xds

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/status"
)

// stream is one Envoy's stream. All but dirty belongs to the goroutine in run.
type stream struct {
	server *Server
	wire   discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	// wake has room for one signal that dirty is not empty.
	wake chan struct{}
	// dirty is what changed in the world and was not looked at yet; guarded by Server.mu
	dirty names

	subscriptions [kindCount]*subscription
	// warming are the clusters that were sent before Envoy asked for any endpoints. It makes them anew, so it needs their
	// endpoints, even those that it has from an earlier stream.
	warming map[string]struct{}
	nonce   uint64
}

func newStream(s *Server, wire discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) *stream {
	return &stream{server: s, wire: wire, wake: make(chan struct{}, 1), warming: map[string]struct{}{}}
}

func (st *stream) wakeUp() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// run serves the stream until it ends.
func (st *stream) run(ctx context.Context) error {
	requests := make(chan *discovery.DeltaDiscoveryRequest)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			request, err := st.wire.Recv()
			if err != nil {
				return // Envoy has gone; it comes back by itself
			}
			select {
			case requests <- request:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case request := <-requests:
			st.handle(request)
		case <-st.wake:
		case <-ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := st.flush(); err != nil {
			return fmt.Errorf("xds: sending to Envoy: %w", err)
		}
	}
}

// handle takes a request: the answer to a response, a change of what Envoy wants, or both.
func (st *stream) handle(request *discovery.DeltaDiscoveryRequest) {
	if node := request.GetNode(); node != nil {
		st.server.report(st, func(s *Status) { s.NodeID, s.EnvoyVersion = node.GetId(), versionOf(node) })
	}
	k, ok := kindOf(request.GetTypeUrl())
	if !ok {
		st.server.log.Warn("Envoy asks for a type of resource that it was never told of", zap.String("type", request.GetTypeUrl()))
		return
	}
	sub := st.subscriptions[k]
	if sub == nil {
		st.begin(k, request)
		return
	}
	if nonce := request.GetResponseNonce(); nonce != "" {
		st.answered(k, nonce, request.GetErrorDetail())
	}
	for _, name := range sub.change(request) {
		st.noteTaken(k, name)
	}
}

func versionOf(node *core.Node) string {
	v := node.GetUserAgentBuildVersion().GetVersion()
	return fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
}

// begin takes the first request of a kind, in which a reconnecting Envoy says what it already has.
func (st *stream) begin(k resourceKind, request *discovery.DeltaDiscoveryRequest) {
	world := st.server.current()
	sub := newSubscription(request)
	st.subscriptions[k] = sub
	if sub.wildcard {
		maps.Copy(sub.check, world.all(k))
	}
	for name, version := range request.GetInitialResourceVersions() {
		sub.check[name] = struct{}{}
		sub.taken[name] = st.server.recognise(world.find(k, name), name, version)
		if _, anew := st.warming[name]; k != endpointKind || !anew {
			sub.sent[name] = version
		}
	}
	if k == endpointKind {
		clear(st.warming)
	}
	if k == endpointKind || k == clusterKind && len(sub.taken) == 0 {
		// Now it is clear what this Envoy has. What an earlier stream told beyond it is no longer true.
		for _, cluster := range st.server.toldClusters() {
			st.server.tell(st, cluster, st.known(cluster))
		}
	}
	for name := range sub.taken {
		st.noteTaken(k, name)
	}
}

// flush sends what Envoy wants and does not have, kind by kind.
func (st *stream) flush() error {
	world, dirty := st.server.take(st)
	for k := range kindCount {
		sub := st.subscriptions[k]
		if sub == nil {
			continue
		}
		for name := range dirty[k] {
			sub.check[name] = struct{}{}
		}
		if k == endpointKind {
			st.server.hold(sub)
		}
		refused := len(sub.refused)
		responses := sub.outstanding(k, world)
		if len(sub.refused) != refused {
			st.reportRefused()
		}
		for _, r := range responses {
			if err := st.send(k, sub, r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (st *stream) send(k resourceKind, sub *subscription, r response) error {
	st.nonce++
	nonce := strconv.FormatUint(st.nonce, 10)
	message := &discovery.DeltaDiscoveryResponse{TypeUrl: k.typeURL(), Nonce: nonce, RemovedResources: r.removed}
	for _, res := range r.resources {
		message.Resources = append(message.Resources, &discovery.Resource{Name: res.Name, Version: res.Version, Resource: res.packed})
		if k == clusterKind {
			st.warm(res.Name)
		}
	}
	sub.pending[nonce] = r
	st.unsettle(k, r)
	st.server.report(st, func(s *Status) { s.Pushes++ })
	return st.wire.Send(message)
}

// unsettle tells what Envoy may have no more once it reads a response: a replica that comes back meanwhile is not picked before Envoy has it again.
func (st *stream) unsettle(k resourceKind, r response) {
	switch k {
	case clusterKind:
		for _, name := range r.removed {
			st.dropped(name)
		}
	case endpointKind:
		sub := st.subscriptions[k]
		for _, res := range r.resources {
			if taken := sub.taken[res.Name]; taken != nil {
				sub.taken[res.Name] = taken.and(res)
				st.noteTaken(k, res.Name)
			}
		}
	}
}

// dropped takes note that Envoy has a cluster no more, and with it its endpoints.
func (st *stream) dropped(cluster string) {
	for _, k := range []resourceKind{clusterKind, endpointKind} {
		if sub := st.subscriptions[k]; sub != nil {
			delete(sub.taken, cluster)
		}
	}
	st.noteTaken(clusterKind, cluster)
}

// warm notes that Envoy makes a cluster anew and needs its endpoints after it.
func (st *stream) warm(cluster string) {
	sub := st.subscriptions[endpointKind]
	if sub == nil {
		st.warming[cluster] = struct{}{}
		return
	}
	delete(sub.sent, cluster)
	sub.check[cluster] = struct{}{}
}

// answered takes Envoy's answer to a response. No refusal is an acknowledgement.
func (st *stream) answered(k resourceKind, nonce string, refusal *status.Status) {
	sub := st.subscriptions[k]
	r, ok := sub.pending[nonce]
	if !ok {
		return
	}
	delete(sub.pending, nonce)
	if refusal != nil {
		st.refused(k, r, refusal.GetMessage())
		return
	}
	forgiven := false
	for _, res := range r.resources {
		sub.taken[res.Name] = sub.sure(res)
		if _, was := sub.refused[res.Name]; was {
			delete(sub.refused, res.Name)
			forgiven = true
		}
		st.noteTaken(k, res.Name)
	}
	for _, name := range r.removed {
		if k == clusterKind {
			st.dropped(name) // again: older endpoints may have been acknowledged meanwhile
			continue
		}
		delete(sub.taken, name)
		st.noteTaken(k, name)
	}
	if forgiven {
		st.reportRefused()
	}
}

// noteTaken passes on that what Envoy has of a resource has changed.
func (st *stream) noteTaken(k resourceKind, name string) {
	switch k {
	case clusterKind, endpointKind:
		if st.subscriptions[endpointKind] == nil && st.subscriptions[clusterKind].taken[name] != nil {
			return // Envoy has not said yet which endpoints it has
		}
		st.server.tell(st, name, st.known(name))
	case listenerKind, routeKind:
		configured := st.has(listenerKind) && st.has(routeKind)
		st.server.report(st, func(s *Status) { s.Configured = configured })
	}
}

func (st *stream) has(k resourceKind) bool {
	return st.subscriptions[k] != nil && len(st.subscriptions[k].taken) > 0
}
