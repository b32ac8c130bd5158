package xds

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// In a fleet of 1,000 replicas of 200 models, a replica is removed or returns 200 times. The test
// logs how long each change takes until Envoy has acknowledged it.
func TestAChangeInALargeFleetReachesEnvoy(t *testing.T) {
	t.Parallel()
	const size, changes = 1000, 200
	acked := make(chan struct{}, size)
	server := NewServer(ServerConfig{OnAck: func(string, map[string]netip.AddrPort) { acked <- struct{}{} }})
	g := &gateway{server: server}
	dir := shortDir(t)
	serveControl(t, dir, g)
	serveAPI(t, dir)
	await := func(what string) {
		t.Helper()
		select {
		case <-acked:
		case <-time.After(testTimeout):
			t.Fatal("waited in vain until ", what)
		}
	}
	c := Config{Listen: "127.0.0.1:0"}
	f := engines.NewFleet()
	full := fleetPart(size)
	f.Set("local", full)
	resources := mustBuild(t, c, f.Snapshot())
	server.Set(resources)
	startEnvoy(t, dir)
	for range size / perModel {
		await("Envoy has the fleet")
	}
	var took []time.Duration
	for n := range changes {
		part := engines.Part{Models: full.Models, Replicas: slices.Clone(full.Replicas)}
		if n%2 == 0 {
			part.Replicas[n*4].State = engines.Failed
		}
		began := time.Now()
		f.Set("local", part)
		var err error
		if resources, err = resources.Rebuild(c, f.Snapshot()); err != nil {
			t.Fatal(err)
		}
		server.Set(resources)
		await(fmt.Sprint("Envoy has change ", n))
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	median, p99 := took[changes/2], took[changes*99/100]
	t.Logf("%d changes in a fleet of %d: median %v, p99 %v, longest %v", changes, size, median, p99, took[changes-1])
	if len(acked) > 0 {
		t.Errorf("%d acknowledgements more than changes", len(acked))
	}
}
