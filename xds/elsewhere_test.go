package xds

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// otherGateway is the address of a second gateway in the tests.
const otherGateway = "10.0.0.9:9444"

// elsewhereFleet is fleetOf for gateways that serve Envoys of other hosts.
func elsewhereFleet(t testing.TB, ids ...string) *Resources {
	t.Helper()
	c := managedConfig("/run")
	c.Elsewhere = Elsewhere{Gateways: otherGateway, ServerName: "gateways.example"}
	return mustBuild(t, c, fleetOf(t, map[string][]string{"m": ids}).snapshot)
}

// overTCP returns s as Envoys of other hosts see it, and its address there.
func (s *served) overTCP(t testing.TB) (*served, string) {
	t.Helper()
	wire, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	s.Register(g)
	done := make(chan error, 1)
	go func() { done <- g.Serve(wire) }()
	dial, err := grpc.NewClient(wire.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		dial.Close()
		g.Stop()
		<-done
	})
	return &served{Server: s.Server, dial: dial}, wire.Addr().String()
}

// nodeMetadata is what an Envoy of another host says about itself.
func nodeMetadata(t testing.TB) *structpb.Struct {
	t.Helper()
	m, err := structpb.NewStruct(map[string]any{headers.Metadata: map[string]any{
		headers.NodeCertificate: "/envoy/certificate.json", headers.NodeAuthority: "/envoy/authority.json", headers.NodeListen: "127.0.0.7:7"}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ownNames are the clusters that lead an Envoy of another host to gateways.
func ownNames() []string {
	return []string{headers.APICluster, headers.ControlCluster, headers.GRPCCluster, headers.RelayCluster}
}

// connectElsewhere plays an Envoy of another host up to its subscription to the listener. It
// returns the answers that it has not acknowledged.
func (s *served) connectElsewhere(t testing.TB) (c *client, clusters, endpoints *discovery.DeltaDiscoveryResponse) {
	t.Helper()
	return s.connectElsewhereTo(t, "model/m")
}

// connectElsewhereTo is connectElsewhere for models with these clusters.
func (s *served) connectElsewhereTo(t testing.TB, models ...string) (c *client, clusters, endpoints *discovery.DeltaDiscoveryResponse) {
	t.Helper()
	c = s.connect(t)
	c.metadata = nodeMetadata(t)
	c.ask(clusterKind, nil)
	all := append(ownNames(), models...)
	clusters = c.expect(clusterKind, all...)
	c.ask(endpointKind, nil, all...)
	return c, clusters, c.expect(endpointKind, all...)
}

// complete acknowledges everything.
func (c *client) complete(clusters, endpoints *discovery.DeltaDiscoveryResponse) {
	c.ack(endpoints)
	c.ack(clusters)
	c.ask(listenerKind, nil)
	c.ack(c.expect(listenerKind, resourceName))
	c.expectNothing()
	c.expectNothing() // by now the server has read the answer before
}

// A replica is picked when all Envoys have it. An Envoy that starts takes none away, nor does one
// that has gone.
func TestU16_OnlyWhatEveryEnvoyHasIsPicked(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	remote, _ := s.overTCP(t)
	s.Set(elsewhereFleet(t, "a"))
	first, clusters, endpoints := remote.connectElsewhere(t)
	first.complete(clusters, endpoints)
	expectAcks(t, s, "m=a")

	second, clusters, endpoints := remote.connectElsewhere(t)
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("an Envoy that starts changes what is picked: %q", calls)
	}
	s.Set(elsewhereFleet(t, "a", "b"))
	first.ack(first.expect(endpointKind, "model/m"))
	expectAcks(t, s, "m=a,b")
	newer := second.expect(endpointKind, "model/m")
	second.ack(endpoints)
	second.complete(clusters, newer)
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("an Envoy that has everything changes what is picked: %q", calls)
	}

	s.Set(elsewhereFleet(t, "a", "b", "c"))
	first.ack(first.expect(endpointKind, "model/m"))
	first.expectNothing()
	later := second.expect(endpointKind, "model/m")
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("picked before every Envoy has it: %q", calls)
	}
	second.ack(later)
	expectAcks(t, s, "m=a,b,c")

	s.Set(elsewhereFleet(t, "a", "b", "c", "d"))
	first.ack(first.expect(endpointKind, "model/m"))
	first.expectNothing()
	second.hangUp()
	expectAcks(t, s, "m=a,b,c,d")
}

// An Envoy that refuses a model takes it from no other one, and everybody sees who refuses it.
func TestU16_AnEnvoyThatRefusesAModelHasNoSayOfIt(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	remote, _ := s.overTCP(t)
	s.Set(elsewhereFleet(t, "a"))
	refusing, clusters, endpoints := remote.connectElsewhere(t)
	refusing.complete(clusters, endpoints)
	expectAcks(t, s, "m=a")
	taking, clusters, endpoints := remote.connectElsewhere(t)
	taking.complete(clusters, endpoints)

	two := func(ids ...string) *Resources {
		c := managedConfig("/run")
		c.Elsewhere = Elsewhere{Gateways: otherGateway, ServerName: "gateways.example"}
		return mustBuild(t, c, fleetOf(t, map[string][]string{"m": {"a"}, "new": ids}).snapshot)
	}
	s.Set(two("n"))
	accept := func(c *client) {
		r := c.expect(clusterKind, "model/new")
		c.ask(endpointKind, nil, "model/new")
		c.ack(c.expect(endpointKind, "model/new"))
		c.ack(r)
	}
	accept(taking)
	refused := refusing.expect(clusterKind, "model/new")
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("picked before every Envoy has answered: %q", calls)
	}
	refusing.ack(refused, "no good")
	expectAcks(t, s, "new=n")
	if all := s.Status().Refused; len(all) != 1 || all[0].Resource != "model/new" || all[0].Envoy != "node at 127.0.0.1" {
		t.Errorf("the status has the refusals %+v", all)
	}
	if status := s.Status(); status.Nacks != 1 || status.LastNack == nil || status.LastNack.Envoy != "node at 127.0.0.1" {
		t.Errorf("%d refusals were counted, the last one is %+v", status.Nacks, status.LastNack)
	}

	again, clusters, _ := remote.connectElsewhereTo(t, "model/m", "model/new") // one that starts
	again.ack(clusters, "no good")
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("an Envoy that starts changes what is picked: %q", calls)
	}
	again.hangUp()

	taking.hangUp()
	expectAcks(t, s, "new=") // the only Envoy refuses it
	if all := s.Status().Refused; len(all) != 1 {
		t.Errorf("the status has the refusals %+v", all)
	}
	s.Set(withCluster(t, two("n"), "new"))
	accept(refusing)
	expectAcks(t, s, "new=n")
	if all := s.Status().Refused; len(all) != 0 {
		t.Errorf("the status still has the refusals %+v", all)
	}
}

// The Envoy of this host counts as well.
func TestU16_TheEnvoyOfThisHostAndOthers(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	remote, _ := s.overTCP(t)
	s.Set(elsewhereFleet(t, "a"))
	other, clusters, endpoints := remote.connectElsewhere(t)
	other.complete(clusters, endpoints)
	expectAcks(t, s, "m=a")
	own := s.connect(t)
	own.ask(clusterKind, nil)
	r := own.expect(clusterKind, "model/m", headers.GRPCCluster, headers.RelayCluster)
	own.ask(endpointKind, nil, "model/m")
	own.ack(own.expect(endpointKind, "model/m"))
	own.ack(r)
	eventually(t, "the status is that of the Envoy of this host", func() bool { return s.Status().Envoys == 2 && !s.Status().Configured })
	s.Set(elsewhereFleet(t, "a", "b"))
	other.ack(other.expect(endpointKind, "model/m"))
	other.expectNothing()
	own.ack(own.expect(endpointKind, "model/m"))
	eventually(t, "both have b", func() bool { return slices.Contains(s.ackCalls(), "m=a,b") })
}

// A process that takes over picks what its predecessor could pick. Envoys send it requests even if
// their xDS goes to another gateway. The first Envoy that connects changes that.
func TestU16_TheSuccessorPicksWithoutAnEnvoy(t *testing.T) {
	t.Parallel()
	before := newServed(t)
	remote, _ := before.overTCP(t)
	before.Set(elsewhereFleet(t, "a", "b"))
	envoy, clusters, endpoints := remote.connectElsewhere(t)
	envoy.complete(clusters, endpoints)
	expectAcks(t, before, "m=a,b")

	s := newServed(t)
	s.Inherit(before.Routable())
	expectAcks(t, s, "m=a,b")
	remote, _ = s.overTCP(t)
	s.Set(elsewhereFleet(t, "a"))
	envoy, clusters, endpoints = remote.connectElsewhere(t)
	envoy.complete(clusters, endpoints)
	expectAcks(t, s, "m=a") // what was inherited holds until this Envoy has a whole configuration
	s.Inherit(before.Routable())
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("picked against what the Envoy has: %q", calls)
	}
}

// Clusters of an Envoy of another host are the same at every gateway. Their endpoints prefer the
// gateway that it asks.
func TestU16_ViewOfAnotherHost(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	remote, address := s.overTCP(t)
	s.Set(elsewhereFleet(t, "a"))
	c, clusters, endpoints := remote.connectElsewhere(t)
	for _, r := range clusters.Resources {
		var m clusterv3.Cluster
		if err := r.Resource.UnmarshalTo(&m); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(m.Name, "sluice_") && (m.TransportSocket == nil || m.GetType() != clusterv3.Cluster_EDS || m.Metadata != nil) {
			t.Errorf("cluster %v", &m)
		}
	}
	for _, r := range endpoints.Resources {
		var m endpointv3.ClusterLoadAssignment
		if err := r.Resource.UnmarshalTo(&m); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, level := range m.Endpoints {
			for _, host := range level.LbEndpoints {
				at := host.GetEndpoint().GetAddress().GetSocketAddress()
				got = append(got, net.JoinHostPort(at.GetAddress(), strconv.Itoa(int(at.GetPortValue()))))
			}
		}
		if want := []string{address, otherGateway}; strings.HasPrefix(m.ClusterName, "sluice_") && !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", m.ClusterName, got, want)
		}
	}
	c.ack(endpoints)
	c.ack(clusters)
	c.ask(listenerKind, nil)
	var l listenerv3.Listener
	if err := c.expect(listenerKind, resourceName).Resources[0].Resource.UnmarshalTo(&l); err != nil {
		t.Fatal(err)
	}
	if at := l.GetAddress().GetSocketAddress(); at.GetAddress() != "127.0.0.7" || at.GetPortValue() != 7 {
		t.Errorf("listens at %v", at)
	}
}

// A node whose Envoy was not set up by sluice bootstrap is told so.
func TestU16_NodeWithoutFiles(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	remote, _ := s.overTCP(t)
	s.Set(elsewhereFleet(t, "a"))
	c := remote.connect(t)
	c.ask(clusterKind, nil)
	if _, ok := <-c.got; ok {
		t.Error("answered")
	}
	if _, err := c.wire.Recv(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "sluice bootstrap") {
		t.Error(err)
	}
}

// A gateway that Envoys have left says so, and only after a while.
func TestU16_HasLeft(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	remote, _ := s.overTCP(t)
	s.Set(elsewhereFleet(t, "a"))
	c, clusters, endpoints := remote.connectElsewhere(t)
	c.complete(clusters, endpoints)
	if s.HasLeft("127.0.0.1") {
		t.Error("left while it is here")
	}
	c.hangUp()
	eventually(t, "no Envoy", func() bool { return s.Status().Envoys == 0 })
	if s.HasLeft("127.0.0.1") {
		t.Error("left although it may come back")
	}
	eventually(t, "the Envoy has left", func() bool { return s.HasLeft("127.0.0.1") })
	if s.HasLeft("10.0.0.1") {
		t.Error("an Envoy that never came has left")
	}
}
