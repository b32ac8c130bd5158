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

	"github.com/sluice-gateway/sluice/internal/headers"
)

const (
	// ownConnectTimeout is for a unix socket of this host.
	ownConnectTimeout = time.Second
	// ownIdle must be under the idle timeout of Sluice's HTTP server, or a connection that is used again meets a close. A ticket cannot be
	// shown twice, so nobody would try again.
	ownIdle = 30 * time.Second
	// grpcStreamWindow is how many bytes Sluice may send of one gRPC stream before its client has taken them. It is the smallest that HTTP/2
	// has: a client that takes nothing shall hold up its own stream soon.
	grpcStreamWindow = 64 << 10
	// grpcConnectionWindow is that for all streams of a worker of Envoy together, since they share a connection. It is what thousands of
	// clients that take nothing may fill before they hold up the others.
	grpcConnectionWindow = 1 << 30
	// maxSocketPath is what Linux takes for the path of a unix socket, without the final zero.
	maxSocketPath = 107
)

// ownClusters are those that lead to Sluice itself, beside the two of the bootstrap, by name. They depend on nothing but the Config.
func ownClusters(c Config) (map[string]*Resource, error) {
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
		var err error
		if own[cluster.name], err = newResource(cluster.name, ownCluster(cluster.name, cluster.socket, cluster.protocol)); err != nil {
			return nil, fmt.Errorf("cluster %s: %w", cluster.name, err)
		}
	}
	return own, nil
}

func ownCluster(name, socket string, protocol *upstreamhttp.HttpProtocolOptions) *cluster.Cluster {
	host := &endpointv3.Endpoint{Address: &core.Address{Address: &core.Address_Pipe{Pipe: &core.Pipe{Path: socket}}}}
	return &cluster.Cluster{
		Name:                          name,
		ClusterDiscoveryType:          &cluster.Cluster_Type{Type: cluster.Cluster_STATIC},
		ConnectTimeout:                durationpb.New(ownConnectTimeout),
		CircuitBreakers:               openBreakers(),
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

// relayProtocol is HTTP/1.1: a connection for each stream, so that none holds up another, and WebSockets as they are.
func relayProtocol() *upstreamhttp.HttpProtocolOptions {
	return ownProtocol(&upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
			HttpProtocolOptions: &core.Http1ProtocolOptions{},
		},
	})
}

// grpcProtocol has no keepalive, for the reasons of the control cluster (package envoy).
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

func ownProtocol(explicit *upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig) *upstreamhttp.HttpProtocolOptions {
	return &upstreamhttp.HttpProtocolOptions{
		CommonHttpProtocolOptions: &core.HttpProtocolOptions{IdleTimeout: durationpb.New(ownIdle)},
		UpstreamProtocolOptions:   &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: explicit},
	}
}

