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
	// maxWriters is how many writes run at the same time, and maxRetries how many of those that
	// have failed.
	maxWriters = 32
	maxRetries = maxWriters / 2
	// roundLimit is how long a round of the leader waits for its writers.
	roundLimit = time.Second
)

// write makes what one object or one model needs. soon is true if it must run again soon.
type write func(context.Context) (soon bool, err error)

// written is how and when a write has ended.
type written struct {
	soon bool
	err  error
	at   time.Time
}

// writers run the writes of the leader by their names. A write that an admission webhook holds up
// goes on while the others run in later rounds. The same write never runs twice at the same time.
// Writes that have failed never take all places, so a new one need not wait for them to fail again.
type writers struct {
	// allowed reports whether a write may start.
	allowed func() bool
	// late is called when a write has ended after its round.
	late func()
	// slots are the places of all writes, and retries those of writes that have failed.
	slots, retries chan struct{}
	all            sync.WaitGroup

	mu sync.Mutex
	// running holds the writes that run. results holds how writes have ended last. Guarded by mu.
	running map[string]bool
	results map[string]written
}

func newWriters(allowed func() bool, late func()) *writers {
	return &writers{allowed: allowed, late: late, slots: make(chan struct{}, maxWriters), retries: make(chan struct{}, maxRetries),
		running: map[string]bool{}, results: map[string]written{}}
}

// run runs the writes of a round, except those that run already. It returns when they have ended,
// after roundLimit at the latest, with how these writes and the running ones have ended last.
func (w *writers) run(ctx context.Context, writes map[string]write) map[string]written {
	round, leave := context.WithTimeout(ctx, roundLimit)
	defer leave()
	ended := make(chan struct{}, len(writes))
	started := 0
	for _, name := range w.waiting(writes) {
		places, ok := w.begin(round, name)
		if !ok {
			break
		}
		started++
		w.all.Go(func() {
			soon, err := writes[name](ctx)
			w.end(name, written{soon, err, time.Now()}, places)
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

// waiting returns the names of the writes that do not run. Those that have failed come last, and
// those that have ended longest ago first.
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
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(failed[a]-failed[b], w.results[a].at.Compare(w.results[b].at), cmp.Compare(a, b))
	})
	return names
}

// begin waits for the places that a write takes until end. It returns false if the round is over.
func (w *writers) begin(round context.Context, name string) (places []chan struct{}, ok bool) {
	w.mu.Lock()
	needed := []chan struct{}{w.slots}
	if w.results[name].err != nil {
		needed = []chan struct{}{w.retries, w.slots}
	}
	w.mu.Unlock()
	for _, place := range needed {
		select {
		case place <- struct{}{}:
			places = append(places, place)
		case <-round.Done():
			giveBack(places)
			return nil, false
		}
	}
	if !w.allowed() {
		giveBack(places)
		return nil, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[name] = true
	return places, true
}

func giveBack(places []chan struct{}) {
	for _, place := range places {
		<-place
	}
}

func (w *writers) end(name string, how written, places []chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, name)
	w.results[name] = how
	giveBack(places)
}
