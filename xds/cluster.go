package xds

import (
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	mutation "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	headermutation "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	upstreamcodec "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	lbcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/common/v3"
	overridehost "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	ringhash "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	upstreamhttp "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	percent "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/elsewhere"
	"github.com/sluice-gateway/sluice/internal/headers"
)

const (
	// connectTimeout is short because Envoy then tries the next replica of the list.
	connectTimeout = 2 * time.Second
	// upstreamIdle is shorter than the 5 s after which uvicorn, and so most engines, close an idle
	// connection. If the engine closes a connection at the moment of its reuse, the request loses
	// an attempt.
	upstreamIdle = 4 * time.Second
	// bufferLimit bounds what Envoy buffers for one connection whose other side reads slowly.
	// Request bodies that the gateway must see have a limit of their own, on the route.
	bufferLimit = 256 << 10
	// engineBufferLimit is the same for connections to engines. Envoy stops to read from a client
	// while more than this of its request is unsent, and begins again later. So it is greater than
	// most long prompts.
	engineBufferLimit = 512 << 10
	// fallbackRingSize is small because the fallback is rarely used, and Envoy rebuilds the ring
	// after every change of the endpoints.
	fallbackRingSize = 256
	// fallbackBalanceFactor bounds the load of a replica in the fallback, in percent of the average
	// load.
	fallbackBalanceFactor = 125
)

// newCluster returns the cluster of a model. It must not depend on the replicas.
func newCluster(name string) *cluster.Cluster {
	return &cluster.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS},
		EdsClusterConfig:     &cluster.Cluster_EdsClusterConfig{EdsConfig: fromADS()},
		ConnectTimeout:       durationpb.New(connectTimeout),
		LoadBalancingPolicy:  replicaPolicy(),
		CommonLbConfig: &cluster.Cluster_CommonLbConfig{
			// Envoy never falls back to endpoints that are not healthy.
			HealthyPanicThreshold: &percent.Percent{Value: 0},
		},
		CircuitBreakers:               elsewhere.UnlimitedBreakers(core.RoutingPriority_DEFAULT),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(engineBufferLimit),
		UpstreamConnectionOptions:     &cluster.UpstreamConnectionOptions{TcpKeepalive: keepalive()},
		TypedExtensionProtocolOptions: engineProtocol(nil, nil),
	}
}

// replicaPolicy follows the list of replicas in the request's header. If no replica of the list
// exists any more, a ring with bounded loads picks.
func replicaPolicy() *cluster.LoadBalancingPolicy {
	fallback := &ringhash.RingHash{
		MinimumRingSize: wrapperspb.UInt64(fallbackRingSize),
		ConsistentHashingLbConfig: &lbcommon.ConsistentHashingLbConfig{
			HashBalanceFactor: wrapperspb.UInt32(fallbackBalanceFactor),
		},
	}
	return lbPolicy("envoy.load_balancing_policies.override_host", &overridehost.OverrideHost{
		OverrideHostSources: []*overridehost.OverrideHost_OverrideHostSource{{Header: headers.Endpoint}},
		FallbackPolicy:      lbPolicy("envoy.load_balancing_policies.ring_hash", fallback),
	})
}

func lbPolicy(name string, m validatedMessage) *cluster.LoadBalancingPolicy {
	return &cluster.LoadBalancingPolicy{Policies: []*cluster.LoadBalancingPolicy_Policy{{
		TypedExtensionConfig: extension(name, m),
	}}}
}

// keepalive detects a dead peer within a minute, even during a long prefill without any data.
func keepalive() *core.TcpKeepalive {
	return &core.TcpKeepalive{
		KeepaliveTime:     wrapperspb.UInt32(30),
		KeepaliveInterval: wrapperspb.UInt32(10),
		KeepaliveProbes:   wrapperspb.UInt32(3),
	}
}

// fromADS is the source of all resources that Envoy asks for.
func fromADS() *core.ConfigSource {
	return &core.ConfigSource{
		ResourceApiVersion:    core.ApiVersion_V3,
		ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}},
		// There is no timeout: without its routes or endpoints, a listener or cluster would answer
		// requests with wrong errors.
		InitialFetchTimeout: durationpb.New(0),
	}
}

func newAssignment(name string, ready []endpoint) *endpointv3.ClusterLoadAssignment {
	assignment := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	if len(ready) == 0 {
		return assignment
	}
	hosts := make([]*endpointv3.LbEndpoint, len(ready))
	for i, e := range ready {
		hosts[i] = &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: socketAddress(e.address.Addr().String(), e.address.Port()),
				// The route copies the Hostname into the Host header.
				Hostname: e.host,
			}},
			Metadata: sluiceMetadata("replica", e.id),
		}
	}
	assignment.Endpoints = []*endpointv3.LocalityLbEndpoints{{LbEndpoints: hosts}}
	return assignment
}

// sluiceMetadata returns metadata in Sluice's namespace.
func sluiceMetadata(key, value string) *core.Metadata {
	return &core.Metadata{FilterMetadata: map[string]*structpb.Struct{headers.Metadata: {
		Fields: map[string]*structpb.Value{key: structpb.NewStringValue(value)},
	}}}
}

func socketAddress(host string, port uint16) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address:       host,
		PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(port)},
	}}}
}

// engineProtocol returns the protocol options for engines: HTTP/1.1 and a filter that removes
// Sluice's own headers. The filter runs after the replica was picked. The route would remove the
// headers too early, since override_host reads one of them. The filter also removes headers of a
// response that Envoy's router would obey, before the router gets the response. changes are further
// changes of a request, and more are further filters.
func engineProtocol(changes []*mutation.HeaderMutation, more []*hcm.HttpFilter) map[string]*anypb.Any {
	var ofEngines []*mutation.HeaderMutation
	for _, prefix := range headers.PrefixesFromEngines() {
		ofEngines = append(ofEngines, removePrefix(prefix))
	}
	filters := []*hcm.HttpFilter{
		httpFilter("envoy.filters.http.header_mutation", &headermutation.HeaderMutation{Mutations: &headermutation.Mutations{
			RequestMutations: append([]*mutation.HeaderMutation{
				removePrefix("x-sluice-"), removeHeader(headers.Endpoint), removeHeader("x-envoy-external-address"),
			}, changes...),
			ResponseMutations: ofEngines,
		}}),
	}
	filters = append(filters, more...)
	options := &upstreamhttp.HttpProtocolOptions{
		CommonHttpProtocolOptions: &core.HttpProtocolOptions{IdleTimeout: durationpb.New(upstreamIdle)},
		UpstreamProtocolOptions: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{},
			},
		},
		HttpFilters: append(filters, httpFilter("envoy.filters.http.upstream_codec", &upstreamcodec.UpstreamCodec{})),
	}
	return map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": mustPack(options)}
}

// httpFilter returns an HTTP filter with its configuration.
func httpFilter(name string, m validatedMessage) *hcm.HttpFilter {
	return &hcm.HttpFilter{Name: name, ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: mustPack(m)}}
}

func removeHeader(name string) *mutation.HeaderMutation {
	return &mutation.HeaderMutation{Action: &mutation.HeaderMutation_Remove{Remove: name}}
}

func removePrefix(prefix string) *mutation.HeaderMutation {
	return &mutation.HeaderMutation{Action: &mutation.HeaderMutation_RemoveOnMatch_{
		RemoveOnMatch: &mutation.HeaderMutation_RemoveOnMatch{KeyMatcher: &matcher.StringMatcher{
			MatchPattern: &matcher.StringMatcher_Prefix{Prefix: prefix},
		}},
	}}
}
