package dispatch

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-gateway/sluice/engines"
)

// A part that calls replicas without Envoy learns how. It learns first of the replicas that Envoy
// would be told, then of those in other clusters.
func TestUpstreamsOfATicket(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{Strategy: LeastConnections})
	way, other := &engines.Transport{Group: "c:443"}, &engines.Transport{Group: "d:443"}
	list := replicas("a", "b", "c")
	for i := range list {
		list[i].Transport, list[i].Host = way, list[i].ID+".example"
	}
	list[2].Transport = other
	s.put("m", list...)
	a := Upstream{"a", "127.0.0.1:9000", "a.example", way}
	b := Upstream{"b", "127.0.0.1:9001", "b.example", way}
	c := Upstream{"c", "127.0.0.1:9002", "c.example", other}
	lists := map[string][]Upstream{"a": {a, b, c}, "b": {b, a, c}, "c": {c, a, b}}
	tickets := []*Ticket{s.must(t, newRequest("m", "k")), s.must(t, newRequest("m", "k")), s.must(t, newRequest("m", "k"))}
	for _, ticket := range tickets { // one on each
		want := lists[ticket.Replica()]
		got := ticket.Upstreams()
		var addresses []string
		for _, u := range got {
			addresses = append(addresses, u.Address)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(&engines.Transport{})); diff != "" ||
			!strings.HasPrefix(strings.Join(addresses, ","), ticket.Endpoints()) && ticket.HasFallback() {
			t.Errorf("%s: %s", ticket.Endpoints(), diff)
		}
		last := want[len(want)-1]
		if ticket.Moved(last.Address); ticket.Replica() == last.ID {
			t.Errorf("Envoy has moved the request of %s to another cluster", want[0].ID)
		}
		if ticket.MovedTo(last.ID); ticket.Replica() != last.ID {
			t.Errorf("the slot of %s is at %s", want[0].ID, ticket.Replica())
		}
		if again := ticket.Upstreams(); len(again) != len(got) || again[0].ID != got[0].ID {
			t.Errorf("after a retry %v", again)
		}
		ticket.Release()
	}
}

// TestT6_OtherClustersOfATicket: a request leaves its cluster neither for a server that knows the
// model by another name, nor for one without a free slot.
func TestT6_OtherClustersOfATicket(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{Strategy: LeastConnections})
	list := replicas("a", "b", "c", "d")
	for i := range list {
		list[i].Transport, list[i].Slots = &engines.Transport{Group: list[i].ID}, 1
	}
	list[1].ServedModel = "other"
	s.put("m", list...)
	tickets := map[string]*Ticket{}
	for range list {
		ticket := s.must(t, newRequest("m", "k"))
		tickets[ticket.Replica()] = ticket
	}
	if got := tickets["a"].Upstreams(); len(got) != 1 {
		t.Errorf("all are full: %v", got)
	}
	tickets["b"].Release()
	tickets["d"].Release()
	if got := tickets["a"].Upstreams(); len(got) != 2 || got[1].ID != "d" {
		t.Errorf("b and d are free: %v", got)
	}
}
