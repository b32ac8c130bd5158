package dispatch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// What a request may be tried at is in the cluster of the picked replica, whatever the strategy,
// and a retry leads nowhere else.
func TestEndpointsStayInTheCluster(t *testing.T) {
	t.Parallel()
	way := &engines.Transport{Group: "c:443"}
	clusters := map[string]string{"a": "model/m", "b": "model/m", "c": "model/m#c:443", "d": "model/m#c:443", "e": "model/m#e:443"}
	for _, strategy := range []Strategy{CHWBL, Prefix, RoundRobin, LeastConnections} {
		s := newStage(Policy{Strategy: strategy, LoadFactor: 1.25, LoadFloor: 8})
		list := replicas("a", "b", "c", "d", "e")
		list[2].Transport, list[3].Transport, list[4].Transport = way, way, &engines.Transport{Group: "e:443"}
		s.put("m", list...)
		at := map[string]string{}
		for i, r := range list {
			at[fmt.Sprint("127.0.0.1:", 9000+i)] = r.ID
		}
		lengths := map[string]int{"a": 2, "b": 2, "c": 2, "d": 2, "e": 2}
		for key := range 40 {
			ticket := s.must(t, newRequest("m", fmt.Sprint(key)))
			picked := ticket.Replica()
			addresses := strings.Split(ticket.Endpoints(), ",")
			if ticket.Cluster() != clusters[picked] || at[addresses[0]] != picked || len(addresses) != lengths[picked] {
				t.Fatalf("%s: %s in %s with %v", strategy, picked, ticket.Cluster(), addresses)
			}
			for _, address := range addresses {
				if clusters[at[address]] != ticket.Cluster() {
					t.Errorf("%s: a request in %s may be tried at %s", strategy, ticket.Cluster(), at[address])
				}
			}
			for address, id := range at {
				ticket.Moved(address)
				if inside := clusters[id] == clusters[picked]; (ticket.Replica() == id) != inside || ticket.Cluster() != clusters[picked] {
					t.Errorf("%s: a request of %s went to %s, now at %s", strategy, picked, id, ticket.Replica())
				}
			}
			ticket.Release()
			for _, id := range at {
				if n := s.Load(id); n != 0 {
					t.Fatalf("%s: %d requests are left on %s", strategy, n, id)
				}
			}
		}
	}
}
