package xds

import (
	"math"
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

	"github.com/sluice-gateway/sluice/internal/headers"
)

const (
	// connectTimeout is short because the next replica of the list is tried after it.
	connectTimeout = 2 * time.Second
	// upstreamIdle is under the 5 s after which uvicorn, and so most engines, close an idle connection: a connection that the
	// engine closes in the moment it is used again costs the request an attempt.
	upstreamIdle = 4 * time.Second
	// bufferLimit bounds what Envoy keeps for one connection whose other side reads slowly. Request bodies that ext_proc must
	// see have a limit of their own, on the route.
	bufferLimit = 256 << 10
	// fallbackRing is small because the fallback is the exception, and the ring is made anew with every change of the endpoints.
	fallbackRing = 256
	// fallbackBalance bounds the load of a replica in the fallback at this percentage of the average.
	fallbackBalance = 125
)

// clusterFor is the cluster of a model. Nothing in it may depend on the replicas.
func clusterFor(name string) *cluster.Cluster {
	return &cluster.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS},
		EdsClusterConfig:     &cluster.Cluster_EdsClusterConfig{EdsConfig: fromADS()},
		ConnectTimeout:       durationpb.New(connectTimeout),
		LoadBalancingPolicy:  replicaPolicy(),
		CommonLbConfig: &cluster.Cluster_CommonLbConfig{
			// Never fall back to hosts that are not healthy.
			HealthyPanicThreshold: &percent.Percent{Value: 0},
		},
		CircuitBreakers:               openBreakers(),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
		UpstreamConnectionOptions:     &cluster.UpstreamConnectionOptions{TcpKeepalive: keepalive()},
		TypedExtensionProtocolOptions: engineProtocol(nil, nil),
	}
}

// replicaPolicy follows the list of replicas in the request's header. Beyond the list, or when nothing of it exists any more, a
// ring with bounded loads picks.
func replicaPolicy() *cluster.LoadBalancingPolicy {
	fallback := &ringhash.RingHash{
		MinimumRingSize: wrapperspb.UInt64(fallbackRing),
		ConsistentHashingLbConfig: &lbcommon.ConsistentHashingLbConfig{
			HashBalanceFactor: wrapperspb.UInt32(fallbackBalance),
		},
	}
	return lbPolicy("envoy.load_balancing_policies.override_host", &overridehost.OverrideHost{
		OverrideHostSources: []*overridehost.OverrideHost_OverrideHostSource{{Header: headers.Endpoint}},
		FallbackPolicy:      lbPolicy("envoy.load_balancing_policies.ring_hash", fallback),
	})
}

func lbPolicy(name string, m validated) *cluster.LoadBalancingPolicy {
	return &cluster.LoadBalancingPolicy{Policies: []*cluster.LoadBalancingPolicy_Policy{{
		TypedExtensionConfig: extension(name, m),
	}}}
}

// openBreakers lifts Envoy's default of 1,024 connections, pending requests and requests: Sluice's admission decides how
// much may go to a model, and a second limit that nobody set is an outage.
func openBreakers() *cluster.CircuitBreakers {
	limit := wrapperspb.UInt32(math.MaxUint32)
	return &cluster.CircuitBreakers{Thresholds: []*cluster.CircuitBreakers_Thresholds{{
		MaxConnections: limit, MaxPendingRequests: limit, MaxRequests: limit, MaxRetries: limit,
	}}}
}

// keepalive finds a dead peer within a minute, even in a silent prefill.
func keepalive() *core.TcpKeepalive {
	return &core.TcpKeepalive{
		KeepaliveTime:     wrapperspb.UInt32(30),
		KeepaliveInterval: wrapperspb.UInt32(10),
		KeepaliveProbes:   wrapperspb.UInt32(3),
	}
}

func fromADS() *core.ConfigSource {
	return &core.ConfigSource{
		ResourceApiVersion:    core.ApiVersion_V3,
		ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}},
		// Wait as long as it takes: a listener without routes or a cluster without endpoints would answer, and wrongly.
		InitialFetchTimeout: durationpb.New(0),
	}
}

// assignmentFor lists a model's replicas.
func assignmentFor(name string, ready []endpoint) *endpointv3.ClusterLoadAssignment {
	assignment := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	if len(ready) == 0 {
		return assignment
	}
	hosts := make([]*endpointv3.LbEndpoint, len(ready))
	for i, e := range ready {
		hosts[i] = &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address:  socketAddress(e.address.Addr().String(), e.address.Port()),
				Hostname: e.host, // what the route makes the Host header
			}},
			Metadata: sluiceMetadata(map[string]*structpb.Value{"replica": structpb.NewStringValue(e.id)}),
		}
	}
	assignment.Endpoints = []*endpointv3.LocalityLbEndpoints{{LbEndpoints: hosts}}
	return assignment
}

func sluiceMetadata(fields map[string]*structpb.Value) *core.Metadata {
	return &core.Metadata{FilterMetadata: map[string]*structpb.Struct{headers.Metadata: {Fields: fields}}}
}

func socketAddress(host string, port uint16) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address:       host,
		PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(port)},
	}}}
}

// engineProtocol is HTTP/1.1 to the engine. Its filter takes Sluice's own headers off after the replica was picked: on the route
// it would be too early, since override_host reads one of them. changes are further changes of a request, more further filters.
func engineProtocol(changes []*mutation.HeaderMutation, more []*hcm.HttpFilter) map[string]*anypb.Any {
	filters := []*hcm.HttpFilter{
		filter("envoy.filters.http.header_mutation", &headermutation.HeaderMutation{Mutations: &headermutation.Mutations{
			RequestMutations: append([]*mutation.HeaderMutation{
				removePrefix("x-sluice-"), removePrefix(headers.Endpoint), removeHeader("x-envoy-external-address"),
			}, changes...),
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
		HttpFilters: append(filters, filter("envoy.filters.http.upstream_codec", &upstreamcodec.UpstreamCodec{})),
	}
	return map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": mustPack(options)}
}

func filter(name string, m validated) *hcm.HttpFilter {
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
