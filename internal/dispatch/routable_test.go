package dispatch

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// A replica is picked only in a cluster, and at an address, that Envoy has for it.
func TestRoutableIsByClusterAndAddress(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	all := replicas("a", "b")
	s.put("m", all...)
	known := func(r engines.Replica) map[string]netip.AddrPort { return map[string]netip.AddrPort{r.ID: r.Address} }
	move := func(change func(*engines.Replica)) {
		change(&all[0])
		s.fleet.Set("test-m", engines.Part{Models: []engines.Model{{Name: "m"}}, Replicas: append([]engines.Replica(nil), all...)})
		s.rebuild()
	}
	move(func(r *engines.Replica) { r.Transport = &engines.Transport{Group: "g"} })
	s.expectCandidates(t, "Envoy has not the new cluster", "b")
	s.SetRoutable("model/m#g", known(all[0]))
	s.expectCandidates(t, "Envoy has it in the new cluster", "a", "b")
	move(func(r *engines.Replica) { r.Transport = nil })
	s.SetRoutable("model/m", known(all[1]))
	s.expectCandidates(t, "it is back, and Envoy has it in the other", "b")
	s.SetRoutable("model/m", map[string]netip.AddrPort{"a": all[0].Address, "b": all[1].Address})
	s.expectCandidates(t, "it is where it was", "a", "b")
	move(func(r *engines.Replica) { r.Address = netip.MustParseAddrPort("127.0.0.1:7000") })
	s.expectCandidates(t, "Envoy has its old address", "b")
	s.SetRoutable("model/m", map[string]netip.AddrPort{"a": all[0].Address, "b": all[1].Address})
	s.expectCandidates(t, "Envoy has its new address", "a", "b")
	move(func(r *engines.Replica) { r.Address = netip.MustParseAddrPort("[::ffff:127.0.0.1]:7000") })
	s.expectCandidates(t, "the same address, written as IPv6", "a", "b")
	s.SetRoutable("sluice_control", known(all[0])) // no model's
	s.SetRoutable("model/m", nil)
	s.expectCandidates(t, "Envoy has nothing")
}

// What no model uses is forgotten, but not while a request is on it.
func TestCountersAreForgotten(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("m", replicas("a", "b")...)
	ticket := s.must(t, newRequest("m", "k"))
	s.put("m", replicas("c")...)
	if n := len(s.counters); n != 2 {
		t.Errorf("%d counters, want that of c and that of %s", n, ticket.Replica())
	}
	ticket.Release()
	s.put("m")
	if len(s.counters)+len(s.unpickable) > 0 {
		t.Errorf("left: %v %v", s.counters, s.unpickable)
	}
}

// One change makes one target anew, and the others stay as they are.
func TestAChangeRebuildsOneTarget(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	for m := range 10 {
		s.put(fmt.Sprint("m", m), replicas(fmt.Sprint("m", m, "-0"))...)
	}
	before := s.table.Load()
	s.put("m3", replicas("m3-0", "m3-1")...)
	s.SetRules(Rules{Models: map[string]Policy{"m5": {LoadFloor: 3}}})
	after := s.table.Load()
	for name, route := range after.routes {
		if same := route == before.routes[name]; same == (name == "m3" || name == "m5") {
			t.Errorf("%s is the same: %t", name, same)
		}
	}
	if after.routes["m5"].policy.LoadFloor != 3 {
		t.Error("the new rule is not in force")
	}
}
