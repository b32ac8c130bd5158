package engines

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Snapshot is the whole fleet at one moment. It is immutable: readers keep it as long as they like.
//
// A model that has not changed is the same pointer in the next one.
type Snapshot struct {
	// Version counts the changes of the fleet from 1.
	Version uint64
	// Models by name.
	Models map[string]*ModelSnapshot
	// Names maps every alias to the name of its model. A model's own name is not in it.
	Names map[string]string
}

// ModelSnapshot is one model with its replicas, ordered by id.
type ModelSnapshot struct {
	Model
	Replicas []Replica
}

// Resolve finds a model by name or alias.
func (s *Snapshot) Resolve(name string) (*ModelSnapshot, bool) {
	if m, ok := s.Models[name]; ok {
		return m, true
	}
	m, ok := s.Models[s.Names[name]]
	return m, ok
}

// Ready lists the model's replicas that may serve.
func (m *ModelSnapshot) Ready() []Replica {
	ready := make([]Replica, 0, len(m.Replicas))
	for _, r := range m.Replicas {
		if r.State == Ready {
			ready = append(ready, r)
		}
	}
	return ready
}

// Fleet is what exists: every model with its replicas. Each source (a launcher, the file) owns its own part and sets it as a
// whole, level-triggered; readers take the Snapshot without a lock.
type Fleet struct {
	current atomic.Pointer[Snapshot]

	mu sync.Mutex
	// sources by name; guarded by mu
	sources map[string]Part
	// changed is closed at the next change and replaced; guarded by mu
	changed chan struct{}
}

// Part is what one source says of the fleet. The first source (by name) that brings a model defines it; replicas of the same
// model from several sources add up. A discovered model cannot take a name that is another model's alias.
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

// Snapshot returns the fleet as it is now.
func (f *Fleet) Snapshot() *Snapshot { return f.current.Load() }

// Watch returns the current snapshot and a channel that is closed when a newer one exists.
func (f *Fleet) Watch() (*Snapshot, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current.Load(), f.changed
}

// Set replaces what the source says. The part must not be changed afterwards. Setting what is already there changes nothing. Models of which
// nothing has changed keep their *ModelSnapshot, so that readers see by the pointer what is new. The work is that for the models that have
// changed, and a comparison of the part with the one before.
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

// mostTouched is how many models are looked for one by one. Beyond it the fleet is merged anew.
const mostTouched = 8

// touched lists the models that may not be the same in both parts. False: they are too many, or models came, went or changed their names.
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
	return models, len(models) <= mostTouched
}

// middle leaves out what two lists have in common at their beginning and at their end.
func middle[T any](a, b []T, same func(a, b *T) bool) (restA, restB []T) {
	for len(a) > 0 && len(b) > 0 && same(&a[0], &b[0]) {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && same(&a[len(a)-1], &b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a, b
}

// patchLocked is the old snapshot with these models made anew; the old one itself if they are as they were.
func (f *Fleet) patchLocked(old *Snapshot, models map[string]struct{}) *Snapshot {
	next := old
	for name := range models {
		before := old.Models[name]
		if before == nil {
			continue // replicas of a model that nobody brings
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

// modelLocked merges one model that some source brings.
func (f *Fleet) modelLocked(name string) *ModelSnapshot {
	m := new(ModelSnapshot)
	found := false
	for _, source := range slices.Sorted(maps.Keys(f.sources)) {
		part := f.sources[source]
		for i := 0; !found && i < len(part.Models); i++ {
			if p := &part.Models[i]; p.Name == name && !(p.Discovered && f.aliasLocked(name)) {
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

// aliasLocked says whether some model has the name as an alias.
func (f *Fleet) aliasLocked(name string) bool {
	for _, part := range f.sources {
		if slices.ContainsFunc(part.Models, func(m Model) bool { return slices.Contains(m.Aliases, name) }) {
			return true
		}
	}
	return false
}

func merge(sources map[string]Part) *Snapshot {
	s := &Snapshot{Models: map[string]*ModelSnapshot{}, Names: map[string]string{}}
	names := slices.Sorted(maps.Keys(sources))
	named := map[string]bool{} // by the file, as aliases
	for _, part := range sources {
		for _, m := range part.Models {
			for _, alias := range m.Aliases {
				named[alias] = true
			}
		}
	}
	for _, source := range names {
		for _, m := range sources[source].Models {
			if _, taken := s.Models[m.Name]; !taken && !(m.Discovered && named[m.Name]) {
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

// compareIDs orders replica ids so that chat-2 comes before chat-10.
func compareIDs(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	if a < b {
		return -1
	} else if a > b {
		return 1
	}
	return 0
}

func (m *ModelSnapshot) sort() {
	slices.SortFunc(m.Replicas, func(a, b Replica) int { return compareIDs(a.ID, b.ID) })
}

// share is s with everything from old that is the same in both; old itself if that is all.
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
		a.Discovered == b.Discovered && a.Desired == b.Desired && a.Most == b.Most
}
