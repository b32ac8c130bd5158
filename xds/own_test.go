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

// TestOwnClusters: they come before the routes that lead to them, go after them, and OnAck has
// nothing to do with them.
func TestOwnClusters(t *testing.T) {
	t.Parallel()
	plain := Config{Listen: "127.0.0.1:1"}
	with := plain
	with.RelaySocket, with.GRPCSocket = "/run/relay.sock", "/run/grpc.sock"
	world := fleet(model("m", ready("m-0", "10.0.0.1:80")))
	s := newServed(t)
	s.Set(mustBuild(t, plain, world))
	c := s.adopt(t, "m")
	expectTold(t, s, "m=m-0@10.0.0.1:80")

	s.Set(mustBuild(t, with, world)) // the Envoy of an older Sluice
	cds := c.expect(clusterKind, headers.GRPCCluster, headers.RelayCluster)
	rds := c.expect(routeKind, resourceName)
	c.ack(cds)
	c.ack(rds)
	c.quiet()

	later := with
	later.RelaySocket = "/run/another.sock"
	s.Set(mustBuild(t, later, world))
	c.ack(c.expect(clusterKind, headers.RelayCluster))
	c.quiet()

	s.setLinger(time.Hour)
	s.Set(mustBuild(t, plain, world))
	c.ack(c.expect(routeKind, resourceName))
	c.quiet() // requests that were routed there a moment ago still find them
	s.Set(mustBuild(t, later, world))
	c.ack(c.expect(routeKind, resourceName))
	c.quiet()
	s.setLinger(time.Millisecond)
	s.Set(mustBuild(t, plain, world))
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
	c.quiet()
	if told := s.told(); told != nil {
		t.Errorf("told %q", told)
	}
}

// TestOwnClustersOfAReconnectingEnvoy: one that has them is not sent them again.
func TestOwnClustersOfAReconnectingEnvoy(t *testing.T) {
	t.Parallel()
	world := mustBuild(t, managedConfig("/run"), fleet())
	s := newServed(t)
	s.Set(world)
	c := s.connect(t)
	c.ask(clusterKind, map[string]string{headers.RelayCluster: world.Own[headers.RelayCluster].Version, headers.GRPCCluster: "older"})
	c.ack(c.expect(clusterKind, headers.GRPCCluster))
	c.ask(listenerKind, nil)
	c.ack(c.expect(listenerKind, resourceName))
	c.quiet()
	if told := s.told(); told != nil {
		t.Errorf("told %q", told)
	}
}
