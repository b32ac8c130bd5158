package dispatch

import (
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// Upstream is a replica that a request may go to, for callers that call replicas without Envoy.
type Upstream struct {
	// ID of the replica. Address is its ip:port, which Ticket.Moved also takes.
	ID, Address string
	// Host is the value of the Host header of requests to the replica. Empty means the address.
	Host string
	// Transport says how to connect to the replica; nil means plain HTTP. It holds secrets.
	Transport *engines.Transport
}

// Upstreams returns the replicas of Endpoints in that order: the picked one, then those to try if
// it refuses. A request that only one replica can take has one.
func (t *Ticket) Upstreams() []Upstream {
	t.mu.Lock()
	route, cluster := t.route, t.replicaLocked().cluster // a retry stays in the cluster
	t.mu.Unlock()
	list, endpoints := make([]Upstream, 0, 1+fallbacks), t.endpoints
	if !t.HasFallback() {
		endpoints, _, _ = strings.Cut(endpoints, ",")
	}
	for address := range strings.SplitSeq(endpoints, ",") {
		if i := route.indexAt(address, cluster); i >= 0 {
			list = append(list, route.upstream(route.replicas[i]))
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
