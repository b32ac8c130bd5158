// Package scale decides how many replicas a model has: from none on the first request to none when nobody has asked for a while, and
// between the bounds as many as the requests of the moment need.
//
// There is one Scaler, and it alone writes the numbers; the launchers make them true. A number is a wish and not a command: asking twice for
// a replica starts one, so a hundred requests for a model without replicas start it once.
//
// Out at once: when requests wait, there are to be as many replicas as those that run and wait need; of a model without any, the first one tells
// how many that is. In late: a replica goes when fewer
// have been enough for the whole cooldown, and the last ones when nobody has asked for that long. So load that comes and goes
// faster than the cooldown moves nothing.
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

// Model says between what bounds a model may be scaled.
type Model struct {
	// Min and Max replicas.
	Min, Max int
	// Cooldown is how long fewer replicas must have been enough before one goes; 0 means 5 minutes.
	Cooldown time.Duration
}

// Load is what a model has to do at one moment.
type Load struct {
	// Running requests are at replicas, Queued ones wait.
	Running, Queued int
	// Admitted counts all that ever ran, so that one that came and went between two looks is not missed.
	Admitted uint64
	// PerReplica is how many requests one replica works on at once; 0 means unknown.
	PerReplica int
	// Most is how many the model's own limit lets run at once; 0 means any number.
	MaxRunning int
}

// Config is what a Scaler works with.
type Config struct {
	// Load of a model now.
	Load func(model string) Load
	// Apply is called without a lock when a number has changed; it asks Desired.
	Apply func()
	// Look is how often idleness is looked for; 0 means 30 s. A model with a shorter cooldown is looked at twice in that.
	Interval time.Duration
	// Log hears of changes; nil: nobody does.
	Log *zap.Logger
}

const (
	defaultCooldown = 5 * time.Minute
	defaultInterval = 30 * time.Second
	// shortestLook bounds how often short cooldowns make it look.
	minInterval = 100 * time.Millisecond
	// againSoon is how long after a change a model is looked at anew: its replicas may now say what they work on at once.
	recheckDelay = time.Second
	// unknownPerReplica is what a replica is taken to work on at once when its engine does not say.
	unknownPerReplica = 8
)

// Scaler holds the numbers. Make one with New; its methods are safe for concurrent use.
type Scaler struct {
	config Config
	// wake has a token when somebody waits for a model, reset one when the models are others.
	demandSignal, modelsSignal chan struct{}

	mu sync.Mutex
	// models by name; guarded by mu
	models map[string]*modelState
	// found is how many replicas there were of before a restart; guarded by mu
	found map[string]int
}

// state is one model's.
type modelState struct {
	Model
	desired int
	// asked: somebody waits, and it has not been looked at since.
	hasDemand bool
	// admitted is Load.Admitted at the last look.
	admitted uint64
	// since is when fewer than desired were first seen to be enough, zero while they are not; peak is the most that was needed since.
	belowSince time.Time
	peak       int
}

// New returns a Scaler of no models.
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

// Adopt tells how many replicas of some models run already, from before a restart: they stay until they have been idle. For models that
// are not known yet it holds until they are. Whoever calls it later than that has the number applied.
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

// Idle lists the models that nobody uses and that have more replicas than they must, the one that has been so for longest first.
func (s *Scaler) IdleModels() []string {
	var idle []string
	for _, name := range s.modelsAboveMin() {
		if load := s.config.Load(name); load.Running+load.Queued == 0 { // without the lock: it takes others
			idle = append(idle, name)
		}
	}
	return idle
}

// spare lists the models that have more replicas than they must, those first that have needed fewer for longest.
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

// Evict takes one replica off a model, unless somebody uses it by now or it has no more than it must. It says whether it did; then the number
// is to be applied.
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
	s.config.Log.Info("evicted", zap.String("model", model), zap.Int("to", st.desired))
	return true
}

// Set says which models there are. One that is new begins with its least number, or with what Adopt found.
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

// Desired is how many replicas the model is to have; 0 for an unknown one.
func (s *Scaler) Desired(model string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.models[model]; st != nil {
		return st.desired
	}
	return 0
}

// Demand tells that a request waits for the model. It is quick.
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

// Run looks at a model whenever somebody waits for it, and at all of them now and then, until ctx ends.
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

// look brings the numbers of all models, or of those that somebody asked for, up to date. It says whether one has changed, and when to look
// at all of them again.
func (s *Scaler) update(now time.Time, all bool) (changed bool, next time.Duration) {
	next = s.config.Interval
	for _, name := range s.takeDue(all) {
		load := s.config.Load(name) // without the lock: it takes others
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
			s.config.Log.Info("scaled", zap.String("model", name), zap.Int("from", before), zap.Int("to", after),
				zap.Int("running", load.Running), zap.Int("queued", load.Queued))
		}
	}
	return changed, next
}

// due lists the models to look at, in the order of their names.
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

// follow moves desired to what the load needs.
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

// need is how many replicas the load needs now.
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
		need = min(need, 1) // when there is one, it may say
	}
	if l.Queued == 0 {
		need = min(need, max(st.desired, 1)) // nobody waits, so there are enough
	}
	if need == 0 && l.Admitted != st.admitted {
		need = min(1, st.desired) // somebody came and went
	}
	return min(max(need, st.Min), st.Max)
}
