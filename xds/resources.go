package xds

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// resourceName is the name of the one listener and of the one route table.
const resourceName = "sluice"

// Resource is one piece of Envoy's configuration. It must not be changed.
type Resource struct {
	// Name is unique among the resources of one type.
	Name string
	// Version is a hash of the content.
	Version string
	// Message is the content.
	Message proto.Message

	packed *anypb.Any
	// replicas are those in it by id, with their addresses, if these are endpoints.
	replicas map[string]netip.AddrPort
}

// Model is what Envoy is told about one model.
type Model struct {
	Cluster   *Resource
	Endpoints *Resource
	// Replicas are the ids of the replicas in Endpoints, in the same order.
	Replicas []string
	// Groups are the replicas that are called in a way of their own, by the name of the group: each has a cluster of its own. nil for a
	// model without such.
	Groups map[string]*Model

	// members and faults are what the model was built from; only the model itself has them, not its groups.
	members []endpoint
	faults  []Fault
	// transport is the group's.
	transport *engines.Transport
}

// endpoint is all that Envoy needs of a replica.
type endpoint struct {
	id      string
	address netip.AddrPort
	// ready says that it is in the endpoints. Members of a group are known before that, for their cluster.
	ready     bool
	host      string
	transport *engines.Transport
}

// describes says whether the replica is still what e was made from.
func (e *endpoint) describes(r *engines.Replica, ready bool) bool {
	return e.id == r.ID && e.ready == ready && e.transport == r.Transport && (!ready || e.host == r.Host && e.address == unmapped(r.Address))
}

// member is the replica as Envoy is concerned with it; false when it is not.
func member(r *engines.Replica) (endpoint, bool) {
	e := endpoint{id: r.ID, ready: r.State == engines.Ready, transport: r.Transport}
	if e.ready {
		e.address, e.host = unmapped(r.Address), r.Host
	}
	return e, e.ready || e.transport != nil
}

// Resources is everything Envoy is told. It is immutable.
type Resources struct {
	Listener *Resource
	Routes   *Resource
	// Own are the clusters that lead to Sluice itself, by name.
	Own map[string]*Resource
	// Models by name. A model that cannot be expressed is missing here and listed in Faults.
	Models map[string]*Model
	// Faults are the models and replicas that had to be left out, so that one bad item does not hold up the others.
	Faults []Fault

	config Config
	// snapshot is what they were made from.
	snapshot *engines.Snapshot
	// byCluster is Models by the name of the cluster, which is that of its endpoints too.
	byCluster map[string]*Model
}

// Fault says why a model, or one replica of it, is not in the resources.
type Fault struct {
	Model string
	// Replica is empty when the whole model is left out.
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

// Build makes the resources for a fleet. An error means that the Config is wrong; whatever is wrong with a single model is in Faults.
func Build(c Config, s *engines.Snapshot) (*Resources, error) {
	return (*Resources)(nil).Rebuild(c, s)
}

// Rebuild gives exactly what Build gives, but shares with r all that is the same in both, so that its cost is that of the
// models that changed. A nil r shares nothing.
func (r *Resources) Rebuild(c Config, s *engines.Snapshot) (*Resources, error) {
	if r == nil {
		r = &Resources{snapshot: &engines.Snapshot{}}
	}
	next := &Resources{config: c, snapshot: s, Listener: r.Listener, Routes: r.Routes, Own: r.Own, Models: cloned(r.Models),
		byCluster: cloned(r.byCluster), Faults: slices.Clone(r.Faults)}
	if r.Listener == nil || r.config != c {
		if err := next.buildStatic(); err != nil {
			return nil, err
		}
	}
	for name := range r.snapshot.Models {
		if s.Models[name] == nil {
			next.drop(name)
		}
	}
	for name, snapshot := range s.Models {
		if r.snapshot.Models[name] != snapshot {
			next.renew(snapshot)
		}
	}
	slices.SortFunc(next.Faults, func(a, b Fault) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), strings.Compare(a.Replica, b.Replica))
	})
	return next, nil
}

func cloned(m map[string]*Model) map[string]*Model {
	if m == nil {
		return map[string]*Model{}
	}
	return maps.Clone(m)
}

// drop takes a model out.
func (r *Resources) drop(name string) {
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

// renew makes a model anew, as far as Envoy is concerned with what has changed of it.
func (r *Resources) renew(s *engines.ModelSnapshot) {
	old := r.Models[s.Name]
	if s.Launcher != engines.None && old.describes(s) {
		return
	}
	r.drop(s.Name)
	if s.Launcher == engines.None {
		return // nobody asks Envoy for it
	}
	m, err := buildModel(s, old)
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

// buildStatic makes what does not depend on the fleet.
func (r *Resources) buildStatic() error {
	c := r.config.withDefaults()
	if err := c.check(); err != nil {
		return fmt.Errorf("xds: %w", err)
	}
	var err error
	if r.Listener, err = newResource(resourceName, listenerFor(c)); err != nil {
		return fmt.Errorf("xds: listener: %w", err)
	}
	if r.Routes, err = newResource(resourceName, routeConfiguration(c)); err != nil {
		return fmt.Errorf("xds: routes: %w", err)
	}
	if r.Own, err = ownClusters(c); err != nil {
		return fmt.Errorf("xds: %w", err)
	}
	return nil
}

func buildModel(s *engines.ModelSnapshot, old *Model) (*Model, error) {
	if err := checkModelName(s.Name); err != nil {
		return nil, err
	}
	var members []endpoint
	groups := map[string][]endpoint{}
	for i := range s.Replicas {
		if e, ok := member(&s.Replicas[i]); ok {
			members = append(members, e)
			name := s.Replicas[i].Group()
			groups[name] = append(groups[name], e)
		}
	}
	m, err := buildGroup(s.Name, groups[""], old)
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
		group, err := buildGroup(s.Name, groups[name], before)
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

// buildGroup makes the cluster for those replicas of a model that are called the same way, and their endpoints.
func buildGroup(model string, members []endpoint, old *Model) (*Model, error) {
	m := &Model{}
	if len(members) > 0 {
		m.transport = members[0].transport
	}
	group := ""
	if m.transport != nil {
		group = m.transport.Group
	}
	name := headers.GroupCluster(model, group)
	var err error
	if old != nil && old.transport == m.transport {
		m.Cluster = old.Cluster
	} else if m.Cluster, err = groupCluster(name, m.transport); err != nil {
		return nil, err
	}
	ready, faults := reachable(model, members)
	m.faults, m.Replicas = faults, make([]string, len(ready))
	known := make(map[string]netip.AddrPort, len(ready))
	for i, e := range ready {
		m.Replicas[i], known[e.id] = e.id, e.address
	}
	if m.Endpoints, err = newResource(name, assignmentFor(name, ready)); err != nil {
		return nil, err
	}
	m.Endpoints.replicas = known
	return m, nil
}

// describes says whether the model's replicas are still those that m was built from: much changes in a fleet that is nothing to Envoy.
func (m *Model) describes(s *engines.ModelSnapshot) bool {
	if m == nil || len(m.faults) > 0 {
		return false
	}
	n := 0
	for i := range s.Replicas {
		r := &s.Replicas[i]
		ready := r.State == engines.Ready
		if !ready && r.Transport == nil {
			continue
		}
		if n == len(m.members) || !m.members[n].describes(r, ready) {
			return false
		}
		n++
	}
	return n == len(m.members)
}

// unmapped is an IPv4 address as such, even where it came as IPv6: override_host compares texts.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// checkModelName refuses what cannot travel in a header: the cluster's name is taken from one.
func checkModelName(name string) error {
	if name == "" {
		return errors.New("the name is empty")
	}
	for _, r := range name {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return errors.New("the name has a character that no header can carry")
		}
	}
	if strings.TrimSpace(name) != name {
		return errors.New("the name begins or ends with a space")
	}
	return nil
}

// reachable lists the members that are ready and that Envoy can reach.
func reachable(model string, members []endpoint) (ready []endpoint, faults []Fault) {
	taken := make(map[netip.AddrPort]string, len(members))
	for _, e := range members {
		if !e.ready {
			continue
		}
		var err error
		switch other, double := taken[e.address]; {
		case !e.address.IsValid() || e.address.Port() == 0 || e.address.Addr().IsUnspecified():
			err = fmt.Errorf("%q is no address to connect to", e.address)
		case e.address.Addr().Zone() != "":
			err = fmt.Errorf("%q has a zone, which Envoy does not support", e.address)
		case double:
			err = fmt.Errorf("%s already is the address of replica %q", e.address, other)
		}
		if err != nil {
			faults = append(faults, Fault{Model: model, Replica: e.id, Err: err})
			continue
		}
		taken[e.address] = e.id
		ready = append(ready, e)
	}
	return ready, faults
}

// newResource checks a message against the constraints of its definition, as Envoy will, and packs it.
func newResource(name string, m validated) (*Resource, error) {
	if err := m.ValidateAll(); err != nil {
		return nil, err
	}
	packed, err := pack(m)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(packed.Value)
	return &Resource{Name: name, Version: hex.EncodeToString(sum[:8]), Message: m, packed: packed}, nil
}

// validated is a generated message with the checks of its definition.
type validated interface {
	proto.Message
	ValidateAll() error
}

func pack(m proto.Message) (*anypb.Any, error) {
	packed := new(anypb.Any)
	err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true})
	return packed, err
}

// mustPack packs a message that holds no text from outside. Only text that is not UTF-8 can fail to be packed.
func mustPack(m proto.Message) *anypb.Any {
	packed, err := pack(m)
	if err != nil {
		panic(fmt.Sprintf("xds: packing %T: %v", m, err))
	}
	return packed
}

func extension(name string, m proto.Message) *core.TypedExtensionConfig {
	return &core.TypedExtensionConfig{Name: name, TypedConfig: mustPack(m)}
}
