package engines

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Snapshot is the whole fleet at one moment. It is immutable: readers keep it as long as they like.
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

// Set replaces what the source says. The part must not be changed afterwards. Setting what is already there changes nothing.
func (f *Fleet) Set(source string, part Part) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sources[source] = part
	next := merge(f.sources)
	old := f.current.Load()
	if next.equal(old) {
		return
	}
	next.Version = old.Version + 1
	f.current.Store(next)
	close(f.changed)
	f.changed = make(chan struct{})
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
		slices.SortFunc(m.Replicas, func(a, b Replica) int { return compareIDs(a.ID, b.ID) })
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

func (s *Snapshot) equal(o *Snapshot) bool {
	return maps.Equal(s.Names, o.Names) && maps.EqualFunc(s.Models, o.Models, func(a, b *ModelSnapshot) bool {
		return a.Name == b.Name && slices.Equal(a.Aliases, b.Aliases) && a.Task == b.Task && a.Launcher == b.Launcher &&
			a.Discovered == b.Discovered && a.Desired == b.Desired && a.Most == b.Most && slices.Equal(a.Replicas, b.Replicas)
	})
}
