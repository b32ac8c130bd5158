package kubernetes

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// maxWriters is how many writers run at the same time.
	maxWriters = 32
	// roundLimit is how long a round of the leader waits for its writers.
	roundLimit = time.Second
)

// write makes what one object or one model needs. soon is true if it must run again soon.
type write func(context.Context) (soon bool, err error)

// written is how a write has ended.
type written struct {
	soon bool
	err  error
}

// writers run the writes of the leader by their names. A write that an admission webhook holds up
// goes on while the others run in later rounds. The same write never runs twice at the same time.
type writers struct {
	// allowed reports whether a write may start.
	allowed func() bool
	// late is called when a write has ended after its round.
	late  func()
	slots chan struct{}
	all   sync.WaitGroup

	mu sync.Mutex
	// running holds the writes that run. results holds how writes have ended last. Guarded by mu.
	running map[string]bool
	results map[string]written
}

func newWriters(allowed func() bool, late func()) *writers {
	return &writers{allowed: allowed, late: late, slots: make(chan struct{}, maxWriters), running: map[string]bool{}, results: map[string]written{}}
}

// run runs the writes of a round, except those that run already. It returns when they have ended,
// after roundLimit at the latest, with how these writes and the running ones have ended last.
func (w *writers) run(ctx context.Context, writes map[string]write) map[string]written {
	round, leave := context.WithTimeout(ctx, roundLimit)
	defer leave()
	ended := make(chan struct{}, len(writes))
	started := 0
	for _, name := range w.waiting(writes) {
		if !w.begin(round, name) {
			break
		}
		started++
		w.all.Go(func() {
			soon, err := writes[name](ctx)
			w.end(name, written{soon, err})
			isLate := round.Err() != nil
			ended <- struct{}{}
			if isLate {
				w.late()
			}
		})
	}
	for range started {
		select {
		case <-ended:
		case <-round.Done():
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.results, func(name string, _ written) bool { return writes[name] == nil && !w.running[name] })
	return maps.Clone(w.results)
}

// waiting returns the names of the writes that do not run. Those that have failed come last, so
// that they never take all places.
func (w *writers) waiting(writes map[string]write) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	failed := map[string]int{}
	for name := range writes {
		if w.results[name].err != nil {
			failed[name] = 1
		}
		if !w.running[name] {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(failed[a]-failed[b], cmp.Compare(a, b)) })
	return names
}

// begin waits for a place for a write. It returns false if the round is over.
func (w *writers) begin(round context.Context, name string) bool {
	select {
	case w.slots <- struct{}{}:
	case <-round.Done():
		return false
	}
	if !w.allowed() {
		<-w.slots
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[name] = true
	return true
}

func (w *writers) end(name string, how written) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, name)
	w.results[name] = how
	<-w.slots
}
