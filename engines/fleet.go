package engines

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Snapshot is an immutable view of the fleet. Readers may keep it.
//
// A model that has not changed is the same pointer in the next snapshot.
type Snapshot struct {
	// Version counts the changes of the fleet from 1.
	Version uint64
	// Models are by name.
	Models map[string]*ModelSnapshot
	// Names maps each alias to the name of its model. It does not contain the models' own names.
	Names map[string]string
}

// ModelSnapshot is one model with its replicas, in the order of their ids.
type ModelSnapshot struct {
	Model
	Replicas []Replica
}

// Resolve finds a model by its name or an alias.
func (s *Snapshot) Resolve(name string) (*ModelSnapshot, bool) {
	if m, ok := s.Models[name]; ok {
		return m, true
	}
	m, ok := s.Models[s.Names[name]]
	return m, ok
}

// Replica returns the replica with this id; nil: there is none, or m is nil. The caller must not
// change the replica.
func (m *ModelSnapshot) Replica(id string) *Replica {
	if m == nil {
		return nil
	}
	for i := range m.Replicas {
		if m.Replicas[i].ID == id {
			return &m.Replicas[i]
		}
	}
	return nil
}

// Fleet holds every model with its replicas. Each source (a launcher, the configuration) owns a
// Part and replaces it as a whole. Readers get the Snapshot without a lock.
type Fleet struct {
	current atomic.Pointer[Snapshot]

	mu sync.Mutex
	// sources are the parts by the name of their source; guarded by mu
	sources map[string]Part
	// changed is closed and replaced at each change; guarded by mu
	changed chan struct{}
}

// Part is what one source reports. If several sources report a model, the first by name defines it;
// the replicas of all sources add up. A discovered model is left out if its name is an alias of
// another model.
type Part struct {
	Models   []Model
	Replicas []Replica
}

// NewFleet returns an empty fleet.
func NewFleet() *Fleet {
	f := &Fleet{sources: map[string]Part{}, changed: make(chan struct{})}
	f.current.Store(&Snapshot{Models: map[string]*ModelSnapshot{}, Names: map[string]string{}})
	return f
}

// Snapshot returns the fleet as it is now. It takes no lock.
func (f *Fleet) Snapshot() *Snapshot { return f.current.Load() }

// Watch returns the current snapshot and a channel that is closed when a newer one exists.
func (f *Fleet) Watch() (*Snapshot, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current.Load(), f.changed
}

// Set replaces the part of a source. The caller must not change the part afterwards. Setting an
// equal part changes nothing.
//
// Models that have not changed keep their *ModelSnapshot, so that readers see by the pointer which
// have. Set compares the part with the last one and rebuilds only the models that differ, up to
// maxTouched.
func (f *Fleet) Set(source string, part Part) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.sources[source]
	f.sources[source] = part
	old := f.current.Load()
	var next *Snapshot
	if models, ok := touched(before, part); ok {
		next = f.patchLocked(old, models)
	} else {
		next = merge(f.sources).share(old)
	}
	if next == old {
		return
	}
	next.Version = old.Version + 1
	f.current.Store(next)
	close(f.changed)
	f.changed = make(chan struct{})
}

// maxTouched is how many models Set rebuilds one by one. If more differ, it rebuilds the fleet.
const maxTouched = 8

// touched returns the names of the models that may differ between both parts. It returns false if
// there are more than maxTouched, or if models came, went or changed their names.
func touched(before, after Part) (models map[string]struct{}, ok bool) {
	models = map[string]struct{}{}
	a, b := middle(before.Models, after.Models, sameModel)
	if len(a) != len(b) {
		return nil, false
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].Discovered != b[i].Discovered || !slices.Equal(a[i].Aliases, b[i].Aliases) {
			return nil, false
		}
		models[a[i].Name] = struct{}{}
	}
	c, d := middle(before.Replicas, after.Replicas, func(a, b *Replica) bool { return *a == *b })
	for i := range c {
		models[c[i].Model] = struct{}{}
	}
	for i := range d {
		models[d[i].Model] = struct{}{}
	}
	return models, len(models) <= maxTouched
}

// middle drops what two lists have in common at their beginnings and ends.
func middle[T any](a, b []T, same func(a, b *T) bool) (restA, restB []T) {
	for len(a) > 0 && len(b) > 0 && same(&a[0], &b[0]) {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && same(&a[len(a)-1], &b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a, b
}

// patchLocked returns the snapshot with these models rebuilt, or the old snapshot if they are
// equal. mu is held.
func (f *Fleet) patchLocked(old *Snapshot, models map[string]struct{}) *Snapshot {
	next := old
	for name := range models {
		before := old.Models[name]
		if before == nil {
			continue // replicas of a model that no source reports
		}
		if m := f.modelLocked(name); !m.equal(before) {
			if next == old {
				next = &Snapshot{Models: maps.Clone(old.Models), Names: old.Names}
			}
			next.Models[name] = m
		}
	}
	return next
}

// modelLocked builds a model that at least one source reports. mu is held.
func (f *Fleet) modelLocked(name string) *ModelSnapshot {
	m := new(ModelSnapshot)
	found := false
	for _, source := range slices.Sorted(maps.Keys(f.sources)) {
		part := f.sources[source]
		for i := 0; !found && i < len(part.Models); i++ {
			if p := &part.Models[i]; p.Name == name && !(p.Discovered && f.isAliasLocked(name)) {
				m.Model, found = *p, true
			}
		}
		for i := range part.Replicas {
			if part.Replicas[i].Model == name {
				m.Replicas = append(m.Replicas, part.Replicas[i])
			}
		}
	}
	m.sort()
	return m
}

// isAliasLocked reports whether a model has the name as an alias. mu is held.
func (f *Fleet) isAliasLocked(name string) bool {
	for _, part := range f.sources {
		if slices.ContainsFunc(part.Models, func(m Model) bool { return slices.Contains(m.Aliases, name) }) {
			return true
		}
	}
	return false
}

// merge builds a snapshot from all parts.
func merge(sources map[string]Part) *Snapshot {
	s := &Snapshot{Models: map[string]*ModelSnapshot{}, Names: map[string]string{}}
	names := slices.Sorted(maps.Keys(sources))
	aliases := map[string]bool{}
	for _, part := range sources {
		for _, m := range part.Models {
			for _, alias := range m.Aliases {
				aliases[alias] = true
			}
		}
	}
	for _, source := range names {
		for _, m := range sources[source].Models {
			if _, taken := s.Models[m.Name]; !taken && !(m.Discovered && aliases[m.Name]) {
				s.Models[m.Name] = &ModelSnapshot{Model: m}
			}
		}
	}
	for _, source := range names {
		for _, r := range sources[source].Replicas {
			if m, ok := s.Models[r.Model]; ok {
				m.Replicas = append(m.Replicas, r)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Models)) {
		m := s.Models[name]
		m.sort()
		for _, alias := range m.Aliases {
			if _, taken := s.Names[alias]; !taken && s.Models[alias] == nil {
				s.Names[alias] = name
			}
		}
	}
	return s
}

// sort orders the replicas by their ids so that chat-2 precedes chat-10.
func (m *ModelSnapshot) sort() {
	slices.SortFunc(m.Replicas, func(a, b Replica) int {
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), strings.Compare(a.ID, b.ID))
	})
}

// share replaces models of s by equal ones of old. If everything is equal, it returns old.
func (s *Snapshot) share(old *Snapshot) *Snapshot {
	same := len(s.Models) == len(old.Models)
	for name, m := range s.Models {
		if before := old.Models[name]; before != nil && m.equal(before) {
			s.Models[name] = before
		} else {
			same = false
		}
	}
	if maps.Equal(s.Names, old.Names) {
		s.Names = old.Names
		if same {
			return old
		}
	}
	return s
}

func (m *ModelSnapshot) equal(o *ModelSnapshot) bool {
	return sameModel(&m.Model, &o.Model) && slices.Equal(m.Replicas, o.Replicas)
}

func sameModel(a, b *Model) bool {
	return a.Name == b.Name && slices.Equal(a.Aliases, b.Aliases) && slices.Equal(a.Adapters, b.Adapters) && a.Task == b.Task && a.Launcher == b.Launcher &&
		a.Discovered == b.Discovered && a.ServedModel == b.ServedModel && a.ContextLength == b.ContextLength &&
		a.Desired == b.Desired && a.MaxReplicas == b.MaxReplicas
}
