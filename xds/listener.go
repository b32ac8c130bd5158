package xds

import (
	"net/netip"
	"time"

	mutation "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlymutation "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
)

const (
	// maxStreams is how many requests one HTTP/2 connection may carry at once: a load balancer in front may have few connections.
	maxStreams = 16 << 10
	// maxOutboundFrames is Envoy's guard against clients that make it queue frames. A token is a frame of a few dozen bytes, so
	// that thousands of honest streams on one connection pass the default of 10,000 long before any byte limit.
	maxOutboundFrames = 64 << 10
	// streamWindow and connectionWindow bound what an HTTP/2 client may upload ahead of Envoy's reading.
	streamWindow     = 1 << 20
	connectionWindow = 16 << 20
	// clientIdle closes connections without a request. It is longer than what load balancers in front use, so that they close first.
	clientIdle = time.Hour
	// headersTimeout is the longest time for a request's headers to arrive.
	headersTimeout = 30 * time.Second
	// uploadTimeout is the longest time for a request's body to arrive.
	uploadTimeout = 5 * time.Minute
	// flushTimeout is how long a client may take to read the rest of a response that has ended.
	flushTimeout = 5 * time.Minute
	// http2Ping finds clients that vanished without a word. HTTP/1.1 has TCP keepalive for that.
	http2Ping        = 30 * time.Second
	http2PingTimeout = 20 * time.Second
)

// listenerFor is the listener for clients. Nothing in it may depend on what can be reloaded, because a changed listener cuts its
// streams when it has drained.
func listenerFor(c Config) *listener.Listener {
	address, err := c.listenAddress()
	if err != nil { // checked before
		panic(err)
	}
	socket := socketAddress(address.Addr().String(), address.Port())
	// [::] means every address, as it does elsewhere.
	socket.GetSocketAddress().Ipv4Compat = address.Addr() == netip.IPv6Unspecified()
	return &listener.Listener{
		Name:                          resourceName,
		Address:                       socket,
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
		TcpKeepalive:                  keepalive(),
		FilterChains: []*listener.FilterChain{{Filters: []*listener.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listener.Filter_TypedConfig{TypedConfig: mustPack(connectionManager(c))},
		}}}},
	}
}

func connectionManager(c Config) *hcm.HttpConnectionManager {
	m := &hcm.HttpConnectionManager{
		StatPrefix: "sluice",
		CodecType:  hcm.HttpConnectionManager_AUTO,
		RouteSpecifier: &hcm.HttpConnectionManager_Rds{Rds: &hcm.Rds{
			ConfigSource: fromADS(), RouteConfigName: resourceName,
		}},
		HttpFilters:      httpFilters(c),
		LocalReplyConfig: localReplies(),
		AccessLog:        requestLog(),
		AccessLogOptions: &hcm.HttpConnectionManager_HcmAccessLogOptions{
			AccessLogFlushInterval: durationpb.New(runningInterval),
		},
	}
	setIdentity(m)
	setProtocols(m)
	setTimeouts(m, c)
	return m
}

// setIdentity makes sure that nothing a client writes is taken for Sluice's or Envoy's own word.
func setIdentity(m *hcm.HttpConnectionManager) {
	m.UseRemoteAddress = wrapperspb.Bool(true)
	// No address is internal: Envoy would take x-envoy-* headers and the request id from such a client. An empty list means all
	// private networks, so the list has an address that no client can have.
	m.InternalAddressConfig = &hcm.HttpConnectionManager_InternalAddressConfig{CidrRanges: []*core.CidrRange{{
		AddressPrefix: "255.255.255.255", PrefixLen: wrapperspb.UInt32(32),
	}}}
	m.GenerateRequestId = wrapperspb.Bool(true)
	m.AlwaysSetRequestIdInResponse = true
	remove := []*mutation.HeaderMutation{removePrefix("x-envoy-")}
	for _, name := range headers.Internal() {
		remove = append(remove, removeHeader(name))
	}
	m.EarlyHeaderMutationExtensions = []*core.TypedExtensionConfig{
		extension("envoy.http.early_header_mutation.header_mutation", &earlymutation.HeaderMutation{Mutations: remove}),
	}
	m.NormalizePath = wrapperspb.Bool(true)
	m.MergeSlashes = true
	// Clients write the slash of a model's name as %2F in /v1/models/{id}. Every path below that one is under the same rule, so
	// nothing can be reached by hiding a slash.
	m.PathWithEscapedSlashesAction = hcm.HttpConnectionManager_KEEP_UNCHANGED
	// Say nothing of our own about who serves; the routes take the engine's word off.
	m.ServerHeaderTransformation = hcm.HttpConnectionManager_PASS_THROUGH
}

func setProtocols(m *hcm.HttpConnectionManager) {
	m.CommonHttpProtocolOptions = &core.HttpProtocolOptions{
		IdleTimeout: durationpb.New(clientIdle),
		// Many servers read x_sluice_tenant and x-sluice-tenant as the same name.
		HeadersWithUnderscoresAction: core.HttpProtocolOptions_DROP_HEADER,
	}
	m.HttpProtocolOptions = &core.Http1ProtocolOptions{}
	m.Http2ProtocolOptions = &core.Http2ProtocolOptions{
		// WebSockets over HTTP/2 (RFC 8441). CONNECT itself stays refused, by a route.
		AllowConnect:                true,
		MaxConcurrentStreams:        wrapperspb.UInt32(maxStreams),
		MaxOutboundFrames:           wrapperspb.UInt32(maxOutboundFrames),
		InitialStreamWindowSize:     wrapperspb.UInt32(streamWindow),
		InitialConnectionWindowSize: wrapperspb.UInt32(connectionWindow),
		// One bad request is no reason to end its neighbours.
		OverrideStreamErrorOnInvalidHttpMessage: wrapperspb.Bool(true),
		ConnectionKeepalive: &core.KeepaliveSettings{
			Interval: durationpb.New(http2Ping), Timeout: durationpb.New(http2PingTimeout),
		},
	}
}

// setTimeouts: a generation may be silent for minutes, and a held request is silent all the time, so idleness ends nothing. What
// bounds a request: its headers and body have a time to arrive, ext_proc has a time to hold it, its route has a time
// for the response.
func setTimeouts(m *hcm.HttpConnectionManager, c Config) {
	m.StreamIdleTimeout = durationpb.New(0)
	m.RequestHeadersTimeout = durationpb.New(headersTimeout)
	// Envoy counts until all filters are done with the request, which includes the holding.
	m.RequestTimeout = durationpb.New(c.HoldTimeout + uploadTimeout)
	m.StreamFlushTimeout = durationpb.New(flushTimeout)
}
