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
	"github.com/sluice-gateway/sluice/internal/routes"
)

const (
	// maxStreams bounds the concurrent requests of one HTTP/2 connection. It is high because a load
	// balancer in front of Envoy may use few connections. It bounds what one connection costs:
	// Envoy keeps the headers of each request, and a client can send them compressed.
	maxStreams = 2 << 10
	// maxOutboundFrames protects Envoy from clients that make it queue frames. A token is a frame
	// of a few dozen bytes. Thousands of legitimate streams on one connection exceed the default of
	// 10,000 long before any limit in bytes.
	maxOutboundFrames = 64 << 10
	// streamWindow and connectionWindow bound how much an HTTP/2 client may upload before Envoy
	// reads it.
	streamWindow     = 1 << 20
	connectionWindow = 16 << 20
	// clientIdle is the idle timeout of connections. It is longer than the idle timeouts of usual
	// load balancers, so that those close first.
	clientIdle = time.Hour
	// headersTimeout bounds the time until a request's headers have arrived.
	headersTimeout = 30 * time.Second
	// uploadTimeout bounds the time until a request's body has arrived.
	uploadTimeout = 5 * time.Minute
	// headerReserve is how many headers, and how many KiB of them, Envoy and Sluice may add to a
	// request.
	headerReserve = 50
	// flushTimeout is how long a client may take to read the rest of a response that has ended. The
	// request keeps its memory and its place at the replica for so long.
	flushTimeout = time.Minute
	// http2Ping detects clients that disappeared without closing their connection. For HTTP/1.1,
	// TCP keepalive does so.
	http2Ping        = 30 * time.Second
	http2PingTimeout = 20 * time.Second
)

// newListener returns the listener for clients. It must not depend on anything that can be
// reloaded, because Envoy drains a changed listener and then cuts its streams.
func newListener(c Config) *listener.Listener {
	address, err := c.listenAddress()
	// check has refused such a Config before.
	if err != nil {
		panic(err)
	}
	socket := socketAddress(address.Addr().String(), address.Port())
	// As in other programs, [::] means all IPv6 and IPv4 addresses.
	socket.GetSocketAddress().Ipv4Compat = address.Addr() == netip.IPv6Unspecified()
	return &listener.Listener{
		Name:                          resourceName,
		Address:                       socket,
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
		TcpKeepalive:                  keepalive(),
		ListenerFilters:               []*listener.ListenerFilter{firstRequestFilter()},
		ListenerFiltersTimeout:        durationpb.New(c.FirstRequest),
		FilterChains: []*listener.FilterChain{{
			TransportSocket:               c.TLS.socket(),
			TransportSocketConnectTimeout: c.handshakeTimeout(),
			Filters: []*listener.Filter{sourceFilter(), {
				Name:       "envoy.filters.network.http_connection_manager",
				ConfigType: &listener.Filter_TypedConfig{TypedConfig: mustPack(connectionManager(c))},
			}},
		}},
	}
}

// connectionManager returns the HTTP connection manager of the listener.
func connectionManager(c Config) *hcm.HttpConnectionManager {
	m := &hcm.HttpConnectionManager{
		StatPrefix: "sluice",
		CodecType:  hcm.HttpConnectionManager_AUTO,
		RouteSpecifier: &hcm.HttpConnectionManager_Rds{Rds: &hcm.Rds{
			ConfigSource: fromADS(), RouteConfigName: resourceName,
		}},
		HttpFilters:      httpFilterChain(c),
		LocalReplyConfig: localReplies(),
		AccessLog:        requestLog(c),
		AccessLogOptions: &hcm.HttpConnectionManager_HcmAccessLogOptions{
			AccessLogFlushInterval: durationpb.New(runningLogInterval),
		},
	}
	setIdentity(m, c)
	setProtocols(m)
	setHeaderLimits(m, c)
	setTimeouts(m)
	return m
}

// setIdentity makes sure that no header of a client is mistaken for one of Sluice or Envoy.
func setIdentity(m *hcm.HttpConnectionManager, c Config) {
	m.UseRemoteAddress = wrapperspb.Bool(true)
	// No address counts as internal. From an internal client, Envoy would accept x-envoy-* headers
	// and the request id. An empty list would mean all private networks, so the list has one
	// address that no client can have.
	m.InternalAddressConfig = &hcm.HttpConnectionManager_InternalAddressConfig{CidrRanges: []*core.CidrRange{{
		AddressPrefix: "255.255.255.255", PrefixLen: wrapperspb.UInt32(32),
	}}}
	m.GenerateRequestId = wrapperspb.Bool(true)
	m.AlwaysSetRequestIdInResponse = true
	remove := []*mutation.HeaderMutation{removePrefix("x-envoy-")}
	early := headers.Early()
	if c.Filter.in(c) {
		early = headers.Internal() // the filter removes the others, or the routes do
	}
	for _, name := range early {
		remove = append(remove, removeHeader(name))
	}
	m.EarlyHeaderMutationExtensions = []*core.TypedExtensionConfig{
		extension("envoy.http.early_header_mutation.header_mutation", &earlymutation.HeaderMutation{Mutations: remove}),
	}
	m.NormalizePath = wrapperspb.Bool(true)
	m.MergeSlashes = true
	// Clients write the slash of a model's name as %2F in /v1/models/{id}. All paths below that
	// path have the same rules, so a hidden slash gives access to nothing.
	m.PathWithEscapedSlashesAction = hcm.HttpConnectionManager_KEEP_UNCHANGED
	// Envoy sends no Server header of its own, and the routes remove that of the engine.
	m.ServerHeaderTransformation = hcm.HttpConnectionManager_PASS_THROUGH
}

// setProtocols sets the options of HTTP/1.1 and HTTP/2.
func setProtocols(m *hcm.HttpConnectionManager) {
	m.CommonHttpProtocolOptions = &core.HttpProtocolOptions{
		IdleTimeout: durationpb.New(clientIdle),
		// Many servers treat x_sluice_tenant and x-sluice-tenant as the same name.
		HeadersWithUnderscoresAction: core.HttpProtocolOptions_DROP_HEADER,
	}
	m.HttpProtocolOptions = &core.Http1ProtocolOptions{
		// Otherwise Envoy takes each 400 for an error of the protocol, also one of Sluice, and
		// closes the connection. It closes those all the same on which it cannot find the next
		// request.
		OverrideStreamErrorOnInvalidHttpMessage: wrapperspb.Bool(true),
	}
	m.Http2ProtocolOptions = &core.Http2ProtocolOptions{
		// This permits WebSockets over HTTP/2 (RFC 8441). A route still refuses CONNECT itself.
		AllowConnect:                true,
		MaxConcurrentStreams:        wrapperspb.UInt32(maxStreams),
		MaxOutboundFrames:           wrapperspb.UInt32(maxOutboundFrames),
		InitialStreamWindowSize:     wrapperspb.UInt32(streamWindow),
		InitialConnectionWindowSize: wrapperspb.UInt32(connectionWindow),
		// An invalid request ends only its own stream and not the connection.
		OverrideStreamErrorOnInvalidHttpMessage: wrapperspb.Bool(true),
		ConnectionKeepalive: &core.KeepaliveSettings{
			Interval: durationpb.New(http2Ping), Timeout: durationpb.New(http2PingTimeout),
		},
	}
}

// setHeaderLimits lets more headers pass than Sluice does, because Envoy's limits also hold after
// ext_proc has added its headers. And Sluice answers 431, while Envoy resets an HTTP/2 stream above
// its limits.
func setHeaderLimits(m *hcm.HttpConnectionManager, c Config) {
	m.CommonHttpProtocolOptions.MaxHeadersCount = wrapperspb.UInt32(uint32(2*c.MaxHeaders + headerReserve))
	m.MaxRequestHeadersKb = wrapperspb.UInt32(uint32(2*c.MaxHeaderBytes/1024 + headerReserve))
}

// setTimeouts sets no idle timeout, because a generation may be silent for minutes and a held
// request is silent all the time. Other timeouts bound a request: one each for its headers, its
// body, the time for which ext_proc holds it, and, on the route, its response.
func setTimeouts(m *hcm.HttpConnectionManager) {
	m.StreamIdleTimeout = durationpb.New(0)
	m.RequestHeadersTimeout = durationpb.New(headersTimeout)
	// Envoy counts until all filters have processed the request, so the time includes the holding.
	m.RequestTimeout = durationpb.New(routes.HoldTimeout + uploadTimeout)
	m.StreamFlushTimeout = durationpb.New(flushTimeout)
}
