package dispatch

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-gateway/sluice/engines"
)

// Whoever calls replicas without Envoy learns how, of those that Envoy would be told.
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
	lists := map[string][]Upstream{"a": {a, b}, "b": {b, a}, "c": {c}}
	tickets := []*Ticket{s.must(t, newRequest("m", "k")), s.must(t, newRequest("m", "k")), s.must(t, newRequest("m", "k"))}
	for _, ticket := range tickets { // one on each
		want := lists[ticket.Replica()]
		got := ticket.Upstreams()
		var addresses []string
		for _, u := range got {
			addresses = append(addresses, u.Address)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(&engines.Transport{})); diff != "" ||
			strings.Join(addresses, ",") != ticket.Endpoints() && ticket.HasFallback() {
			t.Errorf("%s: %s", ticket.Endpoints(), diff)
		}
		ticket.Moved(want[len(want)-1].Address)
		if again := ticket.Upstreams(); len(again) != len(got) || again[0].ID != got[0].ID {
			t.Errorf("after a retry %v", again)
		}
		ticket.Release()
	}
}
