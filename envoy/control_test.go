package envoy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

const listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"

// control is a minimal xDS server. It serves every Envoy one listener and one backend.
type control struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	cluster, listener *anypb.Any
	// connected receives the node id of every new stream.
	connected chan string
}

func newControl(t *testing.T, backend net.Addr, listen netip.AddrPort) *control {
	t.Helper()
	return &control{
		cluster:   packed(t, backendCluster(backend)),
		listener:  packed(t, listener(t, listen)),
		connected: make(chan string, 100),
	}
}

// serve answers on the socket until the test ends or stop is called.
func (c *control) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, c)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	stop = func() {
		s.Stop()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

// DeltaAggregatedResources answers the first request for each type. It takes all other requests for
// acknowledgements.
func (c *control) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	named := false
	for {
		req, err := s.Recv()
		if err != nil {
			return err
		}
		if !named {
			named = true
			c.connected <- req.GetNode().GetId()
		}
		if req.GetErrorDetail() != nil {
			return fmt.Errorf("refused: %v", req.GetErrorDetail())
		}
		if req.GetResponseNonce() != "" {
			continue
		}
		resource := &discoveryv3.Resource{Name: "backend", Version: "1", Resource: c.cluster}
		if req.GetTypeUrl() == listenerType {
			resource = &discoveryv3.Resource{Name: "main", Version: "1", Resource: c.listener}
		}
		err = s.Send(&discoveryv3.DeltaDiscoveryResponse{
			TypeUrl: req.GetTypeUrl(), Nonce: req.GetTypeUrl(), Resources: []*discoveryv3.Resource{resource},
		})
		if err != nil {
			return err
		}
	}
}

func backendCluster(addr net.Addr) *clusterv3.Cluster {
	tcp := addr.(*net.TCPAddr)
	return &clusterv3.Cluster{
		Name:                 "backend",
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: "backend",
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
					Address: tcpAddress(tcp.IP.String(), uint32(tcp.Port)),
				}},
			}}}},
		},
	}
}

// listener returns a listener at an address, which all Envoys of a test share.
func listener(t *testing.T, address netip.AddrPort) *listenerv3.Listener {
	t.Helper()
	manager := packed(t, &hcmv3.HttpConnectionManager{
		StatPrefix: "main",
		HttpFilters: []*hcmv3.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(t, &routerv3.Router{})},
		}},
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "backend"},
					Timeout:          durationpb.New(0),
				}},
			}}}},
		}},
	})
	return &listenerv3.Listener{
		Name:    "main",
		Address: tcpAddress(address.Addr().String(), uint32(address.Port())),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: manager},
		}}}},
	}
}

func tcpAddress(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// slowBackend sends one line at once and ends the response when the test closes finish.
type slowBackend struct {
	server *httptest.Server
	finish chan struct{}
}

func newSlowBackend(t *testing.T) *slowBackend {
	t.Helper()
	b := &slowBackend{finish: make(chan struct{})}
	b.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begin\n")
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/quick" {
			return
		}
		select {
		case <-b.finish:
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<16)+"end\n")
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(b.server.Close)
	return b
}
