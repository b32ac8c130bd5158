// Package scale decides how many replicas a model shall have, between the model's bounds. The
// gateway runs one Scaler, and its launchers start and stop replicas accordingly.
//
// The Scaler is the only writer of the desired numbers. A number is a state and not a command: a
// hundred requests for a model without replicas set the number to one.
//
// A number rises at once: when requests wait, it becomes what the running and waiting requests
// need. As long as nobody knows how many requests a replica handles at once, and none is ready to
// tell, it becomes one. A model with a Target also rises before requests wait (target.go). A number
// falls late: when fewer replicas were enough during the whole cooldown, and to zero when there was
// no request for that time. Load that changes faster than the cooldown therefore changes nothing.
//
// Nothing counts how many replicas start. What a load needs is a number of replicas in all, and it
// stays the same while replicas start.
package scale

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/predict"
)

// Model holds the bounds of a model.
type Model struct {
	// Min and Max are the bounds of the number of replicas.
	Min, Max int
	// Cooldown is how long fewer replicas must be enough before the number falls. 0 means 5
	// minutes.
	Cooldown time.Duration
	// PerReplica is how many requests one replica handles at once, as far as is known before one
	// runs. Load.PerReplica overrides it. 0 means unknown.
	PerReplica int
	// Target adds replicas before requests wait. The zero value does not.
	Target Target
}

// Load is the work that a model has at one moment.
type Load struct {
	// Running is the number of requests at replicas. Queued is the number of waiting requests.
	Running, Queued int
	// Held is how many of the waiting requests more replicas would not help, because they wait for
	// tokens of the model or for a limit of their tenant.
	Held int
	// Admitted counts all requests that were ever admitted. It reveals requests that began and
	// ended between two updates.
	Admitted uint64
	// Refused counts all requests that were ever refused at once because no replica was ready. It
	// reveals requests that want a replica and do not wait for it.
	Refused uint64
	// RefusedElsewhere has such a count for each other gateway that launches the model and is known
	// now. A gateway that was not known when the load was last read has refused nothing since.
	RefusedElsewhere map[string]uint64
	// PerReplica is how many requests one replica handles at once. 0 means unknown.
	PerReplica int
	// MaxRunning is the model's own limit of running requests. 0 means no limit.
	MaxRunning int
	// Ready is the number of replicas that are ready. Failing means that none is, and that all keep
	// failing to start.
	Ready   int
	Failing bool
	// Predicted is what was predicted for the first tokens of the requests that arrive now.
	Predicted predict.Flow
}

// Config is the configuration of a Scaler. Load and Apply are required.
type Config struct {
	// Load returns the current load of a model.
	Load func(model string) Load
	// Apply is called without a lock when a number has changed. It reads the numbers with Desired.
	Apply func()
	// Log receives the changes. Nil means no log.
	Log *zap.Logger
}

const (
	defaultCooldown = 5 * time.Minute
	// usualInterval is the time between two updates of a model. A model with a shorter cooldown is
	// updated twice per cooldown, a model with a Target each second.
	usualInterval = 30 * time.Second
	// minInterval is the shortest interval that short cooldowns can cause.
	minInterval = 100 * time.Millisecond
	// recheckDelay is the time after a change until the next update. A new replica may then tell
	// how many requests it handles at once.
	recheckDelay = time.Second
	// targetInterval is the time between two updates of a model with a Target.
	targetInterval = time.Second
	// unknownPerReplica replaces an unknown Load.PerReplica.
	unknownPerReplica = 8
)

// Scaler holds the desired numbers of replicas. Its methods may be called from any goroutine.
type Scaler struct {
	config Config
	// wake has Run look for models that are due or have demand. It has room for one element, so
	// that a send never blocks.
	wake chan struct{}

	mu sync.Mutex
	// models holds the models by name. Guarded by mu.
	models map[string]*modelState
	// found holds the numbers from Adopt of models that Set has not named yet. It is nil after
	// ForgetFound. Guarded by mu.
	found map[string]int
}

// New returns a Scaler without models. It starts nothing.
func New(c Config) *Scaler {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	return &Scaler{config: c, wake: make(chan struct{}, 1), models: map[string]*modelState{}, found: map[string]int{}}
}

// Adopt tells how many replicas exist from before a restart. They stay until the model is idle.
// Numbers of unknown models are kept until Set names the models, or until ForgetFound. A caller
// that calls Adopt after Set must apply the numbers.
func (s *Scaler) Adopt(found map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range found {
		if st := s.models[name]; st != nil {
			st.change(min(max(st.desired, n), st.Max), Found, time.Now())
		} else if s.found != nil {
			s.found[name] = n
		}
	}
}

// ForgetFound forgets the numbers from Adopt of models that Set has not named, also those of later
// calls. The caller knows all models then: a model that is new later has no replicas from before
// the restart.
func (s *Scaler) ForgetFound() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found = nil
}

// IdleModels returns the models that nobody needs and that have more replicas than Min, the longest
// idle first. A model is listed once for each replica that Evict would take from it.
func (s *Scaler) IdleModels() []string {
	now := time.Now()
	return slices.DeleteFunc(s.modelsAboveMin(), func(name string) bool {
		load := s.config.Load(name) // Load takes other locks, so mu is not held.
		s.mu.Lock()
		defer s.mu.Unlock()
		st := s.models[name]
		return st == nil || st.isNeeded(load, now)
	})
}

// modelsAboveMin returns the models that have more replicas than Min, once for each such replica.
// Those that have needed fewer for the longest time come first.
func (s *Scaler) modelsAboveMin() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, st := range s.models {
		for range st.desired - st.Min {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		x, y := s.models[a].belowSince, s.models[b].belowSince
		order := x.Compare(y)
		if x.IsZero() != y.IsZero() {
			order = -order // a model that needs all its replicas comes last, and not first
		}
		return cmp.Or(order, cmp.Compare(a, b))
	})
	return names
}

// Evict lowers a model's number by one, unless somebody needs the model or it has no more than Min
// replicas. It returns whether it did. The caller must then apply the number.
func (s *Scaler) Evict(model string) bool {
	load, now := s.config.Load(model), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.models[model]
	if st == nil || st.desired <= st.Min || st.isNeeded(load, now) {
		return false
	}
	st.change(st.desired-1, Evicted, now)
	st.forgetRequests(load) // so that none of them brings it back
	// ReportDemand ignores a request that comes after the load was read and before the change.
	// Unlike due, hasDemand outlives an update that has read its load before.
	st.hasDemand = true
	s.wakeRun()
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
		st.Model, st.due = m, time.Time{}
		if n := min(max(st.desired, m.Min), m.Max); n != st.desired {
			st.change(n, Bounds, time.Now())
		}
	}
	maps.DeleteFunc(s.models, func(name string, _ *modelState) bool { _, ok := models[name]; return !ok })
	s.wakeRun()
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
		s.wakeRun()
	}
}

func (s *Scaler) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run updates a model when a request waits for it, and each model every usualInterval, until ctx
// ends. It then returns nil.
func (s *Scaler) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
		now := time.Now()
		changed, next := s.Update(now)
		if changed {
			s.config.Apply()
		}
		timer.Reset(next.Sub(now))
	}
}

// Update updates the models that are due at now and those with demand. It returns whether a number
// has changed, and when the next model is due. Run calls it; a simulation calls it instead of Run,
// with times of its own.
func (s *Scaler) Update(now time.Time) (changed bool, next time.Time) {
	for _, name := range s.takeDue(now) {
		load := s.config.Load(name) // Load takes other locks, so mu is not held.
		if c, ok := s.updateModel(name, load, now); ok {
			changed = true
			s.config.Log.Info("model scaled", zap.String("model", name), zap.Int("from", c.From), zap.Int("to", c.To), zap.String("reason", string(c.Reason)),
				zap.Int("running", load.Running), zap.Int("queued", load.Queued), zap.Duration("predicted_ttft", meanTTFT(load.Predicted)))
		}
	}
	return changed, s.nextDue(now)
}

// updateModel updates one model, and returns the change if its number has changed.
func (s *Scaler) updateModel(name string, load Load, now time.Time) (Change, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.models[name]
	if st == nil {
		return Change{}, false
	}
	before := st.desired
	st.apply(load, now)
	st.due = now.Add(st.interval())
	if st.desired == before {
		return Change{}, false
	}
	if recheck := now.Add(recheckDelay); recheck.Before(st.due) {
		st.due = recheck
	}
	return st.last, true
}

// takeDue returns the names of the models to update, sorted, and clears their hasDemand.
func (s *Scaler) takeDue(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, st := range s.models {
		if st.hasDemand || !st.due.After(now) {
			names = append(names, name)
		}
		st.hasDemand = false
	}
	slices.Sort(names)
	return names
}

// nextDue returns when the next model is due, at most usualInterval from now.
func (s *Scaler) nextDue(now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := now.Add(usualInterval)
	for _, st := range s.models {
		if st.due.Before(next) {
			next = st.due
		}
	}
	return next
}
