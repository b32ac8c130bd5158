package dispatch

import (
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// Upstream is a replica that a request may go to, for callers that call replicas without Envoy.
type Upstream struct {
	// ID of the replica, which Ticket.MovedTo takes. Address is its ip:port.
	ID, Address string
	// Host is the value of the Host header of requests to the replica. Empty means the address.
	Host string
	// Transport says how to connect to the replica; nil means plain HTTP. It holds secrets.
	Transport *engines.Transport
}

// Upstreams returns the replicas to try, the picked one first, then those of Endpoints. Whoever
// calls replicas without Envoy may leave the cluster, so replicas with a free slot in other
// clusters follow, if they know the model by the same name. A request that only one replica can
// take has one.
func (t *Ticket) Upstreams() []Upstream {
	t.mu.Lock()
	route, first, pinned := t.route, t.picked, t.pinned
	t.mu.Unlock()
	picked := &route.replicas[first]
	list, endpoints := make([]Upstream, 0, 1+fallbacks), t.endpoints
	if !t.HasFallback() {
		endpoints, _, _ = strings.Cut(endpoints, ",")
	}
	for address := range strings.SplitSeq(endpoints, ",") {
		if i := route.indexAt(address, picked.cluster); i >= 0 {
			list = append(list, route.upstream(route.replicas[i]))
		}
	}
	for n := 1; n < len(route.replicas) && route.mixed && !pinned; n++ {
		r := &route.replicas[(first+n)%len(route.replicas)]
		if r.cluster != picked.cluster && r.servedModel == picked.servedModel && len(list) <= fallbacks && !r.full(r.load.Load()) {
			list = append(list, route.upstream(*r))
		}
	}
	return list
}

// upstream returns the replica r with the host and transport that the fleet knew when it was
// picked.
func (t *modelRoute) upstream(r replica) Upstream {
	u := Upstream{ID: r.id, Address: r.address}
	if from := t.source.Replica(r.id); from != nil {
		u.Host, u.Transport = from.Host, from.Transport
	}
	return u
}
