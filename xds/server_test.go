package xds

import (
	"fmt"
	"slices"
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

type models = map[string][]string

func expectAcks(t testing.TB, s *served, want ...string) {
	t.Helper()
	var got []string
	eventually(t, fmt.Sprintf("OnAck was called with %q", want), func() bool {
		got = append(got, s.ackCalls()...)
		return len(got) >= len(want)
	})
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("OnAck was called with %q, want %q", got, want)
	}
}

// versions returns what an Envoy that has all of r reports when it reconnects.
func (r *Resources) versions(k resourceKind) map[string]string {
	v := map[string]string{}
	for name := range r.all(k) {
		v[name] = r.find(k, name).Version
	}
	return v
}

// withCluster returns r with a changed cluster of a model.
func withCluster(t testing.TB, r *Resources, model string) *Resources {
	t.Helper()
	// An earlier r may share the model.
	own := *r.Models[model]
	c := proto.Clone(own.Cluster.Message).(*cluster.Cluster)
	c.ConnectTimeout = durationpb.New(c.ConnectTimeout.AsDuration() * 2)
	changed, err := newResource(c.Name, c)
	if err != nil {
		t.Fatal(err)
	}
	own.Cluster = changed
	r.Models[model], r.byCluster[c.Name] = &own, &own
	return r
}

func TestNothingIsSaidBeforeSet(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	c := s.connect(t)
	// An earlier process left this Envoy running. An empty answer would make it remove its
	// listener.
	resources := fleetOf(t, models{"chat": {"chat-0"}})
	c.ask(clusterKind, resources.versions(clusterKind))
	c.ask(listenerKind, resources.versions(listenerKind))
	if s.Status().Connected {
		t.Error("the stream was served before there was anything to serve")
	}
	s.Set(resources)
	c.expect(clusterKind)
	c.expect(listenerKind)
}

func TestScalingSendsOnlyEndpoints(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(fleetOf(t, models{"a": {"a-0"}, "b": {"b-0"}}))
	c := s.connectAndAck(t, "a", "b")
	expectAcks(t, s, "a=a-0", "b=b-0")
	s.Set(fleetOf(t, models{"a": {"a-0"}, "b": {"b-0", "b-1"}}))
	r := c.expect(endpointKind, "model/b")
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("OnAck was called with %q before the acknowledgement", calls)
	}
	c.ack(r)
	expectAcks(t, s, "b=b-0,b-1")
	s.Set(fleetOf(t, models{"a": nil, "b": {"b-0", "b-1"}}))
	c.ack(c.expect(endpointKind, "model/a"))
	expectAcks(t, s, "a=")
	s.Set(fleetOf(t, models{"a": nil, "b": {"b-0", "b-1"}}))
	c.expectNothing()
}

func TestAckNeedsClusterAndEndpoints(t *testing.T) {
	t.Parallel()
	for _, clusterFirst := range []bool{true, false} {
		s := newServed(t)
		s.Set(fleetOf(t, models{"other": {"other-0"}}))
		c := s.connectAndAck(t, "other")
		expectAcks(t, s, "other=other-0")
		s.Set(fleetOf(t, models{"other": {"other-0"}, "chat": {"chat-0"}}))
		cds := c.expect(clusterKind, "model/chat")
		c.ask(endpointKind, nil, "model/chat")
		eds := c.expect(endpointKind, "model/chat")
		first, second := eds, cds
		if clusterFirst {
			first, second = cds, eds
		}
		c.ack(first)
		c.expectNothing()
		if calls := s.ackCalls(); calls != nil {
			t.Errorf("OnAck was called with %q with half of it", calls)
		}
		c.ack(second)
		expectAcks(t, s, "chat=chat-0")
	}
}

func TestChangedClusterBringsItsEndpoints(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(fleetOf(t, models{"a": {"a-0"}, "b": {"b-0"}}))
	c := s.connectAndAck(t, "a", "b")
	expectAcks(t, s, "a=a-0", "b=b-0")
	s.Set(withCluster(t, fleetOf(t, models{"a": {"a-0"}, "b": {"b-0"}}), "a"))
	c.ack(c.expect(clusterKind, "model/a"))
	c.ack(c.expect(endpointKind, "model/a"))
	c.expectNothing()
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("no replica came or went, but OnAck calls %q", calls)
	}
}

func TestModelGoesAndComesBack(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(fleetOf(t, models{"a": {"a-0"}}))
	c := s.connectAndAck(t, "a")
	expectAcks(t, s, "a=a-0")
	s.Set(fleetOf(t, models{}))
	// Envoy itself removes the endpoints of a removed cluster, so the server removes the cluster
	// alone.
	c.ack(c.expect(clusterKind, "-model/a"))
	c.forget(endpointKind, "model/a")
	expectAcks(t, s, "a=")
	s.Set(fleetOf(t, models{"a": {"a-0"}}))
	r := c.expect(clusterKind, "model/a")
	c.ask(endpointKind, nil, "model/a")
	c.ack(c.expect(endpointKind, "model/a"))
	c.ack(r)
	expectAcks(t, s, "a=a-0")
}

func TestRefusedResourceIsQuarantined(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(fleetOf(t, models{}))
	c := s.connectAndAck(t)
	s.Set(fleetOf(t, models{"a": {"a-0"}, "bad": {"bad-0"}, "c": {"c-0"}}))
	c.ack(c.expect(clusterKind, "model/a", "model/bad", "model/c"), "no good")
	// Each resource is sent again alone.
	a, bad, cc := c.expect(clusterKind, "model/a"), c.expect(clusterKind, "model/bad"), c.expect(clusterKind, "model/c")
	c.ack(bad, "bad is no good")
	c.ask(endpointKind, nil, "model/a", "model/c")
	c.ack(c.expect(endpointKind, "model/a", "model/c"))
	c.ack(a)
	c.ack(cc)
	expectAcks(t, s, "a=a-0", "c=c-0")
	status := s.Status()
	if status.Nacks != 2 || len(status.Refused) != 1 || status.Refused[0].Resource != "model/bad" || status.Refused[0].Type != "cluster" ||
		status.LastNack == nil || status.LastNack.Message != "bad is no good" || status.LastNack.Time.IsZero() {
		t.Errorf("status %+v", status)
	}
	// The others take effect, and the bad one is not sent again unchanged.
	s.Set(fleetOf(t, models{"a": {"a-0", "a-1"}, "bad": {"bad-0"}, "c": {"c-0"}}))
	c.ack(c.expect(endpointKind, "model/a"))
	expectAcks(t, s, "a=a-0,a-1")
	// The bad resource is sent again after it has changed.
	s.Set(withCluster(t, fleetOf(t, models{"a": {"a-0", "a-1"}, "bad": {"bad-0"}, "c": {"c-0"}}), "bad"))
	r := c.expect(clusterKind, "model/bad")
	c.ask(endpointKind, nil, "model/bad")
	c.ack(c.expect(endpointKind, "model/bad"))
	c.ack(r)
	expectAcks(t, s, "bad=bad-0")
	if status := s.Status(); len(status.Refused) != 0 {
		t.Errorf("still refused: %+v", status.Refused)
	}
}

func TestRefusedModelGoes(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(fleetOf(t, models{}))
	c := s.connectAndAck(t)
	s.Set(fleetOf(t, models{"bad": {"bad-0"}}))
	c.ack(c.expect(clusterKind, "model/bad"), "no good")
	eventually(t, "the refusal is seen", func() bool { return len(s.Status().Refused) == 1 })
	s.Set(fleetOf(t, models{}))
	c.ack(c.expect(clusterKind, "-model/bad"))
	eventually(t, "the refusal is forgotten with the model", func() bool { return len(s.Status().Refused) == 0 })
	if s.Status().LastNack == nil {
		t.Error("the last refusal is forgotten too")
	}
}

func TestRefusedEndpointsLeaveWhatEnvoyHas(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(fleetOf(t, models{"a": {"a-0"}}))
	c := s.connectAndAck(t, "a")
	expectAcks(t, s, "a=a-0")
	s.Set(fleetOf(t, models{"a": {"a-0", "a-1"}}))
	c.ack(c.expect(endpointKind, "model/a"), "no good")
	c.expectNothing()
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("OnAck was called with %q of what was refused", calls)
	}
	// A name that is subscribed again is answered again. Otherwise its cluster would wait forever.
	c.ask(endpointKind, nil, "model/a")
	c.ack(c.expect(endpointKind, "model/a"), "")
	s.Set(fleetOf(t, models{"a": {"a-1"}}))
	eds := c.expect(endpointKind, "model/a")
	expectAcks(t, s, "a=")
	c.ack(eds)
	expectAcks(t, s, "a=a-1")
}

// An Envoy that reconnects gets only the resources that it does not have. What it has is known at
// once.
func TestReconnect(t *testing.T) {
	t.Parallel()
	old := fleetOf(t, models{"same": {"same-0"}, "scaled": {"scaled-0"}, "gone": {"gone-0"}, "changed": {"changed-0"}})
	resources := withCluster(t, fleetOf(t, models{"same": {"same-0"}, "scaled": {"scaled-0", "scaled-1"}, "changed": {"changed-0"}}), "changed")
	// a restarted gateway
	s := newServed(t)
	s.Set(resources)
	c := s.connect(t)
	c.ask(clusterKind, old.versions(clusterKind))
	cds := c.expect(clusterKind, "-model/gone", "model/changed")
	c.ask(endpointKind, old.versions(endpointKind), "model/changed", "model/gone", "model/same", "model/scaled")
	eds := c.expect(endpointKind, "model/changed", "model/scaled")
	// The endpoints of "changed" are the same, but Envoy rebuilds its cluster and needs them again.
	expectAcks(t, s, "changed=changed-0", "same=same-0")
	c.ack(eds)
	c.ack(cds)
	expectAcks(t, s, "scaled=scaled-0,scaled-1")
	c.ask(listenerKind, old.versions(listenerKind))
	c.expect(listenerKind)
	c.ask(routeKind, old.versions(routeKind), resourceName)
	eventually(t, "Envoy counts as configured", func() bool { return s.Status().Configured })
	if status := s.Status(); status.NodeID != "node" || status.EnvoyVersion != "1.40.2" || !status.Connected {
		t.Errorf("status %+v", status)
	}
}

// The stream ends while replicas are added. What Envoy has stays known.
func TestSameGatewayReconnect(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	before := fleetOf(t, models{"a": {"a-0"}})
	s.Set(before)
	c := s.connectAndAck(t, "a")
	expectAcks(t, s, "a=a-0")
	c.hangUp()
	eventually(t, "the stream has ended", func() bool { return !s.Status().Connected })
	s.Set(fleetOf(t, models{"a": {"a-0", "a-1"}}))
	c = s.connect(t)
	c.ask(clusterKind, before.versions(clusterKind))
	c.ack(c.expect(clusterKind))
	c.ask(endpointKind, before.versions(endpointKind), "model/a")
	r := c.expect(endpointKind, "model/a")
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("OnAck was called with %q although Envoy still has a-0", calls)
	}
	c.ack(r)
	expectAcks(t, s, "a=a-0,a-1")
}

// Another Envoy has no resources, so nothing is known until it has acknowledged them.
func TestFreshEnvoy(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(fleetOf(t, models{"a": {"a-0"}}))
	first := s.connectAndAck(t, "a")
	expectAcks(t, s, "a=a-0")
	first.hangUp()
	eventually(t, "the stream has ended", func() bool { return !s.Status().Connected })
	second := s.connect(t)
	second.ask(clusterKind, nil)
	r := second.expect(clusterKind, "model/a")
	expectAcks(t, s, "a=")
	s.Set(fleetOf(t, models{"a": {"a-0", "a-1"}}))
	second.ask(endpointKind, nil, "model/a")
	second.ack(second.expect(endpointKind, "model/a"))
	second.ack(r)
	expectAcks(t, s, "a=a-0,a-1")
}

func TestUnknownTypeAndNonce(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(fleetOf(t, models{"a": {"a-0"}}))
	c := s.connectAndAck(t, "a")
	c.ack(&discovery.DeltaDiscoveryResponse{TypeUrl: clusterKind.typeURL(), Nonce: "999"}, "a refusal of nothing")
	c.ack(&discovery.DeltaDiscoveryResponse{TypeUrl: "type.googleapis.com/envoy.nonsense", Nonce: "1"})
	c.expectNothing()
	if n := s.Status().Nacks; n != 0 {
		t.Errorf("%d refusals", n)
	}
}
