package dispatch

import "testing"

// TestB6_ARetryGoesToNoReplicaThatIsFull: Envoy repeats a request once whose connection a replica
// has closed, and picks by itself after the end of the list. So a list of one replica has it twice
// where Envoy knows others, which are full or not to be used.
func TestB6_ARetryGoesToNoReplicaThatIsFull(t *testing.T) {
	for name, spoil := range map[string]func(s stage){
		"the others are full": func(s stage) {
			route := s.table.Load().routes["m"]
			for i := range route.replicas {
				if route.replicas[i].id != "a" {
					route.replicas[i].load.Add(1)
				}
			}
		},
		"an operator has drained the others": func(s stage) {
			s.DrainReplica("b", true)
			s.DrainReplica("c", true)
		},
	} {
		s := newStage(Policy{MaxPerReplica: 1})
		s.put("m", replicas("a", "b", "c")...)
		spoil(s)
		ticket := s.must(t, newRequest("m", "k"))
		address := "127.0.0.1:9000"
		if ticket.Replica() != "a" || ticket.Endpoints() != address+","+address || ticket.Retries() != 1 || ticket.HasFallback() ||
			len(ticket.Upstreams()) != 1 {
			t.Errorf("%s: the request went to %s with the list %s, %d retries and %d upstreams", name, ticket.Replica(), ticket.Endpoints(),
				ticket.Retries(), len(ticket.Upstreams()))
		}
	}
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	if ticket := s.must(t, newRequest("m", "k")); ticket.Endpoints() != "127.0.0.1:9000" || ticket.HasFallback() {
		t.Errorf("the only replica is listed as %s", ticket.Endpoints())
	}
}
