package dispatch

import (
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// Upstream is where a request may go, for somebody who calls replicas without Envoy.
type Upstream struct {
	// ID of the replica, Address its ip:port, which is also its name in Ticket.Moved.
	ID, Address string
	// Host is what the request says in its Host header; empty: nothing particular.
	Host string
	// Transport is how the replica is called; nil is plain HTTP. It holds secrets.
	Transport *engines.Transport
}

// Upstreams lists the replicas of Endpoints, in that order: the picked one, then those that may be
// tried when it refuses.
func (t *Ticket) Upstreams() []Upstream {
	t.mu.Lock()
	route, cluster := t.route, t.route.replicas[t.at].cluster // which no retry leaves
	t.mu.Unlock()
	list := make([]Upstream, 0, 1+fallbacks)
	for address := range strings.SplitSeq(t.endpoints, ",") {
		for _, r := range route.replicas {
			if r.address == address && r.cluster == cluster {
				list = append(list, route.upstream(r))
				break
			}
		}
	}
	return list
}

// upstream is the replica as the fleet knew it when it was picked.
func (t *modelRoute) upstream(r replica) Upstream {
	u := Upstream{ID: r.id, Address: r.address}
	for i := range t.source.Replicas {
		if from := &t.source.Replicas[i]; from.ID == r.id {
			u.Host, u.Transport = from.Host, from.Transport
			break
		}
	}
	return u
}
