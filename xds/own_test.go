package xds

import (
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
)

func (s *served) setLinger(d time.Duration) {
	s.Server.mu.Lock()
	defer s.Server.mu.Unlock()
	s.linger = d
}

// The own clusters are sent before the routes that lead to them and removed after the routes. OnAck
// is not called for them.
func TestOwnClusters(t *testing.T) {
	t.Parallel()
	plain := Config{Listen: "127.0.0.1:1"}
	with := plain
	with.RelaySocket, with.GRPCSocket = "/run/relay.sock", "/run/grpc.sock"
	resources := fleet(model("m", ready("m-0", "10.0.0.1:80")))
	s := newServed(t)
	s.Set(mustBuild(t, plain, resources))
	c := s.connectAndAck(t, "m")
	expectAcks(t, s, "m=m-0@10.0.0.1:80")

	// an Envoy that an older Sluice started
	s.Set(mustBuild(t, with, resources))
	cds := c.expect(clusterKind, headers.GRPCCluster, headers.RelayCluster)
	rds := c.expect(routeKind, resourceName)
	c.ack(cds)
	c.ack(rds)
	c.expectNothing()

	later := with
	later.RelaySocket = "/run/another.sock"
	s.Set(mustBuild(t, later, resources))
	c.ack(c.expect(clusterKind, headers.RelayCluster))
	c.expectNothing()

	s.setLinger(time.Hour)
	s.Set(mustBuild(t, plain, resources))
	c.ack(c.expect(routeKind, resourceName))
	// Requests that were routed there a moment ago still find the clusters.
	c.expectNothing()
	s.Set(mustBuild(t, later, resources))
	c.ack(c.expect(routeKind, resourceName))
	c.expectNothing()
	s.setLinger(time.Millisecond)
	s.Set(mustBuild(t, plain, resources))
	for gone := map[string]bool{}; !gone["-"+headers.GRPCCluster] || !gone["-"+headers.RelayCluster] || !gone[resourceName]; {
		r, ok := <-c.got
		if !ok {
			t.Fatal("the stream ended")
		}
		c.ack(r)
		for _, name := range namesIn(r) {
			gone[name] = true
		}
	}
	c.expectNothing()
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("OnAck was called with %q", calls)
	}
}

// An Envoy that reconnects and has the own clusters does not get them again.
func TestOwnClustersOfAReconnectingEnvoy(t *testing.T) {
	t.Parallel()
	resources := mustBuild(t, managedConfig("/run"), fleet())
	s := newServed(t)
	s.Set(resources)
	c := s.connect(t)
	c.ask(clusterKind, map[string]string{headers.RelayCluster: resources.Own[headers.RelayCluster].Version, headers.GRPCCluster: "older"})
	c.ack(c.expect(clusterKind, headers.GRPCCluster))
	c.ask(listenerKind, nil)
	c.ack(c.expect(listenerKind, resourceName))
	c.expectNothing()
	if calls := s.ackCalls(); calls != nil {
		t.Errorf("OnAck was called with %q", calls)
	}
}
