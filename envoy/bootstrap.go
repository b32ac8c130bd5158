package envoy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/elsewhere"
	"github.com/sluice-gateway/sluice/internal/headers"
)

const (
	// maxHTTP2Streams is the largest value of the field. With the default of 1024, the 1025th
	// exchange would wait.
	maxHTTP2Streams = math.MaxInt32
	connectTimeout  = time.Second
	// apiIdleTimeout must be shorter than the idle timeout of Sluice's HTTP server. Otherwise Envoy
	// may reuse a connection that the server is closing.
	apiIdleTimeout = 30 * time.Second
	// leastAPIConnections is the smallest bound of the connections to the API's socket: once for
	// calls of /schedule, which may wait, and once for the others. Further calls wait for a
	// connection. Without a bound the streams of one HTTP/2 client could take all descriptors, and
	// Envoy ends itself when it cannot open a socket.
	leastAPIConnections = 64
	// apiShare is the part of the clients' connections that the bound is, when that is more.
	apiShare = 8
	// reconnectFirst and reconnectLast bound the back-off of the xDS stream. Envoy's defaults, 500
	// ms to 30 s, would delay the configuration after a restart of Sluice.
	reconnectFirst = 50 * time.Millisecond
	reconnectLast  = 500 * time.Millisecond
	// missTimeout is how long a thread of Envoy must be stuck to count in its statistic
	// watchdog_miss, which nothing else follows. Each thread wakes up twice in this time to show
	// that it is not stuck. With Envoy's default of 200 ms an idle Envoy takes a quarter more CPU.
	missTimeout = 5 * time.Second
	// requestsPerRead is how many requests of one connection a worker begins before it turns to the
	// other connections.
	requestsPerRead = 16
	// resetsJudgedFrom is the number of requests of a connection from which Envoy looks at resets.
	// It closes the connection if the client has reset half of the requests within a second of
	// their start. Envoy's default is 500.
	resetsJudgedFrom = 100
	// maxSocketPath is the longest path in a sockaddr_un on Linux, without the final zero.
	maxSocketPath = 107
)

// BootstrapConfig is what an Envoy must know before it can ask Sluice for the rest.
type BootstrapConfig struct {
	// NodeID identifies this Envoy to the xDS server. Empty means "sluice".
	NodeID string
	// Cluster is the cluster of the node. It is only shown to people. Empty means "sluice".
	Cluster string
	// ControlSocket is the unix socket of Sluice's gRPC listener (xDS, ext_proc, ext_authz, access
	// log). Required. The path is absolute, because Envoy may be started in any directory, and has
	// at most 107 bytes.
	ControlSocket string
	// APISocket is the unix socket of the HTTP listener for package internal/api. The same rules
	// apply as for ControlSocket.
	APISocket string
	// AdminSocket is the unix socket of Envoy's admin interface, which only its owner may open. The
	// same rules apply as for ControlSocket.
	AdminSocket string
	// PressureFile is the path of a file with the share of the connections that is in use, from 0
	// to 1. Idle timeouts shrink with it. Each change of the file must be a rename. Empty means
	// that idle timeouts never shrink.
	PressureFile string
	// Budget is how much Envoy may use. The zero value means no limits.
	Budget Budget
	// Inlets is where the gateway connects to an Envoy with Sluice's own filter. The zero value
	// means that it does not.
	Inlets Inlets
}

// Bootstrap renders the configuration that Envoy starts with, as JSON, which is also YAML. Equal
// configs give equal bytes.
//
// The bootstrap holds nothing that changes while Envoy runs: the listener for clients, routes,
// clusters and endpoints come by xDS.
func Bootstrap(c BootstrapConfig) ([]byte, error) {
	for name, path := range map[string]string{"control": c.ControlSocket, "api": c.APISocket, "admin": c.AdminSocket} {
		if path == "" || path[0] != '/' || len(path) > maxSocketPath {
			return nil, fmt.Errorf("envoy bootstrap: the %s socket needs an absolute path of at most %d bytes, not %q", name, maxSocketPath, path)
		}
	}
	b, err := newBootstrap(c)
	if err != nil {
		return nil, fmt.Errorf("envoy bootstrap: %w", err)
	}
	return render(b)
}

// newBootstrap builds the message that Bootstrap renders.
func newBootstrap(c BootstrapConfig) (*bootstrapv3.Bootstrap, error) {
	control, err := controlCluster(c.ControlSocket)
	if err != nil {
		return nil, err
	}
	api, err := apiCluster(c.APISocket, c.Budget)
	if err != nil {
		return nil, err
	}
	overload, err := overloadManager(c.Budget, c.PressureFile)
	if err != nil {
		return nil, err
	}
	inlets, err := c.Inlets.listeners()
	if err != nil {
		return nil, err
	}
	return &bootstrapv3.Bootstrap{
		Node:             &corev3.Node{Id: c.nodeID(), Cluster: cmp.Or(c.Cluster, "sluice")},
		StaticResources:  &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{control, api}, Listeners: inlets},
		DynamicResources: dynamicResources(headers.ControlCluster),
		Admin: &bootstrapv3.Admin{
			Address:               pipe(c.AdminSocket, 0o600),
			IgnoreGlobalConnLimit: true,
		},
		LayeredRuntime:  resetGuards(),
		OverloadManager: overload,
		Watchdogs:       &bootstrapv3.Watchdogs{MainThreadWatchdog: rareWatchdog(), WorkerWatchdog: rareWatchdog()},
	}, nil
}

// resetGuards bounds what a client costs that begins requests over HTTP/2 and resets them at once,
// on many connections. Envoy keeps the memory of a reset stream until it has read from all
// connections.
func resetGuards() *bootstrapv3.LayeredRuntime {
	values := &structpb.Struct{Fields: map[string]*structpb.Value{
		"http.max_requests_per_io_cycle":              structpb.NewNumberValue(requestsPerRead),
		"overload.premature_reset_total_stream_count": structpb.NewNumberValue(resetsJudgedFrom),
	}}
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
		Name: "sluice", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: values},
	}}}
}

// rareWatchdog looks for stuck threads as rarely as missTimeout allows. package envoy asks Envoy
// itself whether it answers, and ends an Envoy that hangs.
func rareWatchdog() *bootstrapv3.Watchdog {
	return &bootstrapv3.Watchdog{MissTimeout: durationpb.New(missTimeout), MegamissTimeout: durationpb.New(missTimeout)}
}

// dynamicResources makes Envoy ask a cluster for clusters and listeners over one delta ADS stream.
func dynamicResources(cluster string) *bootstrapv3.Bootstrap_DynamicResources {
	return &bootstrapv3.Bootstrap_DynamicResources{
		AdsConfig: &corev3.ApiConfigSource{
			ApiType:             corev3.ApiConfigSource_DELTA_GRPC,
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{
				TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
					ClusterName: cluster,
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

// overADS sets no timeout for the first fetch. With Envoy's default of 15 s, an Envoy without a
// listener would report itself ready. Without the timeout, Envoy becomes live only after Sluice has
// answered.
func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   durationpb.New(0),
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

// controlCluster leads to Sluice's gRPC listener. It has no HTTP/2 keepalive. The kernel reports
// the end of a process on a unix socket at once, while pings would cut the exchanges of a Sluice
// that is merely stopped. Also, grpc-go treats pings at intervals of less than five minutes as an
// attack.
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

// apiCluster leads to the HTTP listener of package internal/api.
func apiCluster(socket string, b Budget) (*clusterv3.Cluster, error) {
	cluster, err := staticCluster(headers.APICluster, socket, &httpv3.HttpProtocolOptions{
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(apiIdleTimeout)},
		UpstreamProtocolOptions: explicit(&httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
				HttpProtocolOptions: &corev3.Http1ProtocolOptions{},
			},
		}),
	})
	if err != nil {
		return nil, err
	}
	for _, t := range cluster.GetCircuitBreakers().GetThresholds() {
		t.MaxConnections = wrapperspb.UInt32(uint32(max(leastAPIConnections, b.Connections/apiShare)))
	}
	return cluster, nil
}

func explicit(c *httpv3.HttpProtocolOptions_ExplicitHttpConfig) *httpv3.HttpProtocolOptions_ExplicitHttpConfig_ {
	return &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: c}
}

// staticCluster returns a cluster with one endpoint, a unix socket.
func staticCluster(name, socket string, protocol *httpv3.HttpProtocolOptions) (*clusterv3.Cluster, error) {
	options, err := anypb.New(protocol)
	if err != nil {
		return nil, err
	}
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(connectTimeout),
		CircuitBreakers:      elsewhere.UnlimitedBreakers(corev3.RoutingPriority_DEFAULT, corev3.RoutingPriority_HIGH),
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

// pipe returns the address of a unix socket. mode 0 leaves its permissions alone.
func pipe(path string, mode uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path, Mode: mode}}}
}

// render returns stable bytes of a message that is valid. The output of protojson alone varies its
// white space on purpose.
func render(m interface {
	proto.Message
	ValidateAll() error
}) ([]byte, error) {
	if err := m.ValidateAll(); err != nil {
		return nil, fmt.Errorf("envoy bootstrap: %w", err)
	}
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
