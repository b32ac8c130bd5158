package dispatch

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
)

// TestU4_RequestsCarryTheNameOfTheirServer: a ticket has the name of the model on its replica, and
// all replicas that it may be tried at have the same name.
func TestU4_RequestsCarryTheNameOfTheirServer(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{Strategy: RoundRobin})
	names := map[string]string{"a": "", "b": "B/x", "c": "B/x", "d": "D"}
	list := replicas("a", "b", "c", "d")
	at := map[string]string{}
	for i := range list {
		list[i].ServedModel = names[list[i].ID]
		at[fmt.Sprint("127.0.0.1:", 9000+i)] = list[i].ID
	}
	s.put("m", list...)
	seen := map[string]int{}
	for key := range 12 {
		ticket := s.must(t, newRequest("m", fmt.Sprint(key)))
		seen[ticket.Replica()]++
		want := cmp.Or(names[ticket.Replica()], "m")
		if ticket.Served != want || ticket.Model != "m" {
			t.Errorf("at %s the request has %q, want %q", ticket.Replica(), ticket.Served, want)
		}
		for address := range strings.SplitSeq(ticket.Endpoints(), ",") {
			if names[at[address]] != names[ticket.Replica()] {
				t.Errorf("a request with %q may be tried at %s, where the model is %q", ticket.Served, at[address], names[at[address]])
			}
		}
		ticket.Release()
	}
	if len(seen) != 4 {
		t.Errorf("requests went to %v", seen)
	}
}
