package xds

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/zap"
)

// subscription is the state of one kind of resource on a stream: what Envoy wants and what it has.
type subscription struct {
	// wildcard means that Envoy wants all resources of the kind.
	wildcard bool
	// wanted are the names that Envoy subscribed to one by one.
	wanted map[string]struct{}
	// toCheck are the names to compare in the next flush.
	toCheck map[string]struct{}
	// mustRespond means that Envoy waits for a response, even an empty one.
	mustRespond bool
	// retryAlone are the parts of a refused response, which are sent one by one.
	retryAlone []response
	// sent is the version of each resource that was last sent to Envoy or that Envoy reported.
	sent map[string]string
	// acked are the resources that Envoy has acknowledged or reported. A resource of unknown
	// content has no message.
	acked map[string]*Resource
	// refused are the resources that Envoy refuses in the version that was last sent.
	refused map[string]Nack
	// pending are the responses that Envoy has not answered, by nonce.
	pending map[string]response
}

// response is the content of one response.
type response struct {
	resources []*Resource
	removed   []string
}

// newSubscription handles the first request of a kind. A request without names asks for all
// resources.
func newSubscription(first *discovery.DeltaDiscoveryRequest) *subscription {
	sub := &subscription{
		wanted: map[string]struct{}{}, toCheck: map[string]struct{}{}, sent: map[string]string{},
		acked: map[string]*Resource{}, refused: map[string]Nack{}, pending: map[string]response{},
	}
	sub.update(first)
	sub.wildcard = sub.wildcard || len(first.GetResourceNamesSubscribe()) == 0
	sub.mustRespond = sub.wildcard
	return sub
}

// update applies the changes of the subscription in a request. It returns the names that Envoy
// unsubscribed from.
func (sub *subscription) update(request *discovery.DeltaDiscoveryRequest) []string {
	for _, name := range request.GetResourceNamesUnsubscribe() {
		if name == "*" {
			sub.wildcard = false
		}
		delete(sub.wanted, name)
		delete(sub.sent, name)
		delete(sub.acked, name)
	}
	for _, name := range request.GetResourceNamesSubscribe() {
		if name == "*" {
			sub.wildcard = true
			continue
		}
		sub.wanted[name] = struct{}{}
		sub.toCheck[name] = struct{}{}
		// A client that subscribes to a name has no resource of that name, whatever was sent
		// before.
		delete(sub.sent, name)
	}
	return request.GetResourceNamesUnsubscribe()
}

// nextResponses returns the responses that Envoy needs now, and records them as sent.
func (sub *subscription) nextResponses(k resourceKind, resources *Resources) []response {
	var next response
	for _, name := range slices.Sorted(maps.Keys(sub.toCheck)) {
		if _, wanted := sub.wanted[name]; !wanted && !sub.wildcard {
			continue
		}
		r := resources.find(k, name)
		if r == nil {
			if _, had := sub.sent[name]; had && k != endpointKind {
				// Envoy itself removes the endpoints of a removed cluster.
				next.removed = append(next.removed, name)
			}
			delete(sub.sent, name)
			delete(sub.refused, name)
			continue
		}
		if sub.sent[name] != r.Version {
			next.resources = append(next.resources, r)
			sub.sent[name] = r.Version
		}
	}
	clear(sub.toCheck)
	responses := sub.retryAlone
	sub.retryAlone = nil
	if len(next.resources)+len(next.removed) > 0 || sub.mustRespond {
		responses = append(responses, next)
	}
	sub.mustRespond = false
	return responses
}

// handleRefusal handles Envoy's refusal of a response. Envoy refuses the whole response, and its
// message does not reliably name the bad resource, so each resource is sent again alone. A resource
// that is refused alone is not sent again until it changes; Envoy keeps its old version.
func (st *stream) handleRefusal(k resourceKind, r response, message string) {
	sub := st.subscriptions[k]
	st.server.countNack()
	if len(r.resources)+len(r.removed) > 1 {
		st.server.log.Warn("Envoy refused several resources, sending them one by one",
			zap.Stringer("type", k), zap.Int("resources", len(r.resources)+len(r.removed)), zap.String("message", message), st.nameField())
		for _, res := range r.resources {
			if sub.sent[res.Name] == res.Version {
				sub.retryAlone = append(sub.retryAlone, response{resources: []*Resource{res}})
			}
		}
		for _, name := range r.removed {
			sub.retryAlone = append(sub.retryAlone, response{removed: []string{name}})
		}
		return
	}
	nack := Nack{Type: k.String(), Envoy: st.name(), Message: message, Time: time.Now()}
	for _, res := range r.resources {
		nack.Resource = res.Name
		sub.refused[res.Name] = nack
	}
	for _, name := range r.removed {
		nack.Resource = name
	}
	st.server.log.Error("Envoy refused a resource",
		zap.String("type", nack.Type), zap.String("resource", nack.Resource), zap.String("message", message), st.nameField())
	st.server.setLastNack(&nack)
	st.reportRefused()
}

// reportRefused updates the refused resources.
func (st *stream) reportRefused() {
	var all []Nack
	for k := range kindCount {
		if sub := st.subscriptions[k]; sub != nil {
			for _, name := range slices.Sorted(maps.Keys(sub.refused)) {
				all = append(all, sub.refused[name])
			}
		}
	}
	st.server.setRefused(st, all)
}

// certainPart returns the part of an acknowledged resource that Envoy still has, whatever it does
// with the responses that were sent after it.
func (sub *subscription) certainPart(r *Resource) *Resource {
	// Responses before this one have been answered.
	for _, later := range sub.pending {
		for _, other := range later.resources {
			if other.Name == r.Name {
				r = r.commonReplicas(other)
			}
		}
	}
	return r
}

// commonReplicas returns r with only those replicas that have the same address in other.
func (r *Resource) commonReplicas(other *Resource) *Resource {
	gone := func(id string, at netip.AddrPort) bool { return other.replicas[id] != at }
	both := maps.Clone(r.replicas)
	if maps.DeleteFunc(both, gone); len(both) == len(r.replicas) {
		return r
	}
	part := *r
	part.replicas = both
	return &part
}

// ackedEndpoints returns the endpoints that Envoy has of a cluster. It returns nil if Envoy lacks
// the cluster or its endpoints, or if their content is unknown.
func (st *stream) ackedEndpoints(cluster string) *Resource {
	if !st.hasAcked(clusterKind) || !st.hasAcked(endpointKind) || st.subscriptions[clusterKind].acked[cluster] == nil {
		return nil
	}
	if r := st.subscriptions[endpointKind].acked[cluster]; r != nil && r.Message != nil {
		return r
	}
	return nil
}
