package dispatch

import (
	"net/netip"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// TestViewCountsEveryRequest: the scaler keeps a model for requests that come and go between two
// updates, so all of them count, also those whose tokens are measured anyway.
func TestViewCountsEveryRequest(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	s.must(t, newRequest("m", "k")).Release()
	tells := newRequest("m", "k")
	tells.TellsUsage = true
	s.must(t, tells).Release()
	if v, _ := s.View("m"); v.Admitted != 2 {
		t.Errorf("%d admitted, want 2", v.Admitted)
	}
}

// TestReplicaWithoutLoadGetsNoRequest: a launcher stops a draining replica that has no requests. It
// may ask before Run has followed the fleet.
func TestReplicaWithoutLoadGetsNoRequest(t *testing.T) {
	t.Parallel()
	for name, load := range map[string]func(stage) int{
		"Load":   func(s stage) int { return s.Load("a") },
		"LoadAt": func(s stage) int { return s.LoadAt("a", netip.AddrPort{}) },
	} {
		s := newStage(Policy{})
		s.put("m", replicas("a")...)
		s.fleet.Set("test-m", engines.Part{Models: []engines.Model{{Name: "m"}}, Replicas: []engines.Replica{{ID: "a", Model: "m", State: engines.Draining}}})
		if n := load(s); n != 0 {
			t.Errorf("%s: %d requests", name, n)
		}
		if v, _ := s.View("m"); v.Ready != 0 {
			t.Errorf("%s: the replica may get requests", name)
		}
	}
}

// TestLoadOfTwoReplicasOfOneID: a node that was lost has streams on a replica whose id another node
// has by then. Each replica has its own requests.
func TestLoadOfTwoReplicasOfOneID(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	before, after := netip.MustParseAddrPort("10.0.0.1:9000"), netip.MustParseAddrPort("10.0.0.2:9000")
	check := func(when string, atBefore, atAfter, all int) {
		t.Helper()
		if x, y, z := s.LoadAt("a", before), s.LoadAt("a", after), s.Load("a"); x != atBefore || y != atAfter || z != all || s.LoadAt("a", netip.AddrPort{}) != all {
			t.Errorf("%s: %d and %d of %d requests, want %d and %d of %d", when, x, y, z, atBefore, atAfter, all)
		}
	}
	check("at first", 0, 0, 0)
	s.put("m", engines.Replica{ID: "a", Address: before})
	old := s.must(t, newRequest("m", "k"))
	s.put("m", engines.Replica{ID: "a", Address: after})
	first, second := s.must(t, newRequest("m", "k")), s.must(t, newRequest("m", "k"))
	check("three run", 1, 2, 3)
	s.Recover(map[Location]int{{Model: "m", Address: after.String()}: 1})
	check("one is recovered", 1, 3, 4)
	carried := s.Carry(HeldRequest{Model: "m", Replica: "a"}) // at either of both
	check("one is carried", 2, 4, 5)
	carried.Release()
	s.LimitRecovered(nil)
	old.Release()
	check("the old one has ended", 0, 2, 2)
	first.Release()
	second.Release()
	check("all have ended", 0, 0, 0)
}

// TestAddressesOfReplicasDoNotPileUp: a replica that starts again and again at other addresses.
func TestAddressesOfReplicasDoNotPileUp(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	for port := range uint16(200) {
		s.put("m", engines.Replica{ID: "a", Address: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), 9000+port)})
		s.must(t, newRequest("m", "k")).Release()
	}
	if n := len(s.counters["a"].byAddress); n > maxIdleAddresses {
		t.Errorf("%d addresses", n)
	}
	for port := uint16(8000); len(s.counters["a"].byAddress) < maxIdleAddresses; port++ {
		s.put("m", engines.Replica{ID: "a", Address: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port)})
	}
	s.Carry(HeldRequest{Model: "m", Replica: "a"}).Release()
	s.must(t, newRequest("m", "k"))
	if n := s.LoadAt("a", s.counters["a"].address); n != 1 {
		t.Errorf("%d requests where the replica is now, want 1", n)
	}
}
