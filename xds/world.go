package xds

import (
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// kind is a type of resource. The order is that in which changes are sent: a cluster before its endpoints, both before what may
// lead to them.
type kind int

const (
	clusters kind = iota
	assignments
	listeners
	routes
	kinds
)

// String names the kind for the operator.
func (k kind) String() string {
	return [kinds]string{"cluster", "endpoints", "listener", "routes"}[k]
}

func (k kind) typeURL() string {
	return [kinds]string{resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType}[k]
}

func kindOf(typeURL string) (kind, bool) {
	for k := range kinds {
		if k.typeURL() == typeURL {
			return k, true
		}
	}
	return 0, false
}

// names are names of resources by kind. The zero value is empty.
type names [kinds]map[string]struct{}

func (n *names) put(k kind, name string) {
	if n[k] == nil {
		n[k] = map[string]struct{}{}
	}
	n[k][name] = struct{}{}
}

func (n *names) add(more names) {
	for k := range kinds {
		for name := range more[k] {
			n.put(k, name)
		}
	}
}

func (n *names) empty() bool {
	for k := range kinds {
		if len(n[k]) > 0 {
			return false
		}
	}
	return true
}

// find returns the resource of that name, or nil.
func (r *Resources) find(k kind, name string) *Resource {
	switch k {
	case listeners:
		if name == r.Listener.Name {
			return r.Listener
		}
	case routes:
		if name == r.Routes.Name {
			return r.Routes
		}
	case clusters:
		if m := r.byCluster[name]; m != nil {
			return m.Cluster
		}
		return r.Own[name]
	case assignments:
		if m := r.byCluster[name]; m != nil {
			return m.Endpoints
		}
	}
	return nil
}

// all lists the names of a kind.
func (r *Resources) all(k kind) map[string]struct{} {
	var n names
	switch k {
	case listeners:
		n.put(k, r.Listener.Name)
	case routes:
		n.put(k, r.Routes.Name)
	default:
		for name := range r.byCluster {
			n.put(k, name)
		}
	}
	if k == clusters {
		for name := range r.Own {
			n.put(k, name)
		}
	}
	return n[k]
}

// differences lists what is new, changed or gone in next. Resources that both share are told by their pointer.
func differences(old, next *Resources) names {
	var n names
	compare := func(k kind, a, b *Resource) {
		switch {
		case a == b:
		case a == nil:
			n.put(k, b.Name)
		case b == nil || a.Version != b.Version:
			n.put(k, a.Name)
		}
	}
	compare(listeners, old.Listener, next.Listener)
	compare(routes, old.Routes, next.Routes)
	for name, a := range old.byCluster {
		b := next.byCluster[name]
		if a == b {
			continue
		}
		if b == nil {
			b = &Model{}
		}
		compare(clusters, a.Cluster, b.Cluster)
		compare(assignments, a.Endpoints, b.Endpoints)
	}
	for name := range old.Own {
		compare(clusters, old.Own[name], next.Own[name])
	}
	for name, b := range next.Own {
		if old.Own[name] == nil {
			compare(clusters, nil, b)
		}
	}
	for name, b := range next.byCluster {
		if old.byCluster[name] == nil {
			compare(clusters, nil, b.Cluster)
			compare(assignments, nil, b.Endpoints)
		}
	}
	return n
}
