package xds

import (
	"fmt"
	"math"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	upstreamhttp "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// What follows leads to the streams that Sluice carries itself. Its clusters come by xDS and not with the bootstrap, so that an Envoy
// which an older Sluice has started gets them too.

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
	// webSocketKey is any 16 bytes. WebSockets over HTTP/2 have no such key (RFC 8441, 5.1), and the handler behind speaks HTTP/1.1, which
	// wants one. Nobody reads the answer that it gives to it.
	webSocketKey = "c2x1aWNlLW92ZXItaHR0cA=="
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

// managedRoutes lead to what carries streams itself. They come before the routes to engines: who has a ticket goes to the relay, whatever
// else ext_proc has said of it.
func managedRoutes(c Config) []*route.Route {
	var routes []*route.Route
	if c.RelaySocket != "" {
		stream := relayRoute(RelayStreamRoute, c)
		stream.Match.Headers = append(stream.Match.Headers, headerIs(headers.Stream, exactly("1")))
		routes = append(routes, stream, relayRoute(RelayRoute, c), realtimeRoute(), streamsRoute())
	}
	if c.GRPCSocket != "" {
		routes = append(routes, grpcRoute())
	}
	return routes
}

// relayRoute takes requests that have a ticket. Nothing is tried again, not even a connection that could not be made: a ticket is good
// once. The relay says itself in its responses who has answered.
func relayRoute(name string, c Config) *route.Route {
	return &route.Route{
		Name: name,
		Match: &route.RouteMatch{
			PathSpecifier: &route.RouteMatch_SafeRegex{SafeRegex: inferencePath()},
			Headers:       []*route.HeaderMatcher{headerIs(":method", exactly("POST")), headerPresent(headers.Ticket)},
		},
		Action:                 unbounded(headers.RelayCluster),
		RequestHeadersToRemove: forSluiceAlone(),
		ResponseHeadersToAdd:   quotas(),
		TypedPerFilterConfig:   without(extAuthzName, taskLimitName),
		Metadata:               limitInWords(c.MaxBody),
		RequestBodyBufferLimit: wrapperspb.UInt64(uint64(c.MaxBody)),
	}
}

// realtimeRoute takes WebSockets, and whoever asks for none, so that Sluice can say what there is. The filter for bodies is off because a
// WebSocket's frames are one endless body to it; its handler bounds the messages.
func realtimeRoute() *route.Route {
	r := streamRoute(RealtimeRoute, headers.RelayCluster, &route.RouteMatch{
		PathSpecifier: &route.RouteMatch_Path{Path: "/v1/realtime"},
	}, taskLimitName)
	r.GetRoute().UpgradeConfigs = []*route.RouteAction_UpgradeConfig{{UpgradeType: "websocket"}}
	key := set("sec-websocket-key", webSocketKey)
	key.AppendAction = core.HeaderValueOption_ADD_IF_ABSENT
	r.RequestHeadersToAdd = []*core.HeaderValueOption{key}
	return r
}

// streamPath is what comes below /v1/streams/. Go's HTTP server would answer itself, and not as the API does, where a percent sign has no two
// digits.
const streamPath = "/v1/streams/([^%]|%[0-9A-Fa-f]{2})*"

// streamsRoute takes every method, so that Sluice can say which ones there are. The id of a stream may be any text, with slashes as %2F.
func streamsRoute() *route.Route {
	r := streamRoute(StreamsRoute, headers.RelayCluster, &route.RouteMatch{
		PathSpecifier: &route.RouteMatch_SafeRegex{SafeRegex: &matcher.RegexMatcher{Regex: streamPath}},
	})
	r.Metadata = limitInWords(taskBody)
	return r
}

// grpcRoute takes all methods of the service. A client's deadline is the server's business: no limit here reads it. Messages are bounded by
// the server too.
func grpcRoute() *route.Route {
	return streamRoute(GRPCRoute, headers.GRPCCluster, &route.RouteMatch{
		PathSpecifier: &route.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: "/llm.v1.Inference"},
		Grpc:          &route.RouteMatch_GrpcRouteMatchOptions{},
	}, taskLimitName)
}

// streamRoute is a route behind ext_authz to responses without an end of their own.
func streamRoute(name, cluster string, match *route.RouteMatch, off ...string) *route.Route {
	source := set(headers.Source, headers.SourceGateway)
	source.AppendAction = core.HeaderValueOption_ADD_IF_ABSENT // what an engine has said may come this way
	return &route.Route{
		Name:                 name,
		Match:                match,
		Action:               unbounded(cluster),
		ResponseHeadersToAdd: []*core.HeaderValueOption{source},
		TypedPerFilterConfig: without(append(off, extProcName, onDemandName)...),
	}
}

// unbounded leaves all limits of time to who answers.
func unbounded(cluster string) *route.Route_Route {
	return &route.Route_Route{Route: &route.RouteAction{
		ClusterSpecifier: &route.RouteAction_Cluster{Cluster: cluster},
		Timeout:          durationpb.New(0),
		IdleTimeout:      durationpb.New(0),
	}}
}
