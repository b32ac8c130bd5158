package xds

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/zap"
)

// subscription is what Envoy wants of one kind, and what it has.
type subscription struct {
	wildcard bool
	// wanted are the names that were asked for one by one.
	wanted map[string]struct{}
	// check are the names to look at in the next flush.
	check map[string]struct{}
	// greet says that Envoy waits for a response even if there is nothing to say.
	greet bool
	// alone are the parts of a refused response, to be sent one by one.
	alone []response
	// sent is the version of each resource that Envoy was sent last, or said that it has.
	sent map[string]string
	// taken are the resources that Envoy has acknowledged, or said that it has. One of an unknown version has no message.
	taken map[string]*Resource
	// refused are the resources that Envoy does not take in the form that they were sent last.
	refused map[string]Nack
	// pending are the responses that Envoy has not answered, by nonce.
	pending map[string]response
}

type response struct {
	resources []*Resource
	removed   []string
}

// newSubscription reads the first request of a kind. One without names asks for everything.
func newSubscription(first *discovery.DeltaDiscoveryRequest) *subscription {
	sub := &subscription{
		wanted: map[string]struct{}{}, check: map[string]struct{}{}, sent: map[string]string{},
		taken: map[string]*Resource{}, refused: map[string]Nack{}, pending: map[string]response{},
	}
	sub.change(first)
	sub.wildcard = sub.wildcard || len(first.GetResourceNamesSubscribe()) == 0
	sub.greet = sub.wildcard
	return sub
}

// change takes over what a request says of Envoy's wants. It returns the names that Envoy has dropped.
func (sub *subscription) change(request *discovery.DeltaDiscoveryRequest) []string {
	for _, name := range request.GetResourceNamesUnsubscribe() {
		if name == "*" {
			sub.wildcard = false
		}
		delete(sub.wanted, name)
		delete(sub.sent, name)
		delete(sub.taken, name)
	}
	for _, name := range request.GetResourceNamesSubscribe() {
		if name == "*" {
			sub.wildcard = true
			continue
		}
		sub.wanted[name] = struct{}{}
		sub.check[name] = struct{}{}
		// Who subscribes has nothing, whatever was sent before.
		delete(sub.sent, name)
	}
	return request.GetResourceNamesUnsubscribe()
}

// outstanding lists the responses that Envoy needs, and takes them for sent.
func (sub *subscription) outstanding(k resourceKind, world *Resources) []response {
	var next response
	for _, name := range slices.Sorted(maps.Keys(sub.check)) {
		if _, wanted := sub.wanted[name]; !wanted && !sub.wildcard {
			continue
		}
		r := world.find(k, name)
		if r == nil {
			if _, had := sub.sent[name]; had && k != endpointKind {
				// Envoy drops endpoints by itself when their cluster goes.
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
	clear(sub.check)
	responses := sub.alone
	sub.alone = nil
	if len(next.resources)+len(next.removed) > 0 || sub.greet {
		responses = append(responses, next)
	}
	sub.greet = false
	return responses
}

// refused takes Envoy's refusal of a response. Envoy refuses a response as a whole and does not say in a form to rely on which of its
// resources it minds, so each is sent again alone. A resource that is refused alone counts as sent: Envoy keeps what it has until the
// resource changes.
func (st *stream) refused(k resourceKind, r response, message string) {
	sub := st.subscriptions[k]
	st.server.report(st, func(s *Status) { s.Nacks++ })
	if len(r.resources)+len(r.removed) > 1 {
		st.server.log.Warn("Envoy refused several resources at once; sending them one by one",
			zap.Stringer("type", k), zap.Int("resources", len(r.resources)+len(r.removed)), zap.String("message", message))
		for _, res := range r.resources {
			if sub.sent[res.Name] == res.Version {
				sub.alone = append(sub.alone, response{resources: []*Resource{res}})
			}
		}
		for _, name := range r.removed {
			sub.alone = append(sub.alone, response{removed: []string{name}})
		}
		return
	}
	nack := Nack{Type: k.String(), Message: message, Time: time.Now()}
	for _, res := range r.resources {
		nack.Resource = res.Name
		sub.refused[res.Name] = nack
	}
	for _, name := range r.removed {
		nack.Resource = name
	}
	st.server.log.Error("Envoy refused a resource",
		zap.String("type", nack.Type), zap.String("resource", nack.Resource), zap.String("message", message))
	st.server.report(st, func(s *Status) { s.LastNack = &nack })
	st.reportRefused()
}

// reportRefused shows the operator what Envoy does not take.
func (st *stream) reportRefused() {
	var all []Nack
	for k := range kindCount {
		if sub := st.subscriptions[k]; sub != nil {
			for _, name := range slices.Sorted(maps.Keys(sub.refused)) {
				all = append(all, sub.refused[name])
			}
		}
	}
	st.server.report(st, func(s *Status) { s.Refused = all })
}

// sure is what Envoy has of an acknowledged resource whatever it has made of those that were sent after it.
func (sub *subscription) sure(r *Resource) *Resource {
	for _, later := range sub.pending { // an earlier one has been answered
		for _, other := range later.resources {
			if other.Name == r.Name {
				r = r.and(other)
			}
		}
	}
	return r
}

// and is r with those replicas alone that are at the same address in other.
func (r *Resource) and(other *Resource) *Resource {
	gone := func(id string, at netip.AddrPort) bool { return other.replicas[id] != at }
	both := maps.Clone(r.replicas)
	if maps.DeleteFunc(both, gone); len(both) == len(r.replicas) {
		return r
	}
	part := *r
	part.replicas = both
	return &part
}

// known returns the endpoints that Envoy has of a cluster, or nil when it does not have both the cluster and endpoints that
// can be told.
func (st *stream) known(cluster string) *Resource {
	if !st.has(clusterKind) || !st.has(endpointKind) || st.subscriptions[clusterKind].taken[cluster] == nil {
		return nil
	}
	if r := st.subscriptions[endpointKind].taken[cluster]; r != nil && r.Message != nil {
		return r
	}
	return nil
}
