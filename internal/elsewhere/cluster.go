// Package elsewhere makes what leads an Envoy of another host to the gateways: clusters over TLS,
// and the files that name its certificates. Package envoy uses it for the bootstrap, xds for what
// comes later, and extproc to tell such an Envoy from that of this host.
package elsewhere

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	randomv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/random/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// connectTimeout bounds a connection together with its TLS handshake. It is shorter than the
	// time-out of a decision, so that Envoy can still ask another gateway.
	connectTimeout = time.Second
	// pingInterval and pingTimeout find a gateway whose host has vanished. A gateway that was
	// merely killed is found at once.
	pingInterval = 2 * time.Second
	pingTimeout  = 2 * time.Second
)

// Cluster describes a cluster of gateways.
type Cluster struct {
	// Name is the name of the cluster.
	Name string
	// Protocol is the application protocol (ALPN) that names the service.
	Protocol string
	// Addresses are the host:port at which gateways are found. A name stands for all its addresses.
	// Endpoints is the discovery of the gateways in place of Addresses.
	Addresses []string
	Endpoints *corev3.ConfigSource
	// ServerName is the name that the certificate of each gateway must have.
	ServerName string
	// Certificate and Authority are the paths of the files that Secrets writes.
	Certificate, Authority string
	// HTTP are the options of the protocol.
	HTTP *httpv3.HttpProtocolOptions
	// Policy picks among gateways of the same priority. nil means at random.
	Policy *clusterv3.LoadBalancingPolicy
}

// Build returns the cluster.
func (c Cluster) Build() (*clusterv3.Cluster, error) {
	socket, err := c.transportSocket()
	if err != nil {
		return nil, err
	}
	options, err := anypb.New(c.HTTP)
	if err != nil {
		return nil, err
	}
	if c.Policy == nil {
		if c.Policy, err = Random(); err != nil {
			return nil, err
		}
	}
	built := &clusterv3.Cluster{
		Name: c.Name, DnsLookupFamily: clusterv3.Cluster_V4_PREFERRED, ConnectTimeout: durationpb.New(connectTimeout),
		TransportSocket: socket, LoadBalancingPolicy: c.Policy, CircuitBreakers: UnlimitedBreakers(corev3.RoutingPriority_DEFAULT, corev3.RoutingPriority_HIGH),
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{TcpKeepalive: &corev3.TcpKeepalive{
			KeepaliveTime: wrapperspb.UInt32(10), KeepaliveInterval: wrapperspb.UInt32(5), KeepaliveProbes: wrapperspb.UInt32(3)}},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
	}
	if c.Endpoints != nil {
		built.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		built.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: c.Endpoints}
		return built, nil
	}
	named := false
	if built.LoadAssignment, named, err = Assignment(c.Name, c.Addresses); err != nil {
		return nil, err
	}
	built.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	if named {
		built.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	}
	return built, nil
}

// UnlimitedBreakers lifts Envoy's default limits of 1,024 connections and requests for the requests
// of these priorities. Sluice's admission limits the requests to a model, and a second limit that
// nobody set would be an outage.
func UnlimitedBreakers(priorities ...corev3.RoutingPriority) *clusterv3.CircuitBreakers {
	limit, all := wrapperspb.UInt32(math.MaxUint32), new(clusterv3.CircuitBreakers)
	for _, priority := range priorities {
		all.Thresholds = append(all.Thresholds, &clusterv3.CircuitBreakers_Thresholds{Priority: priority,
			MaxConnections: limit, MaxPendingRequests: limit, MaxRequests: limit, MaxRetries: limit})
	}
	return all
}

// Assignment returns the endpoints of a cluster of gateways, host:port each. Those of the first
// list have the highest priority, and the others are for when they cannot be reached. named tells
// that a host is a name and not an IP address.
func Assignment(cluster string, levels ...[]string) (all *endpointv3.ClusterLoadAssignment, named bool, err error) {
	all = &endpointv3.ClusterLoadAssignment{ClusterName: cluster}
	for priority, addresses := range levels {
		level := &endpointv3.LocalityLbEndpoints{Priority: uint32(priority)}
		for _, text := range addresses {
			address, isName, err := socketAddress(text)
			if err != nil {
				return nil, false, err
			}
			named = named || isName
			level.LbEndpoints = append(level.LbEndpoints, &endpointv3.LbEndpoint{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}}})
		}
		all.Endpoints = append(all.Endpoints, level)
	}
	return all, named, nil
}

// socketAddress reads host:port. named tells that the host is a name and not an IP address.
func socketAddress(text string) (address *corev3.Address, named bool, err error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return nil, false, fmt.Errorf("address of a gateway: %w", err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, false, fmt.Errorf("address of a gateway: %q is not a port", port)
	}
	_, notIP := netip.ParseAddr(host)
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(number)},
	}}}, notIP != nil, nil
}

// Random is the policy that picks at random.
func Random() (*clusterv3.LoadBalancingPolicy, error) {
	packed, err := anypb.New(&randomv3.Random{})
	if err != nil {
		return nil, err
	}
	return &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{{
		TypedExtensionConfig: &corev3.TypedExtensionConfig{Name: "envoy.load_balancing_policies.random", TypedConfig: packed},
	}}}, nil
}

// transportSocket returns TLS with both certificates from files that Envoy watches.
func (c Cluster) transportSocket() (*corev3.TransportSocket, error) {
	san := &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_DNS, Matcher: exactly(c.ServerName)}
	up := &tlsv3.UpstreamTlsContext{Sni: c.ServerName, CommonTlsContext: &tlsv3.CommonTlsContext{
		// Without this, Envoy offers TLS 1.2 at most.
		TlsParams:                      &tlsv3.TlsParameters{TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
		AlpnProtocols:                  []string{c.Protocol},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret(certificateName, c.Certificate)},
	}}
	if address, err := netip.ParseAddr(c.ServerName); err == nil {
		san.SanType, san.Matcher, up.Sni = tlsv3.SubjectAltNameMatcher_IP_ADDRESS, exactly(address.String()), ""
	}
	up.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{san}},
			ValidationContextSdsSecretConfig: secret(authorityName, c.Authority),
		},
	}
	packed, err := anypb.New(up)
	if err != nil {
		return nil, err
	}
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed}}, nil
}

func exactly(text string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: text}}
}

// HTTP2 are options of HTTP/2 with pings. Its other settings are those of options, which may be
// empty.
func HTTP2(options *corev3.Http2ProtocolOptions) *httpv3.HttpProtocolOptions_ExplicitHttpConfig {
	o := proto.CloneOf(options)
	o.MaxConcurrentStreams = wrapperspb.UInt32(math.MaxInt32)
	o.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: durationpb.New(pingInterval), Timeout: durationpb.New(pingTimeout)}
	return &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: o},
	}
}
