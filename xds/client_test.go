package xds

import (
	"cmp"
	"context"
	"errors"
	"hash/crc32"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// served is a Server behind gRPC, for tests that play the part of Envoy.
type served struct {
	*Server
	dial *grpc.ClientConn

	mu sync.Mutex
	// acks are the calls of OnAck, "model=id,id". A group is behind its model, and an address is
	// behind its id unless it is that of fleetOf. Guarded by mu.
	acks []string
}

func newServed(t testing.TB) *served {
	t.Helper()
	s := &served{}
	s.Server = NewServer(ServerConfig{Linger: time.Millisecond, OnAck: func(cluster string, replicas map[string]netip.AddrPort) {
		s.mu.Lock()
		defer s.mu.Unlock()
		ids := slices.Sorted(maps.Keys(replicas))
		for i, id := range ids {
			if at := replicas[id]; at != addressOf(id) {
				ids[i] += "@" + at.String()
			}
		}
		s.acks = append(s.acks, strings.TrimPrefix(cluster, headers.ModelCluster(""))+"="+strings.Join(ids, ","))
	}})
	wire := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	s.Register(g)
	done := make(chan error, 1)
	go func() { done <- g.Serve(wire) }()
	var err error
	s.dial, err = grpc.NewClient("passthrough:envoy", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return wire.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.dial.Close()
		g.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return s
}

// ackCalls returns the calls of OnAck since the last call of ackCalls, sorted.
func (s *served) ackCalls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	acks := s.acks
	s.acks = nil
	slices.Sort(acks)
	return acks
}

// client plays the part of Envoy on one stream.
type client struct {
	t      testing.TB
	wire   discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	got    chan *discovery.DeltaDiscoveryResponse
	hangUp context.CancelFunc
	named  bool
	// node is the id of the node. Empty means "node".
	node string
	// metadata are those of the node.
	metadata *structpb.Struct
}

func (s *served) connect(t testing.TB) *client {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	wire, err := discovery.NewAggregatedDiscoveryServiceClient(s.dial).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, wire: wire, got: make(chan *discovery.DeltaDiscoveryResponse, 100), hangUp: cancel}
	go func() {
		defer close(c.got)
		for {
			response, err := wire.Recv()
			if err != nil {
				return
			}
			c.got <- response
		}
	}()
	return c
}

// send sends a request. The first request names the node.
func (c *client) send(request *discovery.DeltaDiscoveryRequest) {
	c.t.Helper()
	if !c.named {
		c.named = true
		request.Node = &core.Node{Id: cmp.Or(c.node, "node"), Metadata: c.metadata, UserAgentVersionType: &core.Node_UserAgentBuildVersion{
			UserAgentBuildVersion: &core.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40, Patch: 2}},
		}}
	}
	if err := c.wire.Send(request); err != nil && !errors.Is(err, io.EOF) {
		c.t.Fatal(err)
	}
}

// ask subscribes to names. has are the versions that this Envoy has from an earlier stream.
func (c *client) ask(k resourceKind, has map[string]string, names ...string) {
	c.t.Helper()
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: k.typeURL(), ResourceNamesSubscribe: names, InitialResourceVersions: has})
}

func (c *client) forget(k resourceKind, names ...string) {
	c.t.Helper()
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: k.typeURL(), ResourceNamesUnsubscribe: names})
}

// ack acknowledges a response, or refuses it if a message is given.
func (c *client) ack(r *discovery.DeltaDiscoveryResponse, refusal ...string) {
	c.t.Helper()
	request := &discovery.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}
	if len(refusal) > 0 {
		request.ErrorDetail = &status.Status{Code: 13, Message: refusal[0]}
	}
	c.send(request)
}

// expect receives the next response and checks its kind and its content: "name", or "-name" for a
// removed resource.
func (c *client) expect(k resourceKind, want ...string) *discovery.DeltaDiscoveryResponse {
	c.t.Helper()
	select {
	case r, ok := <-c.got:
		if !ok {
			c.t.Fatal("the stream ended")
		}
		got := namesIn(r)
		slices.Sort(want)
		if r.TypeUrl != k.typeURL() || !slices.Equal(got, want) {
			c.t.Fatalf("got %s %q, want %s %q", r.TypeUrl, got, k, want)
		}
		return r
	case <-time.After(testTimeout):
		c.t.Fatalf("no response, want %s %q", k, want)
		return nil
	}
}

// expectNothing checks that the server has nothing to send: it asks a question that is always
// answered, and the answer is the next response.
func (c *client) expectNothing() {
	c.t.Helper()
	c.ask(routeKind, nil, resourceName)
	c.ack(c.expect(routeKind, resourceName))
}

// connectAndAck connects as an Envoy does and acknowledges everything. It returns the client.
func (s *served) connectAndAck(t testing.TB, models ...string) *client {
	t.Helper()
	return s.connectAs(t, "node", models...)
}

// connectAs is connectAndAck for the Envoy of a node. The server has handled every acknowledgement
// when connectAs returns, so the Envoy counts.
func (s *served) connectAs(t testing.TB, node string, models ...string) *client {
	t.Helper()
	c := s.connect(t)
	c.node = node
	var want []string
	for _, m := range models {
		want = append(want, "model/"+m)
	}
	c.ask(clusterKind, nil)
	r := c.expect(clusterKind, want...)
	if len(want) > 0 {
		c.ask(endpointKind, nil, want...)
		c.ack(c.expect(endpointKind, want...))
	}
	c.ack(r)
	c.ask(listenerKind, nil)
	c.ack(c.expect(listenerKind, resourceName))
	c.expectNothing() // it acknowledges the route
	c.expectNothing()
	return c
}

func namesIn(r *discovery.DeltaDiscoveryResponse) []string {
	var got []string
	for _, res := range r.Resources {
		got = append(got, res.Name)
	}
	for _, name := range r.RemovedResources {
		got = append(got, "-"+name)
	}
	slices.Sort(got)
	return got
}

// addressOf returns the address of a replica in fleetOf.
func addressOf(id string) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(1+crc32.ChecksumIEEE([]byte(id))%60_000))
}

// fleetOf returns resources for models with the ids of their ready replicas. Each id has a port of
// its own.
func fleetOf(t testing.TB, models map[string][]string) *Resources {
	t.Helper()
	s := &engines.Snapshot{Models: map[string]*engines.ModelSnapshot{}}
	for name, ids := range models {
		m := &engines.ModelSnapshot{Model: engines.Model{Name: name}}
		for _, id := range ids {
			m.Replicas = append(m.Replicas, engines.Replica{ID: id, State: engines.Ready, Address: addressOf(id)})
		}
		s.Models[name] = m
	}
	r, err := (*Resources)(nil).Rebuild(Config{Listen: "127.0.0.1:0"}, s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
