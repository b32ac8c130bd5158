// Package scale decides how many replicas a model shall have, between the model's bounds. The
// gateway runs one Scaler, and its launchers start and stop replicas accordingly.
//
// The Scaler is the only writer of the desired numbers. A number is a state and not a command: a
// hundred requests for a model without replicas set the number to one.
//
// A number rises at once: when requests wait, it becomes what the running and waiting requests
// need. For a model without replicas it becomes one, because the replica may tell how many requests
// it handles at once. A number falls late: when fewer replicas were enough during the whole
// cooldown, and to zero when there was no request for that time. Load that changes faster than the
// cooldown therefore changes nothing.
package scale

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Model holds the bounds of a model.
type Model struct {
	// Min and Max are the bounds of the number of replicas.
	Min, Max int
	// Cooldown is how long fewer replicas must be enough before the number falls. 0 means 5
	// minutes.
	Cooldown time.Duration
}

// Load is the work that a model has at one moment.
type Load struct {
	// Running is the number of requests at replicas. Queued is the number of waiting requests.
	Running, Queued int
	// Admitted counts all requests that were ever admitted. It reveals requests that began and
	// ended between two updates.
	Admitted uint64
	// PerReplica is how many requests one replica handles at once. 0 means unknown.
	PerReplica int
	// MaxRunning is the model's own limit of running requests. 0 means no limit.
	MaxRunning int
}

// Config is the configuration of a Scaler. Load and Apply are required.
type Config struct {
	// Load returns the current load of a model.
	Load func(model string) Load
	// Apply is called without a lock when a number has changed. It reads the numbers with Desired.
	Apply func()
	// Interval is the time between two updates of all models. 0 means 30 s. A model with a shorter
	// cooldown is updated twice per cooldown.
	Interval time.Duration
	// Log receives the changes. Nil means no log.
	Log *zap.Logger
}

const (
	defaultCooldown = 5 * time.Minute
	defaultInterval = 30 * time.Second
	// minInterval is the shortest interval that short cooldowns can cause.
	minInterval = 100 * time.Millisecond
	// recheckDelay is the time after a change until the next update. A new replica may then tell
	// how many requests it handles at once.
	recheckDelay = time.Second
	// unknownPerReplica replaces an unknown Load.PerReplica.
	unknownPerReplica = 8
)

// Scaler holds the desired numbers of replicas. Its methods may be called from any goroutine.
type Scaler struct {
	config Config
	// demandSignal wakes Run for models with demand, modelsSignal for all models. Their capacity is
	// 1.
	demandSignal, modelsSignal chan struct{}

	mu sync.Mutex
	// models holds the models by name. Guarded by mu.
	models map[string]*modelState
	// found holds the numbers from Adopt of models that Set has not named yet. Guarded by mu.
	found map[string]int
}

// modelState is the state of one model. Scaler.mu guards it.
type modelState struct {
	Model
	desired int
	// hasDemand is true if a request waits and the model was not updated since.
	hasDemand bool
	// admitted is Load.Admitted at the last update.
	admitted uint64
	// belowSince is since when fewer than desired replicas are enough, or the zero time if they are
	// not. peak is the largest number that was needed since.
	belowSince time.Time
	peak       int
}

// New returns a Scaler without models. It starts nothing.
func New(c Config) *Scaler {
	if c.Interval <= 0 {
		c.Interval = defaultInterval
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	return &Scaler{config: c, demandSignal: make(chan struct{}, 1), modelsSignal: make(chan struct{}, 1), models: map[string]*modelState{},
		found: map[string]int{}}
}

// Adopt tells how many replicas exist from before a restart. They stay until the model is idle.
// Numbers of unknown models are kept until Set names the models. A caller that calls Adopt after
// Set must apply the numbers.
func (s *Scaler) Adopt(found map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range found {
		if st := s.models[name]; st != nil {
			st.desired = min(max(st.desired, n), st.Max)
		} else {
			s.found[name] = n
		}
	}
}

// IdleModels returns the models that have no requests and more replicas than Min, the longest idle
// first.
func (s *Scaler) IdleModels() []string {
	var idle []string
	for _, name := range s.modelsAboveMin() {
		// Load takes other locks, so mu is not held.
		if load := s.config.Load(name); load.Running+load.Queued == 0 {
			idle = append(idle, name)
		}
	}
	return idle
}

// modelsAboveMin returns the models that have more replicas than Min. Those that have needed fewer
// for the longest time come first.
func (s *Scaler) modelsAboveMin() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, st := range s.models {
		if st.desired > st.Min {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		x, y := s.models[a].belowSince, s.models[b].belowSince
		if x.IsZero() != y.IsZero() {
			return cmp.Or(boolToInt(x.IsZero())-boolToInt(y.IsZero()), cmp.Compare(a, b))
		}
		return cmp.Or(x.Compare(y), cmp.Compare(a, b))
	})
	return names
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Evict lowers a model's number by one, unless the model has requests or no more than Min replicas.
// It returns whether it did. The caller must then apply the number.
func (s *Scaler) Evict(model string) bool {
	load := s.config.Load(model)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.models[model]
	if st == nil || st.desired <= st.Min || load.Running+load.Queued > 0 {
		return false
	}
	st.desired--
	st.admitted, st.belowSince, st.peak = load.Admitted, time.Time{}, 0
	s.config.Log.Info("replica evicted", zap.String("model", model), zap.Int("to", st.desired))
	return true
}

// Set replaces the models. A new model starts with Min, or with the number from Adopt.
func (s *Scaler) Set(models map[string]Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, m := range models {
		st := s.models[name]
		if st == nil {
			st = &modelState{desired: s.found[name]}
			s.models[name] = st
			delete(s.found, name)
		}
		if m.Cooldown <= 0 {
			m.Cooldown = defaultCooldown
		}
		m.Max = max(m.Max, m.Min)
		st.Model = m
		st.desired = min(max(st.desired, m.Min), m.Max)
	}
	maps.DeleteFunc(s.models, func(name string, _ *modelState) bool { _, ok := models[name]; return !ok })
	signal(s.modelsSignal)
}

// Desired returns the desired number of replicas, or 0 for an unknown model.
func (s *Scaler) Desired(model string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.models[model]; st != nil {
		return st.desired
	}
	return 0
}

// ReportDemand tells that a request waits for the model. It does not block.
func (s *Scaler) ReportDemand(model string) {
	s.mu.Lock()
	st := s.models[model]
	scalable := st != nil && st.desired < st.Max
	if scalable {
		st.hasDemand = true
	}
	s.mu.Unlock()
	if scalable {
		signal(s.demandSignal)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run updates a model when a request waits for it, and all models every Interval, until ctx ends.
// It then returns nil.
func (s *Scaler) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		all := true
		select {
		case <-ctx.Done():
			return nil
		case <-s.demandSignal:
			all = false
		case <-s.modelsSignal:
		case <-timer.C:
		}
		changed, next := s.update(time.Now(), all)
		if changed {
			s.config.Apply()
		}
		if all || changed {
			timer.Reset(next)
		}
	}
}

// update updates the numbers of all models, or of those with demand. It returns whether a number
// has changed, and when to update all models again.
func (s *Scaler) update(now time.Time, all bool) (changed bool, next time.Duration) {
	next = s.config.Interval
	for _, name := range s.takeDue(all) {
		load := s.config.Load(name) // Load takes other locks, so mu is not held.
		s.mu.Lock()
		st := s.models[name]
		if st == nil {
			s.mu.Unlock()
			continue
		}
		before := st.desired
		st.apply(load, now)
		after := st.desired
		if st.Min < st.Max {
			next = min(next, max(st.Cooldown/2, minInterval))
		}
		s.mu.Unlock()
		if after != before {
			changed, next = true, min(next, recheckDelay)
			s.config.Log.Info("model scaled", zap.String("model", name), zap.Int("from", before), zap.Int("to", after),
				zap.Int("running", load.Running), zap.Int("queued", load.Queued))
		}
	}
	return changed, next
}

// takeDue returns the names of the models to update, sorted, and clears their hasDemand.
func (s *Scaler) takeDue(all bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, st := range s.models {
		if all || st.hasDemand {
			names = append(names, name)
		}
		st.hasDemand = false
	}
	slices.Sort(names)
	return names
}

// apply changes the desired number for the load.
func (st *modelState) apply(l Load, now time.Time) {
	need := st.needed(l)
	st.admitted = l.Admitted
	if need >= st.desired {
		st.desired, st.belowSince, st.peak = need, time.Time{}, 0
		return
	}
	if st.peak = max(st.peak, need); st.belowSince.IsZero() {
		st.belowSince = now
	}
	if now.Sub(st.belowSince) >= st.Cooldown {
		st.desired, st.belowSince, st.peak = st.peak, time.Time{}, 0
	}
}

// needed returns how many replicas the load needs now.
func (st *modelState) needed(l Load) int {
	per := l.PerReplica
	if per <= 0 {
		per = unknownPerReplica
	}
	busy := l.Running + l.Queued
	if l.MaxRunning > 0 {
		busy = min(busy, max(l.MaxRunning, l.Running))
	}
	need := (busy + per - 1) / per
	if l.PerReplica <= 0 && st.desired == 0 {
		need = min(need, 1) // The first replica may tell how many requests it handles.
	}
	if l.Queued == 0 {
		need = min(need, max(st.desired, 1)) // No request waits, so the current number is enough.
	}
	if need == 0 && l.Admitted != st.admitted {
		need = min(1, st.desired) // A request has come and gone since the last update.
	}
	return min(max(need, st.Min), st.Max)
}
