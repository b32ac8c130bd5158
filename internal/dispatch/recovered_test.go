package dispatch

import (
	"net/netip"
	"testing"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// acme9000 is a request of acme, which may have one at a time, at a replica that is not known yet.
func acme9000(id string) RecoveredRequest {
	return RecoveredRequest{Location: Location{Model: "m", Address: "127.0.0.1:9000"}, Request: id, Tenant: "acme"}
}

// restarted is a gateway after a restart, to which so many requests at that replica were counted.
func restarted(n int) stage {
	s := newStage(Policy{})
	s.SetRules(Rules{Tenants: map[string]admission.TenantLimits{"acme": {MaxConcurrent: 1}}})
	s.Recover(map[Location]int{acme9000("").Location: n})
	return s
}

// lets reports whether acme may have one more request.
func (s stage) lets(t *testing.T) bool {
	t.Helper()
	r := newRequest("m", "k")
	r.Tenant = "acme"
	ticket, fault := s.Dispatch(t.Context(), r)
	if fault != nil {
		return false
	}
	ticket.Release()
	return true
}

// TestX19_ARecoveredRequestIsNamedBeforeItsReplicaIsKnown: the log names a request once, and a
// launcher may report its replica later. The request counts for its tenant from then on.
func TestX19_ARecoveredRequestIsNamedBeforeItsReplicaIsKnown(t *testing.T) {
	for _, counted := range []int{0, 1, 2} { // 0: Envoy has not answered
		s := restarted(counted)
		for range 2 {
			s.IdentifyRecovered(acme9000("1"))
		}
		want := max(counted, 1)
		if n, unlocated := s.RecoveredCount(); n != 0 || unlocated != want {
			t.Errorf("%d and %d requests", n, unlocated)
		}
		s.put("m", replicas("a")...)
		if n, unlocated := s.RecoveredCount(); n != want || unlocated != 0 || s.Load("a") != want {
			t.Errorf("%d and %d requests, load %d", n, unlocated, s.Load("a"))
		}
		if s.lets(t) {
			t.Error("acme has a second request")
		}
		s.EndRecovered(acme9000("1"))
		if !s.lets(t) {
			t.Error("acme has no request, and gets none")
		}
		if s.LimitRecovered(nil); s.recoveredRequest() != 0 || len(s.recovered.named) != 0 {
			t.Errorf("%d requests are left", s.recoveredRequest())
		}
	}
}

// TestX19_ANamedRequestEndsBeforeItsReplicaIsKnown: nothing of it counts when the replica comes.
func TestX19_ANamedRequestEndsBeforeItsReplicaIsKnown(t *testing.T) {
	at := acme9000("").Location
	for name, c := range map[string]struct {
		end  func(s stage)
		left int
	}{
		"its end":              {func(s stage) { s.EndRecovered(acme9000("1")) }, 1},
		"no request is left":   {func(s stage) { s.LimitRecovered(map[Location]int{at: 0}) }, 0},
		"Envoy has none":       {func(s stage) { s.LimitRecovered(nil) }, 0},
		"both ends":            {func(s stage) { s.EndRecovered(acme9000("1")); s.EndRecovered(acme9000("2")) }, 0},
		"an end of a stranger": {func(s stage) { s.EndRecovered(acme9000("1")); s.EndRecovered(acme9000("1")) }, 0},
	} {
		s := restarted(2)
		s.IdentifyRecovered(acme9000("1"))
		c.end(s)
		if n, unlocated := s.RecoveredCount(); n != 0 || unlocated != c.left || len(s.recovered.named[at]) != 0 {
			t.Errorf("%s: %d and %d requests, %d of them named", name, n, unlocated, len(s.recovered.named[at]))
		}
		s.put("m", replicas("a")...)
		if s.Load("a") != c.left || !s.lets(t) {
			t.Errorf("%s: load %d, want %d, or acme may have no request", name, s.Load("a"), c.left)
		}
	}
}

// TestX19_NoMoreRequestsAreNamedThanRun: the count of Envoy bounds the named requests, and the end
// of one that was not counted ends none of them.
func TestX19_NoMoreRequestsAreNamedThanRun(t *testing.T) {
	s := restarted(3)
	at := acme9000("").Location
	for _, id := range []string{"1", "2", "3"} {
		s.IdentifyRecovered(acme9000(id))
	}
	s.IdentifyRecovered(RecoveredRequest{Location: Location{Model: "m"}, Request: "4", Tenant: "acme"}) // it has no replica yet
	s.EndRecovered(acme9000("5"))
	if n := len(s.recovered.named[at]); n != 3 || s.recoveredRequest() != 3 {
		t.Errorf("%d of %d requests are named", n, s.recoveredRequest())
	}
	s.LimitRecovered(map[Location]int{at: 2})
	if n := len(s.recovered.named[at]); n != 2 || s.recoveredRequest() != 2 {
		t.Errorf("%d of %d requests are named", n, s.recoveredRequest())
	}
	s.Recover(map[Location]int{at: 1})
	if s.recoveredRequest() != 2 {
		t.Errorf("%d requests, and 2 are named", s.recoveredRequest())
	}
}

// TestRecoveredRequestsOfTwoKeysAtOneServer: two servers of one URL have one address. Each has
// the slots of its own requests, also of those that only the log tells of, and of those in a
// cluster that it has left.
func TestRecoveredRequestsOfTwoKeysAtOneServer(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	at := func(group string) Location {
		return Location{Model: "m", Address: "127.0.0.1:9000", Cluster: headers.GroupCluster("m", group)}
	}
	a, b, gone := at("h:443"), at("h:443#B"), at("h:443#OLD")
	s.Recover(map[Location]int{a: 1, b: 2})
	s.IdentifyRecovered(RecoveredRequest{Location: b, Request: "b1", Tenant: "acme"})
	list := replicas("h:443", "h:443#B")
	for i := range list {
		list[i].Address, list[i].Transport = netip.MustParseAddrPort(a.Address), &engines.Transport{Group: list[i].ID}
	}
	s.put("m", list...)
	want := func(when string, first, second int) {
		t.Helper()
		if s.Load("h:443") != first || s.Load("h:443#B") != second {
			t.Errorf("%s: loads %d and %d, want %d and %d", when, s.Load("h:443"), s.Load("h:443#B"), first, second)
		}
	}
	want("Envoy has told", 1, 2)
	s.EndRecovered(RecoveredRequest{Location: b, Request: "b1", Tenant: "acme"})
	want("one of b has ended", 1, 1)
	s.LimitRecovered(map[Location]int{a: 1, b: 0})
	want("Envoy has no more of b", 1, 0)
	s.IdentifyRecovered(RecoveredRequest{Location: b, Request: "b3", Tenant: "acme"})
	want("the log has told of one more", 1, 1)
	s.IdentifyRecovered(RecoveredRequest{Location: gone, Request: "c", Tenant: "acme"})
	if s.Load("h:443")+s.Load("h:443#B") != 3 {
		t.Error("a request in a cluster of before does not count")
	}
}
