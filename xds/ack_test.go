package xds

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

func resourcesOf(t testing.TB, replicas ...engines.Replica) *Resources {
	t.Helper()
	return mustBuild(t, Config{Listen: "127.0.0.1:1"}, fleet(model("m", replicas...)))
}

// A replica is known only at its address: a replica of the same id at another address has not been
// acknowledged.
func TestAnotherAddressIsNews(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(resourcesOf(t, ready("m-0", "10.0.0.1:80")))
	c := s.connectAndAck(t, "m")
	expectAcks(t, s, "m=m-0@10.0.0.1:80")
	s.Set(resourcesOf(t, ready("m-0", "10.0.0.1:81")))
	eds := c.expect(endpointKind, "model/m")
	// Envoy may have applied the change already, or not yet.
	expectAcks(t, s, "m=")
	c.ack(eds)
	expectAcks(t, s, "m=m-0@10.0.0.1:81")
}

// A replica that is removed and returns at once is known only after Envoy has acknowledged the last
// response.
func TestWhatMayBeGoneIsNotKnown(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	both := resourcesOf(t, ready("a", "10.0.0.1:80"), ready("b", "10.0.0.2:80"))
	s.Set(both)
	c := s.connectAndAck(t, "m")
	expectAcks(t, s, "m=a@10.0.0.1:80,b@10.0.0.2:80")
	s.Set(resourcesOf(t, ready("a", "10.0.0.1:80")))
	without := c.expect(endpointKind, "model/m")
	expectAcks(t, s, "m=a@10.0.0.1:80")
	s.Set(both)
	again := c.expect(endpointKind, "model/m")
	c.ack(without)
	c.expectNothing()
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("OnAck was called with %q", calls)
	}
	c.ack(again)
	expectAcks(t, s, "m=a@10.0.0.1:80,b@10.0.0.2:80")

	s.linger = time.Millisecond
	s.Set(mustBuild(t, Config{Listen: "127.0.0.1:1"}, fleet()))
	gone := c.expect(clusterKind, "-model/m")
	expectAcks(t, s, "m=")
	s.Set(both)
	cds := c.expect(clusterKind, "model/m")
	eds := c.expect(endpointKind, "model/m")
	c.ack(gone)
	// Envoy warms the cluster.
	c.ack(cds)
	c.expectNothing()
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("OnAck was called with %q of a cluster that has no endpoints", calls)
	}
	c.ack(eds)
	expectAcks(t, s, "m=a@10.0.0.1:80,b@10.0.0.2:80")
}

// A replica that moves to another cluster is known there only when Envoy has that cluster, and in
// the end in only one of the two.
func TestAReplicaThatMovesIsToldPerCluster(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(resourcesOf(t, ready("a", "10.0.0.1:80"), ready("b", "10.0.0.2:80")))
	c := s.connectAndAck(t, "m")
	expectAcks(t, s, "m=a@10.0.0.1:80,b@10.0.0.2:80")
	way := &engines.Transport{Group: "a", Headers: []engines.Header{{Name: "Authorization", Value: "Bearer k"}}}
	s.Set(resourcesOf(t, by(way, ready("a", "10.0.0.1:80")), ready("b", "10.0.0.2:80")))
	cds := c.expect(clusterKind, "model/m#a")
	c.ack(c.expect(endpointKind, "model/m"))
	expectAcks(t, s, "m=b@10.0.0.2:80")
	c.ask(endpointKind, nil, "model/m#a")
	eds := c.expect(endpointKind, "model/m#a")
	c.ack(eds)
	c.expectNothing()
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("OnAck was called with %q before Envoy had the cluster", calls)
	}
	c.ack(cds)
	expectAcks(t, s, "m#a=a@10.0.0.1:80")
}

// Requests that were routed to a cluster a moment ago still find it. A cluster that returns
// meanwhile is never removed.
func TestAClusterLingers(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.linger = time.Hour
	resources := resourcesOf(t, ready("a", "10.0.0.1:80"))
	s.Set(resources)
	c := s.connectAndAck(t, "m")
	expectAcks(t, s, "m=a@10.0.0.1:80")
	// The model has no replica.
	s.Set(resourcesOf(t))
	c.expectNothing()
	s.Set(mustBuild(t, Config{Listen: "127.0.0.1:1"}, fleet()))
	c.expectNothing()
	s.Set(resourcesOf(t, ready("a", "10.0.0.2:80")))
	eds := c.expect(endpointKind, "model/m")
	expectAcks(t, s, "m=")
	c.ack(eds)
	expectAcks(t, s, "m=a@10.0.0.2:80")
	s.mu.Lock()
	s.linger = time.Millisecond
	s.mu.Unlock()
	s.Set(resourcesOf(t))
	c.ack(c.expect(endpointKind, "model/m"))
	expectAcks(t, s, "m=")
	s.Set(mustBuild(t, Config{Listen: "127.0.0.1:1"}, fleet()))
	c.ack(c.expect(clusterKind, "-model/m"))
}

// A second client of xDS on this host takes nothing from the Envoy of the host, unless it has a
// whole configuration. When it ends, the Envoy of before counts again.
func TestASecondClientOfThisHost(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(resourcesOf(t, ready("a", "10.0.0.1:80")))
	envoy := s.connectAndAck(t, "m")
	expectAcks(t, s, "m=a@10.0.0.1:80")
	expectCounts := func(node string) {
		t.Helper()
		eventually(t, node+" counts", func() bool { return s.Status().NodeID == node && s.Status().Configured })
		if calls := s.ackCalls(); calls != nil {
			t.Errorf("OnAck was called with %q, and nothing has changed", calls)
		}
	}

	reader := s.connect(t)
	reader.node = "reader"
	reader.ask(clusterKind, nil)
	reader.expect(clusterKind, "model/m")
	expectCounts("node")
	s.Set(resourcesOf(t, ready("b", "10.0.0.2:80")))
	envoy.ack(envoy.expect(endpointKind, "model/m"))
	eventually(t, "b can be picked", func() bool { return slices.Contains(s.ackCalls(), "m=b@10.0.0.2:80") })
	reader.hangUp()
	eventually(t, "the reader has ended", func() bool { return s.Status().Envoys == 1 })
	expectCounts("node")

	// Messages on the older stream do not count while another Envoy does.
	other := s.connectAs(t, "node-2", "m")
	expectCounts("node-2")
	s.Set(resourcesOf(t, ready("b", "10.0.0.2:80"), ready("c", "10.0.0.3:80")))
	envoy.ack(envoy.expect(endpointKind, "model/m"))
	envoy.expectNothing()
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("OnAck was called with %q by an Envoy that was replaced", calls)
	}
	other.ack(other.expect(endpointKind, "model/m"))
	expectAcks(t, s, "m=b@10.0.0.2:80,c@10.0.0.3:80")
	other.hangUp()
	expectCounts("node")
	s.Set(resourcesOf(t, ready("a", "10.0.0.1:80")))
	envoy.ack(envoy.expect(endpointKind, "model/m"))
	eventually(t, "a can be picked", func() bool { return slices.Contains(s.ackCalls(), "m=a@10.0.0.1:80") })
}
