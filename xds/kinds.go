package xds

import (
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// resourceKind is a type of resource. Changes are sent in the order of the kinds: a cluster before
// its endpoints, and both before what may lead to them.
type resourceKind int

const (
	clusterKind resourceKind = iota
	endpointKind
	filterKind
	secretKind
	listenerKind
	routeKind
	kindCount
)

// String returns the name of the kind for operators.
func (k resourceKind) String() string {
	return [kindCount]string{"cluster", "endpoints", "filter", "secret", "listener", "routes"}[k]
}

// isStatic reports whether resources of the kind do not depend on the fleet.
func (k resourceKind) isStatic() bool { return k != clusterKind && k != endpointKind }

// typeURL returns the type URL of the kind in the xDS protocol.
func (k resourceKind) typeURL() string {
	return [kindCount]string{resource.ClusterType, resource.EndpointType, resource.ExtensionConfigType, resource.SecretType,
		resource.ListenerType, resource.RouteType}[k]
}

func kindOf(typeURL string) (resourceKind, bool) {
	for k := range kindCount {
		if k.typeURL() == typeURL {
			return k, true
		}
	}
	return 0, false
}

// nameSet is a set of resource names for each kind. The zero value is empty.
type nameSet [kindCount]map[string]struct{}

func (n *nameSet) put(k resourceKind, name string) {
	if n[k] == nil {
		n[k] = map[string]struct{}{}
	}
	n[k][name] = struct{}{}
}

func (n *nameSet) add(more nameSet) {
	for k := range kindCount {
		for name := range more[k] {
			n.put(k, name)
		}
	}
}

// empty reports whether the set has no name of any kind.
func (n *nameSet) empty() bool {
	for k := range kindCount {
		if len(n[k]) > 0 {
			return false
		}
	}
	return true
}

// find returns the resource with that name, or nil.
func (r *Resources) find(k resourceKind, name string) *Resource {
	switch k {
	case filterKind:
		return r.Filters[name]
	case secretKind:
		return r.Secrets[name]
	case listenerKind:
		if name == r.Listener.Name {
			return r.Listener
		}
	case routeKind:
		if name == r.Routes.Name {
			return r.Routes
		}
	case clusterKind:
		if m := r.byCluster[name]; m != nil {
			return m.Cluster
		}
		return r.Own[name]
	case endpointKind:
		if m := r.byCluster[name]; m != nil {
			return m.Endpoints
		}
		return r.ownEndpoints[name]
	}
	return nil
}

func (r *Resources) all(k resourceKind) map[string]struct{} {
	var n nameSet
	switch k {
	case filterKind:
		for name := range r.Filters {
			n.put(k, name)
		}
	case secretKind:
		for name := range r.Secrets {
			n.put(k, name)
		}
	case listenerKind:
		n.put(k, r.Listener.Name)
	case routeKind:
		n.put(k, r.Routes.Name)
	default:
		for name := range r.byCluster {
			n.put(k, name)
		}
	}
	own := map[resourceKind]map[string]*Resource{clusterKind: r.Own, endpointKind: r.ownEndpoints}
	for name := range own[k] {
		n.put(k, name)
	}
	return n[k]
}

// differences returns the names of the resources that are new, changed or removed in next. It
// compares the pointers first, because Rebuild shares unchanged resources.
func differences(old, next *Resources) nameSet {
	var n nameSet
	compare := func(k resourceKind, a, b *Resource) {
		switch {
		case a == b:
		case a == nil:
			n.put(k, b.Name)
		case b == nil || a.Version != b.Version:
			n.put(k, a.Name)
		}
	}
	compare(listenerKind, old.Listener, next.Listener)
	compare(routeKind, old.Routes, next.Routes)
	for name, b := range next.Filters { // their names never change
		compare(filterKind, old.Filters[name], b)
	}
	for name, b := range next.Secrets { // one that is left out is not asked for any more
		compare(secretKind, old.Secrets[name], b)
	}
	for name, a := range old.byCluster {
		b := next.byCluster[name]
		if a == b {
			continue
		}
		if b == nil {
			b = &Model{}
		}
		compare(clusterKind, a.Cluster, b.Cluster)
		compare(endpointKind, a.Endpoints, b.Endpoints)
	}
	for name := range old.Own {
		compare(clusterKind, old.Own[name], next.Own[name])
	}
	for name, b := range next.Own {
		if old.Own[name] == nil {
			compare(clusterKind, nil, b)
		}
	}
	for name, b := range next.byCluster {
		if old.byCluster[name] == nil {
			compare(clusterKind, nil, b.Cluster)
			compare(endpointKind, nil, b.Endpoints)
		}
	}
	return n
}
