package xds

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strconv"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/status"
)

// stream is the stream of one Envoy. All fields without a guard belong to the goroutine in run.
type stream struct {
	server *Server
	wire   discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	// wake holds one signal if changed is not empty.
	wake chan struct{}
	// changed are the names that changed since the last flush. Guarded by Server.mu.
	changed nameSet
	// about is the status of this Envoy alone. Guarded by Server.mu.
	about Status

	// remote is nil for the Envoy of this host. node is the id of its node.
	remote *remote
	node   string
	// predecessor tells that another Envoy of this host has replaced this one. Guarded by
	// Server.ackMu.
	predecessor bool
	// acked are the endpoints that Envoy has, by cluster. counts tells that only what this Envoy
	// has, too, may be picked. Guarded by Server.ackMu.
	acked  map[string]*Resource
	counts bool
	// refused are the resources that Envoy refuses. Written with Server.ackMu and Server.mu, read
	// with either.
	refused []Nack

	subscriptions [kindCount]*subscription
	// complete tells that Envoy has acknowledged a whole configuration on this stream.
	complete bool
	// warming are the clusters that were sent before Envoy subscribed to endpoints. Envoy rebuilds
	// them and needs their endpoints again, even those that it has from an earlier stream.
	warming map[string]struct{}
	nonce   uint64
}

func newStream(s *Server, wire discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) *stream {
	return &stream{server: s, wire: wire, wake: make(chan struct{}, 1), acked: map[string]*Resource{}, warming: map[string]struct{}{}}
}

// name returns the node and the address of an Envoy of another host; "" for that of this host.
func (st *stream) name() string {
	if st.remote == nil {
		return ""
	}
	return fmt.Sprintf("%s at %s", st.node, st.remote.host())
}

// nameField is the name of an Envoy of another host for the log; nothing for that of this host.
func (st *stream) nameField() zap.Field {
	if name := st.name(); name != "" {
		return zap.String("envoy", name)
	}
	return zap.Skip()
}

// signal wakes the goroutine in run.
func (st *stream) signal() {
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
				// Envoy is gone. It reconnects by itself.
				return
			}
			select {
			case requests <- request:
			case <-ctx.Done():
				return
			}
		}
	}()
	for added := false; ; {
		select {
		case request := <-requests:
			if !added {
				st.node, added = request.GetNode().GetId(), true
				st.server.addStream(st)
				defer st.server.removeStream(st)
			}
			if err := st.handleRequest(request); err != nil {
				return err
			}
		case <-st.wake:
		case <-ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := st.flush(); err != nil {
			return fmt.Errorf("xds: sending to Envoy: %w", err)
		}
		st.countWhenComplete()
	}
}

// countWhenComplete counts the Envoy once it has everything that it was first sent.
func (st *stream) countWhenComplete() {
	if st.complete || !st.hasAcked(listenerKind) || !st.hasAcked(routeKind) {
		return
	}
	for _, k := range []resourceKind{clusterKind, endpointKind} {
		if sub := st.subscriptions[k]; sub != nil && len(sub.pending) > 0 {
			return
		}
	}
	st.complete = true
	st.reportRefused() // until now these were those of an earlier stream
	st.server.count(st)
}

// handleRequest handles a request: the answer to a response, a change of the subscription, or both.
//
// An error ends the stream: the node is not set up as sluice bootstrap says.
func (st *stream) handleRequest(request *discovery.DeltaDiscoveryRequest) error {
	if node := request.GetNode(); node != nil {
		st.server.updateStatus(st, func(s *Status) { s.NodeID, s.EnvoyVersion = node.GetId(), versionOf(node) })
		if err := st.remote.setNode(node); err != nil {
			return err
		}
	}
	k, ok := kindOf(request.GetTypeUrl())
	if !ok {
		st.server.log.Warn("Envoy asked for an unknown type of resource", zap.String("type", request.GetTypeUrl()))
		return nil
	}
	sub := st.subscriptions[k]
	if sub == nil {
		return st.subscribe(k, request)
	}
	if nonce := request.GetResponseNonce(); nonce != "" {
		st.handleAnswer(k, nonce, request.GetErrorDetail())
	}
	for _, name := range sub.update(request) {
		st.reportAcked(k, name)
	}
	return nil
}

func versionOf(node *core.Node) string {
	v := node.GetUserAgentBuildVersion().GetVersion()
	return fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
}

// subscribe handles the first request for a kind, in which a reconnecting Envoy reports which
// resources it has.
func (st *stream) subscribe(k resourceKind, request *discovery.DeltaDiscoveryRequest) error {
	resources, _, err := st.remote.view(st.server.currentResources())
	if err != nil {
		return err
	}
	sub := newSubscription(request)
	st.subscriptions[k] = sub
	if sub.wildcard {
		maps.Copy(sub.toCheck, resources.all(k))
	}
	for name, version := range request.GetInitialResourceVersions() {
		sub.toCheck[name] = struct{}{}
		sub.acked[name] = st.server.resourceOfVersion(resources.find(k, name), name, version)
		_, warming := st.warming[name]
		// Envoy may have been sent a secret that it refused since, and checks later ones with that.
		if k != secretKind && (k != endpointKind || !warming) {
			sub.sent[name] = version
		}
	}
	if k == endpointKind {
		clear(st.warming)
	}
	if k == endpointKind || k == clusterKind && len(sub.acked) == 0 {
		// Now the endpoints of this Envoy are known. Endpoints that an earlier stream reported and
		// this Envoy does not have are withdrawn.
		for _, cluster := range st.server.toldClusters() {
			st.server.reportAcked(st, cluster, st.ackedEndpoints(cluster))
		}
	}
	for name := range sub.acked {
		st.reportAcked(k, name)
	}
	return nil
}

// flush sends the resources that Envoy wants and does not have, kind by kind.
func (st *stream) flush() error {
	resources, changed, static := st.server.resourcesAndChanges(st)
	resources, own, err := st.remote.view(resources)
	if err != nil {
		return err
	}
	changed.add(own)
	for k := range kindCount {
		sub := st.subscriptions[k]
		if sub == nil {
			continue
		}
		for name := range changed[k] {
			sub.toCheck[name] = struct{}{}
		}
		if !static && k.isStatic() {
			clear(sub.toCheck)
		}
		if k == endpointKind {
			st.server.skipLingeringEndpoints(sub)
		}
		refused := len(sub.refused)
		responses := sub.nextResponses(k, resources)
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

// send sends a response and records it as pending.
func (st *stream) send(k resourceKind, sub *subscription, r response) error {
	st.nonce++
	nonce := strconv.FormatUint(st.nonce, 10)
	message := &discovery.DeltaDiscoveryResponse{TypeUrl: k.typeURL(), Nonce: nonce, RemovedResources: r.removed}
	for _, res := range r.resources {
		packed := res.packed
		if k == secretKind {
			var err error
			if packed, err = distinct(res); err != nil {
				return err
			}
		}
		message.Resources = append(message.Resources, &discovery.Resource{Name: res.Name, Version: res.Version, Resource: packed})
		if k == clusterKind {
			st.resendEndpoints(res.Name)
		}
	}
	sub.pending[nonce] = r
	st.withdrawUncertain(k, r)
	return st.wire.Send(message)
}

// withdrawUncertain reports the replicas that Envoy may remove as soon as it reads the response. If
// such a replica returns meanwhile, it is not picked before Envoy has acknowledged it again.
func (st *stream) withdrawUncertain(k resourceKind, r response) {
	switch k {
	case clusterKind:
		for _, name := range r.removed {
			st.forgetCluster(name)
		}
	case endpointKind:
		sub := st.subscriptions[k]
		for _, res := range r.resources {
			if acked := sub.acked[res.Name]; acked != nil {
				sub.acked[res.Name] = acked.commonReplicas(res)
				st.reportAcked(k, res.Name)
			}
		}
	}
}

// forgetCluster records that Envoy has no longer a cluster and its endpoints.
func (st *stream) forgetCluster(cluster string) {
	for _, k := range []resourceKind{clusterKind, endpointKind} {
		if sub := st.subscriptions[k]; sub != nil {
			delete(sub.acked, cluster)
		}
	}
	st.reportAcked(clusterKind, cluster)
}

// resendEndpoints records that Envoy rebuilds a cluster and then needs its endpoints.
func (st *stream) resendEndpoints(cluster string) {
	sub := st.subscriptions[endpointKind]
	if sub == nil {
		st.warming[cluster] = struct{}{}
		return
	}
	delete(sub.sent, cluster)
	sub.toCheck[cluster] = struct{}{}
}

// handleAnswer handles Envoy's answer to a response. It is an acknowledgement if refusal is nil.
func (st *stream) handleAnswer(k resourceKind, nonce string, refusal *status.Status) {
	sub := st.subscriptions[k]
	r, ok := sub.pending[nonce]
	if !ok {
		return
	}
	delete(sub.pending, nonce)
	if refusal != nil {
		st.handleRefusal(k, r, refusal.GetMessage())
		return
	}
	recovered := false
	for _, res := range r.resources {
		sub.acked[res.Name] = sub.certainPart(res)
		if _, was := sub.refused[res.Name]; was {
			delete(sub.refused, res.Name)
			recovered = true
		}
		st.reportAcked(k, res.Name)
	}
	for _, name := range r.removed {
		if k == clusterKind {
			// Older endpoints may have been acknowledged since the response was sent.
			st.forgetCluster(name)
			continue
		}
		delete(sub.acked, name)
		st.reportAcked(k, name)
	}
	if recovered {
		st.reportRefused()
	}
	if k == secretKind {
		sub.retryRefused()
	}
}

// reportAcked reports a change of what Envoy has of a resource.
func (st *stream) reportAcked(k resourceKind, name string) {
	switch k {
	case clusterKind, endpointKind:
		if st.subscriptions[endpointKind] == nil && st.subscriptions[clusterKind].acked[name] != nil {
			// Envoy has not reported its endpoints yet.
			return
		}
		st.server.reportAcked(st, name, st.ackedEndpoints(name))
	case secretKind, listenerKind, routeKind:
		configured := st.hasAcked(listenerKind) && st.hasAcked(routeKind) && st.hasSecrets()
		chain := st.certificate()
		st.server.updateStatus(st, func(s *Status) { s.Configured, s.Certificate = configured, cmp.Or(chain, s.Certificate) })
	}
}

// hasAcked reports whether Envoy has any resource of a kind.
func (st *stream) hasAcked(k resourceKind) bool {
	return st.subscriptions[k] != nil && len(st.subscriptions[k].acked) > 0
}
