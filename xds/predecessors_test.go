package xds

import (
	"slices"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// otherListener returns the resources of a gateway whose listener differs from that of resourcesOf.
func otherListener(t testing.TB, replicas ...engines.Replica) *Resources {
	t.Helper()
	return mustBuild(t, Config{Listen: "127.0.0.1:1", MaxHeaders: 7}, fleet(model("m", replicas...)))
}

// A predecessor keeps its listener and its routes, and still learns of replicas. What may be
// picked is what it has, and later what its successor has. No replica is withdrawn in between.
func TestPredecessor(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(resourcesOf(t, ready("a", "10.0.0.1:80")))
	first := s.connectAndAck(t, "m")
	expectAcks(t, s, "m=a@10.0.0.1:80")

	s.SetPredecessors([]string{"node"})
	s.Set(otherListener(t, ready("a", "10.0.0.1:80")))
	first.expectNothing()
	s.Set(otherListener(t, ready("a", "10.0.0.1:80"), ready("b", "10.0.0.2:80")))
	first.ack(first.expect(endpointKind, "model/m"))
	expectAcks(t, s, "m=a@10.0.0.1:80,b@10.0.0.2:80")

	second := s.connectAs(t, "node-2", "m")
	if n := s.Status().NodeID; n != "node-2" {
		t.Errorf("the status is that of %q", n)
	}
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("OnAck was called with %q, and both Envoys have the same", calls)
	}
	s.Set(otherListener(t, ready("b", "10.0.0.2:80"), ready("c", "10.0.0.3:80")))
	one, other := first.expect(endpointKind, "model/m"), second.expect(endpointKind, "model/m")
	expectAcks(t, s, "m=b@10.0.0.2:80")
	first.ack(one)
	first.expectNothing()
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("OnAck was called with %q by an Envoy that has a successor", calls)
	}
	second.ack(other)
	expectAcks(t, s, "m=b@10.0.0.2:80,c@10.0.0.3:80")

	// It connects anew, as after a restart of the gateway.
	first.hangUp()
	again := s.connect(t)
	again.ask(clusterKind, resourcesOf(t, ready("a", "10.0.0.1:80")).versions(clusterKind))
	again.ack(again.expect(clusterKind))
	again.ask(listenerKind, resourcesOf(t).versions(listenerKind))
	again.ack(again.expect(listenerKind))
	if n := s.Status().NodeID; n != "node-2" {
		t.Errorf("the status is that of %q", n)
	}
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("OnAck was called with %q by an Envoy that has a successor", calls)
	}
}

// A gateway that finds a predecessor does not know its listener, and sends it none.
func TestPredecessorOfAnEarlierProcess(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.SetPredecessors([]string{"node"})
	s.Set(otherListener(t, ready("a", "10.0.0.1:80")))
	old := resourcesOf(t)
	c := s.connect(t)
	c.ask(clusterKind, old.versions(clusterKind))
	c.ack(c.expect(clusterKind))
	c.ask(endpointKind, old.versions(endpointKind), "model/m")
	c.ack(c.expect(endpointKind, "model/m"))
	// Envoy waits for an answer, which has nothing.
	c.ask(listenerKind, old.versions(listenerKind))
	c.ack(c.expect(listenerKind))
	c.ask(routeKind, old.versions(routeKind), resourceName)
	s.Set(resourcesOf(t, ready("a", "10.0.0.1:81")))
	c.ack(c.expect(endpointKind, "model/m"))
	// It is the Envoy of this host again.
	s.SetPredecessors(nil)
	s.Set(otherListener(t, ready("a", "10.0.0.1:81")))
	c.ack(c.expect(listenerKind, resourceName))
}

// A predecessor may connect after its successor. The successor counts as soon as the gateway says
// which one is the predecessor.
func TestPredecessorIsToldLate(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(resourcesOf(t, ready("a", "10.0.0.1:80")))
	second := s.connectAs(t, "node-2", "m")
	expectAcks(t, s, "m=a@10.0.0.1:80")
	first := s.connectAs(t, "node", "m")
	if n := s.Status().NodeID; n != "node" {
		t.Errorf("the status is that of %q", n)
	}
	s.Set(resourcesOf(t, ready("a", "10.0.0.1:80"), ready("b", "10.0.0.2:80")))
	second.ack(second.expect(endpointKind, "model/m"))
	first.expect(endpointKind, "model/m")
	s.SetPredecessors([]string{"node"})
	expectAcks(t, s, "m=a@10.0.0.1:80,b@10.0.0.2:80")
}

// The predecessor ends before its successor has a whole configuration. The successor counts then.
func TestPredecessorEndsEarly(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(resourcesOf(t, ready("a", "10.0.0.1:80")))
	first := s.connectAndAck(t, "m")
	expectAcks(t, s, "m=a@10.0.0.1:80")
	s.SetPredecessors([]string{"node"})
	second := s.connect(t)
	second.node = "node-2"
	second.ask(clusterKind, nil)
	cds := second.expect(clusterKind, "model/m")
	first.hangUp()
	eventually(t, "the stream of the first one has ended", func() bool { return s.Status().Envoys == 1 })
	s.SetPredecessors(nil)
	second.ask(endpointKind, nil, "model/m")
	second.ack(second.expect(endpointKind, "model/m"))
	second.ack(cds)
	second.ask(listenerKind, nil)
	second.ack(second.expect(listenerKind, resourceName))
	second.expectNothing()
	s.Set(resourcesOf(t, ready("b", "10.0.0.2:80")))
	second.ack(second.expect(endpointKind, "model/m"))
	eventually(t, "the second one has b", func() bool { return slices.Contains(s.ackCalls(), "m=b@10.0.0.2:80") })
}
