package xds

import (
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

func worldOf(t testing.TB, replicas ...engines.Replica) *Resources {
	t.Helper()
	return mustBuild(t, Config{Listen: "127.0.0.1:1"}, fleet(model("m", replicas...)))
}

// TestAnotherAddressIsNews: an id says nothing of where Envoy would send a request.
func TestAnotherAddressIsNews(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(worldOf(t, ready("m-0", "10.0.0.1:80")))
	c := s.adopt(t, "m")
	expectTold(t, s, "m=m-0@10.0.0.1:80")
	s.Set(worldOf(t, ready("m-0", "10.0.0.1:81")))
	eds := c.expect(endpointKind, "model/m")
	expectTold(t, s, "m=") // Envoy may have taken it already, or not yet
	c.ack(eds)
	expectTold(t, s, "m=m-0@10.0.0.1:81")
}

// TestWhatMayBeGoneIsNotKnown: a replica that leaves and comes back at once is known only when
// Envoy has said so of the last word.
func TestWhatMayBeGoneIsNotKnown(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	both := worldOf(t, ready("a", "10.0.0.1:80"), ready("b", "10.0.0.2:80"))
	s.Set(both)
	c := s.adopt(t, "m")
	expectTold(t, s, "m=a@10.0.0.1:80,b@10.0.0.2:80")
	s.Set(worldOf(t, ready("a", "10.0.0.1:80")))
	without := c.expect(endpointKind, "model/m")
	expectTold(t, s, "m=a@10.0.0.1:80")
	s.Set(both)
	again := c.expect(endpointKind, "model/m")
	c.ack(without)
	c.quiet()
	if told := s.told(); told != nil {
		t.Errorf("told %q", told)
	}
	c.ack(again)
	expectTold(t, s, "m=a@10.0.0.1:80,b@10.0.0.2:80")

	s.linger = time.Millisecond
	s.Set(mustBuild(t, Config{Listen: "127.0.0.1:1"}, fleet()))
	gone := c.expect(clusterKind, "-model/m")
	expectTold(t, s, "m=")
	s.Set(both)
	cds := c.expect(clusterKind, "model/m")
	eds := c.expect(endpointKind, "model/m")
	c.ack(gone)
	c.ack(cds) // Envoy warms it
	c.quiet()
	if told := s.told(); told != nil {
		t.Errorf("told %q of a cluster that has no endpoints", told)
	}
	c.ack(eds)
	expectTold(t, s, "m=a@10.0.0.1:80,b@10.0.0.2:80")
}

// TestAReplicaThatMovesIsToldPerCluster: it is known where it goes to only when Envoy has that
// cluster, and never in two at once for good.
func TestAReplicaThatMovesIsToldPerCluster(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.Set(worldOf(t, ready("a", "10.0.0.1:80"), ready("b", "10.0.0.2:80")))
	c := s.adopt(t, "m")
	expectTold(t, s, "m=a@10.0.0.1:80,b@10.0.0.2:80")
	way := &engines.Transport{Group: "a", Headers: []engines.Header{{Name: "Authorization", Value: "Bearer k"}}}
	s.Set(worldOf(t, by(way, ready("a", "10.0.0.1:80")), ready("b", "10.0.0.2:80")))
	cds := c.expect(clusterKind, "model/m#a")
	c.ack(c.expect(endpointKind, "model/m"))
	expectTold(t, s, "m=b@10.0.0.2:80")
	c.ask(endpointKind, nil, "model/m#a")
	eds := c.expect(endpointKind, "model/m#a")
	c.ack(eds)
	c.quiet()
	if told := s.told(); told != nil {
		t.Errorf("OnAck told %q before Envoy had the cluster", told)
	}
	c.ack(cds)
	expectTold(t, s, "m#a=a@10.0.0.1:80")
}

// TestAClusterLingers: requests that were routed there a moment ago still find it, and one that
// comes back meanwhile was never away.
func TestAClusterLingers(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.linger = time.Hour
	world := worldOf(t, ready("a", "10.0.0.1:80"))
	s.Set(world)
	c := s.adopt(t, "m")
	expectTold(t, s, "m=a@10.0.0.1:80")
	s.Set(worldOf(t)) // no replica
	c.quiet()
	s.Set(mustBuild(t, Config{Listen: "127.0.0.1:1"}, fleet()))
	c.quiet()
	s.Set(worldOf(t, ready("a", "10.0.0.2:80")))
	eds := c.expect(endpointKind, "model/m")
	expectTold(t, s, "m=")
	c.ack(eds)
	expectTold(t, s, "m=a@10.0.0.2:80")
	s.mu.Lock()
	s.linger = time.Millisecond
	s.mu.Unlock()
	s.Set(worldOf(t))
	c.ack(c.expect(endpointKind, "model/m"))
	expectTold(t, s, "m=")
	s.Set(mustBuild(t, Config{Listen: "127.0.0.1:1"}, fleet()))
	c.ack(c.expect(clusterKind, "-model/m"))
}
