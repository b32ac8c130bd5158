package xds

import (
	"fmt"
	"math"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	upstreamhttp "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/elsewhere"
	"github.com/sluice-gateway/sluice/internal/headers"
)

const (
	// ownConnectTimeout bounds the connection to a unix socket of this machine.
	ownConnectTimeout = time.Second
	// ownIdleTimeout must be shorter than the idle timeout of Sluice's HTTP server. Otherwise Envoy
	// may reuse a connection that the server is closing. The relay cannot claim a handoff twice, so
	// such a request could not be retried.
	ownIdleTimeout = 30 * time.Second
	// grpcStreamWindow is how many bytes Sluice may send on one gRPC stream before its client has
	// read them. It is about the smallest value that Envoy allows, so that a client that reads
	// nothing soon stops its own stream.
	grpcStreamWindow = 64 << 10
	// grpcConnectionWindow is the same limit for all streams of one Envoy worker, which share a
	// connection. Thousands of clients that read nothing must fill it before they stop the others.
	grpcConnectionWindow = 1 << 30
	// maxSocketPath is the longest path of a unix socket on Linux, without the final zero.
	maxSocketPath = 107
)

// ownClusters returns the clusters that lead to Sluice itself, by name, except the two of the
// bootstrap. They come by xDS, so that an Envoy that an older Sluice started gets them too. They
// depend only on the Config.
func ownClusters(c Config) (map[string]*Resource, error) {
	if c.node != (node{}) {
		return gatewayClusters(c)
	}
	own := map[string]*Resource{}
	for _, cluster := range []struct {
		name, socket string
		protocol     *upstreamhttp.HttpProtocolOptions
	}{
		{headers.RelayCluster, c.RelaySocket, relayProtocol()},
		{headers.GRPCCluster, c.GRPCSocket, grpcProtocol()},
	} {
		if cluster.socket == "" {
			continue
		}
		message := ownCluster(cluster.name, cluster.socket, cluster.protocol, c.Instance)
		if cluster.name == headers.RelayCluster && c.MaxRelay > 0 {
			limit := message.CircuitBreakers.Thresholds[0]
			limit.MaxConnections = wrapperspb.UInt32(uint32(c.MaxRelay))
			// A request is pending while its connection is made, and so are many in a burst. When
			// there are no connections left, the pending ones wait for the end of a stream.
			limit.MaxPendingRequests = wrapperspb.UInt32(uint32(c.MaxRelay+1) / 2)
		}
		var err error
		if own[cluster.name], err = newResource(cluster.name, message); err != nil {
			return nil, fmt.Errorf("cluster %s: %w", cluster.name, err)
		}
	}
	return own, nil
}

// ownCluster returns a cluster with one endpoint, a unix socket. Its metadata have the instance
// alone: Envoy replaces a cluster that has changed, which drains its connections.
func ownCluster(name, socket string, protocol *upstreamhttp.HttpProtocolOptions, instance string) *cluster.Cluster {
	host := &endpointv3.Endpoint{Address: &core.Address{Address: &core.Address_Pipe{Pipe: &core.Pipe{Path: socket}}}}
	return &cluster.Cluster{
		Name:                          name,
		Metadata:                      instanceMetadata(instance),
		ClusterDiscoveryType:          &cluster.Cluster_Type{Type: cluster.Cluster_STATIC},
		ConnectTimeout:                durationpb.New(ownConnectTimeout),
		CircuitBreakers:               elsewhere.UnlimitedBreakers(core.RoutingPriority_DEFAULT),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": mustPack(protocol)},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: host},
			}}}},
		},
	}
}

// instanceMetadata returns metadata with the instance; nil if it is empty.
func instanceMetadata(instance string) *core.Metadata {
	if instance == "" {
		return nil
	}
	return sluiceMetadata("instance", instance)
}

// relayProtocol is HTTP/1.1, which gives each stream a connection of its own and carries WebSockets
// unchanged. No stream can then block another.
func relayProtocol() *upstreamhttp.HttpProtocolOptions {
	return ownProtocol(&upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
			HttpProtocolOptions: &core.Http1ProtocolOptions{},
		},
	})
}

// grpcProtocol has no HTTP/2 keepalive, for the same reasons as the control cluster in package
// envoy.
func grpcProtocol() *upstreamhttp.HttpProtocolOptions {
	return ownProtocol(&upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
			Http2ProtocolOptions: &core.Http2ProtocolOptions{
				MaxConcurrentStreams:        wrapperspb.UInt32(math.MaxInt32),
				InitialStreamWindowSize:     wrapperspb.UInt32(grpcStreamWindow),
				InitialConnectionWindowSize: wrapperspb.UInt32(grpcConnectionWindow),
			},
		},
	})
}

// ownProtocol adds the idle timeout to a protocol.
func ownProtocol(explicit *upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig) *upstreamhttp.HttpProtocolOptions {
	return &upstreamhttp.HttpProtocolOptions{
		CommonHttpProtocolOptions: &core.HttpProtocolOptions{IdleTimeout: durationpb.New(ownIdleTimeout)},
		UpstreamProtocolOptions:   &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: explicit},
	}
}
