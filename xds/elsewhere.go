package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	overridehost "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	previoushosts "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	previouspriorities "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	upstreamhttp "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/elsewhere"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// Elsewhere says how Envoys of other hosts reach the gateways, over TLS.
type Elsewhere struct {
	// Gateways are the IP addresses and ports of all gateways, separated by commas, in any order.
	Gateways string
	// ServerName is the name that the certificate of every gateway has.
	ServerName string
	// Advertise is the IP address and port of this gateway. Empty: the address to which an Envoy
	// has connected.
	Advertise string
}

// node is what resources depend on besides the Config, if they are for an Envoy of another host.
type node struct {
	// gateway is the IP address and port of the gateway that serves the Envoy.
	gateway string
	// certificate and authority are the paths of its files of SDS.
	certificate, authority string
}

// remote is an Envoy of another host. A nil remote is the Envoy of this host. It belongs to the
// goroutine of its stream.
type remote struct {
	// peer is the address that Envoy connects from, and local the one that it has connected to.
	peer, local string
	node        node
	listen      string
	// static are the resources of this Envoy that do not depend on the fleet. nil: not built yet.
	static *Resources
}

// remoteOf returns the Envoy of a stream, which comes over TCP; nil if it is that of this host.
func remoteOf(ctx context.Context) *remote {
	envoy, gateway, ok := elsewhere.Peer(ctx)
	if !ok {
		return nil
	}
	return &remote{peer: envoy, local: gateway}
}

// host returns the IP address that Envoy connects from.
func (r *remote) host() string {
	host, _, err := net.SplitHostPort(r.peer)
	if err != nil {
		return r.peer
	}
	return host
}

// setNode reads what an Envoy says about itself in its first message.
func (r *remote) setNode(n *core.Node) error {
	if r == nil {
		return nil
	}
	fields := n.GetMetadata().GetFields()[headers.Metadata].GetStructValue().GetFields()
	r.node.certificate = fields[headers.NodeCertificate].GetStringValue()
	r.node.authority = fields[headers.NodeAuthority].GetStringValue()
	r.listen = fields[headers.NodeListen].GetStringValue()
	if r.node.certificate == "" || r.node.authority == "" {
		return status.Errorf(codes.InvalidArgument, "the metadata of node %q name no files of certificates: use what sluice bootstrap prints", n.GetId())
	}
	return nil
}

// view returns the resources for this Envoy, and the names of those that it may have otherwise. It
// shares everything that depends on the fleet with all.
func (r *remote) view(all *Resources) (*Resources, nameSet, error) {
	var changed nameSet
	if r == nil {
		return all, changed, nil
	}
	c := all.config
	if c.Elsewhere == (Elsewhere{}) {
		return nil, changed, status.Error(codes.FailedPrecondition, "this gateway serves no Envoys of other hosts: set control.listen")
	}
	c.node, c.Listen = r.node, cmp.Or(r.listen, c.Listen)
	c.node.gateway = cmp.Or(c.Elsewhere.Advertise, r.local)
	// The budgets of connections are those of the Envoy of this host.
	c.MaxRelay, c.AskSource, c.NearLimit = 0, false, false
	if r.static == nil || r.static.config != c {
		static := &Resources{config: c}
		if err := static.buildStatic(); err != nil {
			return nil, changed, status.Error(codes.InvalidArgument, err.Error())
		}
		r.static = static
		for k := range kindCount {
			for name := range static.all(k) {
				changed.put(k, name)
			}
		}
	}
	return all.with(r.static), changed, nil
}

// with returns r with the resources of another one that do not depend on the fleet.
func (r *Resources) with(static *Resources) *Resources {
	view := *r
	view.config, view.Listener, view.Routes, view.Filters = static.config, static.Listener, static.Routes, static.Filters
	view.Secrets, view.Own, view.ownEndpoints = static.Secrets, static.Own, static.ownEndpoints
	return &view
}

// checkElsewhere refuses what Envoy could not use.
func (c Config) checkElsewhere() error {
	if c.node == (node{}) {
		return nil
	}
	if _, err := netip.ParseAddrPort(c.node.gateway); err != nil {
		return fmt.Errorf("address of this gateway for Envoys: %w", err)
	}
	if c.Elsewhere.ServerName == "" {
		return errors.New("the certificate of the gateways has no name")
	}
	return nil
}

// gatewayClusters returns the clusters that lead an Envoy of another host to the gateways. They are
// the same at every gateway: when Envoy replaces a cluster, it resets the exchanges of ext_proc and
// the logs there.
func gatewayClusters(c Config) (map[string]*Resource, error) {
	pings := elsewhere.HTTP2(new(core.Http2ProtocolOptions))
	streams := elsewhere.HTTP2(&core.Http2ProtocolOptions{
		InitialStreamWindowSize:     wrapperspb.UInt32(grpcStreamWindow),
		InitialConnectionWindowSize: wrapperspb.UInt32(grpcConnectionWindow),
	})
	all := []elsewhere.Cluster{
		{Name: headers.ControlCluster, Protocol: headers.ALPNControl, HTTP: &upstreamhttp.HttpProtocolOptions{
			UpstreamProtocolOptions: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: pings}}},
		{Name: headers.APICluster, Protocol: headers.ALPNAPI, HTTP: relayProtocol()},
		{Name: headers.GRPCCluster, Protocol: headers.ALPNGRPC, HTTP: ownProtocol(streams)},
		{Name: headers.RelayCluster, Protocol: headers.ALPNRelay, HTTP: relayProtocol()},
	}
	own := map[string]*Resource{}
	for _, g := range all {
		g.Endpoints, g.ServerName = fromADS(), c.Elsewhere.ServerName
		g.Certificate, g.Authority = c.node.certificate, c.node.authority
		random, err := elsewhere.Random()
		if err != nil {
			return nil, err
		}
		if g.Name == headers.RelayCluster {
			// Only the gateway that has decided a request has its offer.
			g.Policy = lbPolicy("envoy.load_balancing_policies.override_host", &overridehost.OverrideHost{
				OverrideHostSources: []*overridehost.OverrideHost_OverrideHostSource{{Header: headers.Endpoint}},
				FallbackPolicy:      random,
			})
		}
		message, err := g.Build()
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", g.Name, err)
		}
		message.PerConnectionBufferLimitBytes = wrapperspb.UInt32(bufferLimit)
		if own[g.Name], err = newResource(g.Name, message); err != nil {
			return nil, fmt.Errorf("cluster %s: %w", g.Name, err)
		}
	}
	return own, nil
}

// gatewayEndpoints returns the endpoints of these clusters. All of them prefer the gateway that
// serves this Envoy by xDS. Only that one knows which replicas the Envoy has, and which requests
// its access log is about. The others are for the moment between the end of that gateway and the
// endpoints that the next one sends.
func gatewayEndpoints(c Config) (map[string]*Resource, error) {
	levels := [][]string{{c.node.gateway}}
	others := slices.DeleteFunc(strings.Split(c.Elsewhere.Gateways, ","), func(address string) bool {
		return address == "" || address == c.node.gateway
	})
	if len(others) > 0 {
		levels = append(levels, others)
	}
	all := map[string]*Resource{}
	for _, name := range []string{headers.ControlCluster, headers.APICluster, headers.GRPCCluster, headers.RelayCluster} {
		assignment, _, err := elsewhere.Assignment(name, levels...)
		if err != nil {
			return nil, err
		}
		if all[name], err = newResource(name, assignment); err != nil {
			return nil, err
		}
	}
	return all, nil
}

const (
	// unsent are the failures after which a gateway has seen nothing of a request.
	unsent = "connect-failure,refused-stream,reset-before-request"
	// undecided are those after which a gateway has not answered. Two may then decide the same
	// request; the first one sees that its exchange has ended and releases what it holds.
	undecided = unsent + ",reset,unavailable"
	// otherGateways is how many further gateways are asked.
	otherGateways = 2
	// gatewayPicks is how often a gateway is picked again that was asked before.
	gatewayPicks = 5
)

// decisionService is controlService for ext_proc and ext_authz. An Envoy of another host asks
// another gateway if one does not answer.
func decisionService(c Config, timeout time.Duration) *core.GrpcService {
	service := controlService(timeout)
	if c.node == (node{}) {
		return service
	}
	service.RetryPolicy = &core.RetryPolicy{
		RetryOn: undecided, NumRetries: wrapperspb.UInt32(otherGateways), HostSelectionRetryMaxAttempts: gatewayPicks,
		RetryPriority: &core.RetryPolicy_RetryPriority{Name: retryPriorityName,
			ConfigType: &core.RetryPolicy_RetryPriority_TypedConfig{TypedConfig: mustPack(otherPriorities())}},
		RetryHostPredicate: []*core.RetryPolicy_RetryHostPredicate{{Name: retryHostName,
			ConfigType: &core.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: mustPack(&previoushosts.PreviousHostsPredicate{})}}},
	}
	return service
}

// gatewayRetries has an Envoy of another host send a request that no gateway has seen to another
// one. It is nil for the Envoy of this host.
func gatewayRetries(c Config) *route.RetryPolicy {
	if c.node == (node{}) {
		return nil
	}
	return &route.RetryPolicy{
		RetryOn: unsent, NumRetries: wrapperspb.UInt32(otherGateways), HostSelectionRetryMaxAttempts: gatewayPicks,
		RetryPriority: &route.RetryPolicy_RetryPriority{Name: retryPriorityName,
			ConfigType: &route.RetryPolicy_RetryPriority_TypedConfig{TypedConfig: mustPack(otherPriorities())}},
		RetryHostPredicate: skipTriedHosts(),
	}
}

// skipTriedHosts has each attempt of a request go to a host that has had none of the others.
func skipTriedHosts() []*route.RetryPolicy_RetryHostPredicate {
	return []*route.RetryPolicy_RetryHostPredicate{{Name: retryHostName,
		ConfigType: &route.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: mustPack(&previoushosts.PreviousHostsPredicate{})}}}
}

const (
	retryPriorityName = "envoy.retry_priorities.previous_priorities"
	retryHostName     = "envoy.retry_host_predicates.previous_hosts"
)

// otherPriorities leaves out the priority of a gateway that has failed.
func otherPriorities() *previouspriorities.PreviousPrioritiesConfig {
	return &previouspriorities.PreviousPrioritiesConfig{UpdateFrequency: 1}
}
