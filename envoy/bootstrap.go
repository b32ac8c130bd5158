package envoy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	connectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
)

const (
	// maxDownstreamConnections stands where Envoy wants a limit and warns without one. What really bounds connections is
	// the number of open files; a request more than that waits in the kernel's backlog instead of being cut.
	maxDownstreamConnections = 1 << 20
	// maxHTTP2Streams is the largest value that the field takes; the default of 1024 is an outage at the 1025th stream.
	maxHTTP2Streams = math.MaxInt32
	connectTimeout  = time.Second
	// apiIdleTimeout must be under the idle timeout of Sluice's HTTP server, or a reused connection meets a close.
	apiIdleTimeout = 30 * time.Second
	// The back-off of the xDS stream grows from the first to the last of these. Envoy's own, 500 ms to 30 s, would keep a restarted Sluice waiting.
	reconnectFirst = 50 * time.Millisecond
	reconnectLast  = 500 * time.Millisecond
	// maxSocketPath is what sockaddr_un holds on Linux, without the final zero.
	maxSocketPath = 107
)

// BootstrapConfig is what an Envoy has to know before it can ask Sluice for the rest.
type BootstrapConfig struct {
	// NodeID names this Envoy to the xDS server. Default: sluice.
	NodeID string
	// Cluster is the node's cluster, for people only. Default: sluice.
	Cluster string
	// ControlSocket is the unix socket of Sluice's gRPC listener (xDS, ext_proc, ext_authz, access log). Required, at most
	// 107 bytes, absolute: an Envoy may be started anywhere.
	ControlSocket string
	// APISocket is the unix socket of the HTTP listener for what Sluice answers itself. As ControlSocket.
	APISocket string
	// AdminSocket is where Envoy serves its admin interface; only the owner may open it. As ControlSocket.
	AdminSocket string
}

// Bootstrap renders the configuration that Envoy starts with, as JSON, which is also YAML. The same config gives the same bytes.
//
// It holds nothing that ever changes while Envoy runs: listeners, routes, clusters and endpoints all come by xDS.
func Bootstrap(c BootstrapConfig) ([]byte, error) {
	for name, path := range map[string]string{"control": c.ControlSocket, "api": c.APISocket, "admin": c.AdminSocket} {
		if path == "" || path[0] != '/' || len(path) > maxSocketPath {
			return nil, fmt.Errorf("envoy bootstrap: the %s socket needs an absolute path of at most %d bytes, not %q", name, maxSocketPath, path)
		}
	}
	b, err := build(c)
	if err != nil {
		return nil, fmt.Errorf("envoy bootstrap: %w", err)
	}
	if err := b.ValidateAll(); err != nil {
		return nil, fmt.Errorf("envoy bootstrap: %w", err)
	}
	return render(b)
}

func build(c BootstrapConfig) (*bootstrapv3.Bootstrap, error) {
	control, err := controlCluster(c.ControlSocket)
	if err != nil {
		return nil, err
	}
	api, err := apiCluster(c.APISocket)
	if err != nil {
		return nil, err
	}
	connections, err := anypb.New(&connectionsv3.DownstreamConnectionsConfig{
		MaxActiveDownstreamConnections: maxDownstreamConnections,
	})
	if err != nil {
		return nil, err
	}
	return &bootstrapv3.Bootstrap{
		Node:             &corev3.Node{Id: or(c.NodeID, "sluice"), Cluster: or(c.Cluster, "sluice")},
		StaticResources:  &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{control, api}},
		DynamicResources: dynamicResources(),
		Admin: &bootstrapv3.Admin{
			Address:               pipe(c.AdminSocket, 0o600),
			IgnoreGlobalConnLimit: true,
		},
		OverloadManager: &overloadv3.OverloadManager{
			ResourceMonitors: []*overloadv3.ResourceMonitor{{
				Name:       "envoy.resource_monitors.global_downstream_max_connections",
				ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: connections},
			}},
		},
	}, nil
}

// dynamicResources asks for clusters and listeners over one delta stream.
func dynamicResources() *bootstrapv3.Bootstrap_DynamicResources {
	return &bootstrapv3.Bootstrap_DynamicResources{
		AdsConfig: &corev3.ApiConfigSource{
			ApiType:             corev3.ApiConfigSource_DELTA_GRPC,
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{
				TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
					ClusterName: headers.ControlCluster,
					RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
						BaseInterval: durationpb.New(reconnectFirst),
						MaxInterval:  durationpb.New(reconnectLast),
					}},
				}},
			}},
			SetNodeOnFirstMessageOnly: true,
		},
		CdsConfig: overADS(),
		LdsConfig: overADS(),
	}
}

// overADS sets no limit to the first fetch: after Envoy's 15 s it would call itself ready without a listener. So /ready
// says yes only when Sluice has answered.
func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   durationpb.New(0),
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

// controlCluster leads to Sluice's gRPC listener. It has no keepalive: the kernel reports the end of a process on a unix
// socket at once, while pings would cut the exchanges of a Sluice that merely stands still, and grpc-go takes pings more
// often than every five minutes for an attack.
func controlCluster(socket string) (*clusterv3.Cluster, error) {
	return staticCluster(headers.ControlCluster, socket, &httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: explicit(&httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
				Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
					MaxConcurrentStreams: wrapperspb.UInt32(maxHTTP2Streams),
				},
			},
		}),
	})
}

func apiCluster(socket string) (*clusterv3.Cluster, error) {
	return staticCluster(headers.APICluster, socket, &httpv3.HttpProtocolOptions{
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(apiIdleTimeout)},
		UpstreamProtocolOptions: explicit(&httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
				HttpProtocolOptions: &corev3.Http1ProtocolOptions{},
			},
		}),
	})
}

func explicit(c *httpv3.HttpProtocolOptions_ExplicitHttpConfig) *httpv3.HttpProtocolOptions_ExplicitHttpConfig_ {
	return &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: c}
}

func staticCluster(name, socket string, protocol *httpv3.HttpProtocolOptions) (*clusterv3.Cluster, error) {
	options, err := anypb.New(protocol)
	if err != nil {
		return nil, err
	}
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(connectTimeout),
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{
			unlimited(corev3.RoutingPriority_DEFAULT), unlimited(corev3.RoutingPriority_HIGH),
		}},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options,
		},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{
				LbEndpoints: []*endpointv3.LbEndpoint{{
					HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: pipe(socket, 0)}},
				}},
			}},
		},
	}, nil
}

// unlimited lifts the 1024 of everything that Envoy gives every cluster.
func unlimited(priority corev3.RoutingPriority) *clusterv3.CircuitBreakers_Thresholds {
	most := wrapperspb.UInt32(math.MaxUint32)
	return &clusterv3.CircuitBreakers_Thresholds{
		Priority:           priority,
		MaxConnections:     most,
		MaxPendingRequests: most,
		MaxRequests:        most,
		MaxRetries:         most,
	}
}

func pipe(path string, mode uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path, Mode: mode}}}
}

// render gives stable bytes: protojson itself varies its spaces on purpose.
func render(m proto.Message) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("envoy bootstrap: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("envoy bootstrap: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func or(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}
