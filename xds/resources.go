package xds

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// resourceName is the name of the one listener and of the one route table.
const resourceName = "sluice"

// Resource is one resource of Envoy's configuration. It is immutable.
type Resource struct {
	// Name is unique among the resources of one type.
	Name string
	// Version is a hash of the content.
	Version string
	// Message is the content.
	Message proto.Message

	packed *anypb.Any
	// replicas are the ids and addresses of the replicas, if the resource is endpoints.
	replicas map[string]netip.AddrPort
}

// Model has the resources of one model, or of one group of its replicas.
type Model struct {
	Cluster   *Resource
	Endpoints *Resource
	// Replicas are the ids of the replicas in Endpoints, in the same order.
	Replicas []string
	// Groups are the replicas with transport settings or a model name of their own, by the name
	// of the group. Each group has a cluster of its own. nil means that there are none.
	Groups map[string]*Model

	// members and faults are what the model was built from. Groups have none.
	members []endpoint
	faults  []Fault
	// transport is the transport of a group. nil means plain HTTP.
	transport *engines.Transport
}

// endpoint is what Envoy needs to know about a replica.
type endpoint struct {
	id      string
	address netip.AddrPort
	// ready means that the replica is in the endpoints. Members of a group are listed before they
	// are ready, since their cluster exists before.
	ready     bool
	host      string
	transport *engines.Transport
	// group is the replica's Group.
	group string
}

// isCurrent reports whether e still describes the replica.
func (e *endpoint) isCurrent(r *engines.Replica, ready bool) bool {
	return e.id == r.ID && e.ready == ready && e.transport == r.Transport && e.group == r.Group() &&
		(!ready || e.host == r.Host && e.address == unmapAddress(r.Address))
}

// newEndpoint returns the endpoint of a replica. It returns false if the replica does not matter to
// Envoy.
func newEndpoint(r *engines.Replica) (endpoint, bool) {
	e := endpoint{id: r.ID, ready: r.State == engines.Ready, transport: r.Transport, group: r.Group()}
	if e.ready {
		e.address, e.host = unmapAddress(r.Address), r.Host
	}
	return e, e.ready || e.group != ""
}

// Resources is the complete configuration of Envoy. It is immutable.
type Resources struct {
	Listener *Resource
	Routes   *Resource
	// Filters are the filters of the listener that change while it runs, by name.
	Filters map[string]*Resource
	// Secrets are the certificates of the listener, by name.
	Secrets map[string]*Resource
	// Own are the clusters that lead to Sluice itself, by name.
	Own map[string]*Resource
	// Models are the models by name. A model that Envoy cannot represent is missing here and has a
	// Fault.
	Models map[string]*Model
	// Faults are the models and replicas that were left out, so that one of them cannot block the
	// others.
	Faults []Fault

	config Config
	// ownEndpoints are the endpoints of Own by cluster. They are nil for the Envoy of this host.
	ownEndpoints map[string]*Resource
	// snapshot is the fleet that the resources were built from.
	snapshot *engines.Snapshot
	// byCluster has each Model, and each group, by the name of its cluster and endpoints.
	byCluster map[string]*Model
}

// Fault says why a model, or one replica of it, is not in the resources.
type Fault struct {
	Model string
	// Replica is empty if the whole model was left out.
	Replica string
	Err     error
}

// Error implements error.
func (f Fault) Error() string {
	if f.Replica != "" {
		return fmt.Sprintf("model %q, replica %q: %v", f.Model, f.Replica, f.Err)
	}
	return fmt.Sprintf("model %q: %v", f.Model, f.Err)
}

// Unwrap returns the cause.
func (f Fault) Unwrap() error { return f.Err }

// Rebuild returns the resources of a fleet. It shares all unchanged resources with r, so that its
// cost is that of the models that changed. r may be nil. It returns an error only if the Config is
// invalid; faults of single models are in Faults.
func (r *Resources) Rebuild(c Config, s *engines.Snapshot) (*Resources, error) {
	if r == nil {
		r = &Resources{snapshot: &engines.Snapshot{}}
	}
	next := &Resources{config: c, snapshot: s, Listener: r.Listener, Routes: r.Routes, Filters: r.Filters, Secrets: r.Secrets, Own: r.Own,
		Models: cloned(r.Models), byCluster: cloned(r.byCluster), Faults: slices.Clone(r.Faults)}
	if r.Listener == nil || r.config != c {
		if err := next.buildStatic(); err != nil {
			return nil, err
		}
	}
	for name := range r.snapshot.Models {
		if s.Models[name] == nil {
			next.removeModel(name)
		}
	}
	for name, snapshot := range s.Models {
		if r.snapshot.Models[name] != snapshot {
			next.updateModel(snapshot)
		}
	}
	slices.SortFunc(next.Faults, func(a, b Fault) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), strings.Compare(a.Replica, b.Replica))
	})
	return next, nil
}

// cloned returns a copy of a map that is never nil.
func cloned(m map[string]*Model) map[string]*Model {
	if m == nil {
		return map[string]*Model{}
	}
	return maps.Clone(m)
}

func (r *Resources) removeModel(name string) {
	if m := r.Models[name]; m != nil {
		delete(r.byCluster, m.Cluster.Name)
		for _, group := range m.Groups {
			delete(r.byCluster, group.Cluster.Name)
		}
		delete(r.Models, name)
	}
	if len(r.Faults) > 0 {
		r.Faults = slices.DeleteFunc(r.Faults, func(f Fault) bool { return f.Model == name })
	}
}

// updateModel rebuilds a model if something changed that matters to Envoy.
func (r *Resources) updateModel(s *engines.ModelSnapshot) {
	old := r.Models[s.Name]
	if s.Launcher != engines.None && old.isCurrent(s) {
		return
	}
	r.removeModel(s.Name)
	if s.Launcher == engines.None {
		// Requests do not reach the model through Envoy.
		return
	}
	m, err := buildModel(s, old, r.config.Elsewhere != (Elsewhere{}))
	if err != nil {
		r.Faults = append(r.Faults, Fault{Model: s.Name, Err: err})
		return
	}
	r.Models[s.Name], r.byCluster[m.Cluster.Name] = m, m
	for _, group := range m.Groups {
		r.byCluster[group.Cluster.Name] = group
	}
	r.Faults = append(r.Faults, m.faults...)
}

// buildStatic builds the resources that do not depend on the fleet.
func (r *Resources) buildStatic() error {
	c := r.config.withDefaults()
	if err := c.check(); err != nil {
		return fmt.Errorf("xds: %w", err)
	}
	var err error
	if r.Listener, err = newResource(resourceName, newListener(c)); err != nil {
		return fmt.Errorf("xds: listener: %w", err)
	}
	if r.Routes, err = newResource(resourceName, routeConfiguration(c)); err != nil {
		return fmt.Errorf("xds: routes: %w", err)
	}
	if r.Filters, err = connectionFilters(c); err != nil {
		return fmt.Errorf("xds: %w", err)
	}
	if r.Secrets, err = c.TLS.secrets(); err != nil {
		return fmt.Errorf("xds: %w", err)
	}
	if r.Own, err = ownClusters(c); err != nil {
		return fmt.Errorf("xds: %w", err)
	}
	if c.node != (node{}) {
		if r.ownEndpoints, err = gatewayEndpoints(c); err != nil {
			return fmt.Errorf("xds: %w", err)
		}
	}
	return nil
}

// buildModel builds the resources of a model and of its groups. It reuses the unchanged clusters of
// old, which may be nil. elsewhere means that Envoys of other hosts have them, too.
func buildModel(s *engines.ModelSnapshot, old *Model, elsewhere bool) (*Model, error) {
	if err := checkModelName(s.Name); err != nil {
		return nil, err
	}
	var members []endpoint
	groups := map[string][]endpoint{}
	for i := range s.Replicas {
		if e, ok := newEndpoint(&s.Replicas[i]); ok {
			members = append(members, e)
			groups[e.group] = append(groups[e.group], e)
		}
	}
	m, err := buildGroup(s.Name, groups[""], old, elsewhere)
	if err != nil {
		return nil, err
	}
	m.members = members
	delete(groups, "")
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		var before *Model
		if old != nil {
			before = old.Groups[name]
		}
		group, err := buildGroup(s.Name, groups[name], before, elsewhere)
		if err != nil {
			for _, e := range groups[name] {
				m.faults = append(m.faults, Fault{Model: s.Name, Replica: e.id, Err: err})
			}
			continue
		}
		m.faults = append(m.faults, group.faults...)
		group.faults = nil
		if m.Groups == nil {
			m.Groups = map[string]*Model{}
		}
		m.Groups[name] = group
	}
	return m, nil
}

// buildGroup builds the cluster of the replicas of a model that share transport settings and the
// model's name, and their endpoints.
func buildGroup(model string, members []endpoint, old *Model, elsewhere bool) (*Model, error) {
	m, group := &Model{}, ""
	if len(members) > 0 {
		m.transport, group = members[0].transport, members[0].group
	}
	name := headers.GroupCluster(model, group)
	var err error
	if old != nil && old.transport == m.transport {
		m.Cluster = old.Cluster
	} else if m.Cluster, err = newGroupCluster(name, m.transport, elsewhere); err != nil {
		return nil, err
	}
	ready, faults := reachableEndpoints(model, members)
	m.faults, m.Replicas = faults, make([]string, len(ready))
	known := make(map[string]netip.AddrPort, len(ready))
	for i, e := range ready {
		m.Replicas[i], known[e.id] = e.id, e.address
	}
	if m.Endpoints, err = newResource(name, newAssignment(name, ready)); err != nil {
		return nil, err
	}
	m.Endpoints.replicas = known
	return m, nil
}

// isCurrent reports whether the replicas of the model still are those that m was built from. Many
// changes of a fleet do not matter to Envoy.
func (m *Model) isCurrent(s *engines.ModelSnapshot) bool {
	if m == nil || len(m.faults) > 0 {
		return false
	}
	n := 0
	for i := range s.Replicas {
		r := &s.Replicas[i]
		ready := r.State == engines.Ready
		if !ready && r.Group() == "" {
			continue
		}
		if n == len(m.members) || !m.members[n].isCurrent(r, ready) {
			return false
		}
		n++
	}
	return n == len(m.members)
}

// unmapAddress returns an IPv4 address in IPv4 form, even if it is given as an IPv6 address.
// override_host compares addresses as text.
func unmapAddress(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// checkModelName refuses names that a header cannot carry, because ext_proc sends the name of the
// cluster in a header.
func checkModelName(name string) error {
	if name == "" {
		return errors.New("the name is empty")
	}
	for _, r := range name {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return errors.New("the name contains a control character, which a header cannot carry")
		}
	}
	if strings.TrimSpace(name) != name {
		return errors.New("the name begins or ends with a space")
	}
	return nil
}

// reachableEndpoints returns the members that are ready and that Envoy can connect to. The others
// have faults.
func reachableEndpoints(model string, members []endpoint) (ready []endpoint, faults []Fault) {
	used := make(map[netip.AddrPort]string, len(members))
	for _, e := range members {
		if !e.ready {
			continue
		}
		var err error
		switch other, duplicate := used[e.address]; {
		case !e.address.IsValid() || e.address.Port() == 0 || e.address.Addr().IsUnspecified():
			err = fmt.Errorf("%q is not an address that Envoy can connect to", e.address)
		case e.address.Addr().Zone() != "":
			err = fmt.Errorf("%q has a zone, which Envoy does not support", e.address)
		case duplicate:
			err = fmt.Errorf("%s is already the address of replica %q", e.address, other)
		}
		if err != nil {
			faults = append(faults, Fault{Model: model, Replica: e.id, Err: err})
			continue
		}
		used[e.address] = e.id
		ready = append(ready, e)
	}
	return ready, faults
}
