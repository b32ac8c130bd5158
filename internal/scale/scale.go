// Package scale decides how many replicas a model has: from none on the first request to none when nobody has asked for a while, and
// between the bounds as many as the requests of the moment need.
//
// There is one Scaler, and it alone writes the numbers; the launchers make them true. A number is a wish and not a command: asking twice for
// a replica starts one, so a hundred requests for a model without replicas start it once.
//
// Out at once: when requests wait, there are to be as many replicas as those that run and wait need. In late: a replica goes when fewer
// have been enough for the whole cooldown, and the last ones when nobody has asked for that long. So load that comes and goes
// faster than the cooldown moves nothing.
package scale

import (
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
}

// Config is what a Scaler works with.
type Config struct {
	// Load of a model now.
	Load func(model string) Load
	// Apply is called without a lock when a number has changed; it asks Desired.
	Apply func()
	// Look is how often idleness is looked for; 0 means 30 s. A model with a shorter cooldown is looked at twice in that.
	Look time.Duration
	// Log hears of changes; nil: nobody does.
	Log *zap.Logger
}

const (
	defaultCooldown = 5 * time.Minute
	defaultLook     = 30 * time.Second
	// shortestLook bounds how often short cooldowns make it look.
	shortestLook = 100 * time.Millisecond
	// unknownPerReplica is what a replica is taken to work on at once when its engine does not say.
	unknownPerReplica = 8
)

// Scaler holds the numbers. Make one with New; its methods are safe for concurrent use.
type Scaler struct {
	config Config
	// wake has a token when somebody waits for a model.
	wake chan struct{}

	mu sync.Mutex
	// models by name; guarded by mu
	models map[string]*state
	// found is how many replicas there were of before a restart; guarded by mu
	found map[string]int
}

// state is one model's.
type state struct {
	Model
	desired int
	// admitted is Load.Admitted at the last look.
	admitted uint64
	// since is when fewer than desired were first seen to be enough, zero while they are not; peak is the most that was needed since.
	since time.Time
	peak  int
}

// New returns a Scaler of no models.
func New(c Config) *Scaler {
	if c.Look <= 0 {
		c.Look = defaultLook
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	return &Scaler{config: c, wake: make(chan struct{}, 1), models: map[string]*state{}}
}

// Adopt tells how many replicas of each model run already, from before a restart: they stay until they have been idle. Call it before
// the first Set.
func (s *Scaler) Adopt(found map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found = maps.Clone(found)
}

// Set says which models there are. One that is new begins with its least number, or with what Adopt found.
func (s *Scaler) Set(models map[string]Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, m := range models {
		st := s.models[name]
		if st == nil {
			st = &state{desired: s.found[name]}
			s.models[name] = st
		}
		if m.Cooldown <= 0 {
			m.Cooldown = defaultCooldown
		}
		m.Max = max(m.Max, m.Min)
		st.Model = m
		st.desired = min(max(st.desired, m.Min), m.Max)
	}
	maps.DeleteFunc(s.models, func(name string, _ *state) bool { _, ok := models[name]; return !ok })
	s.found = nil
	s.signal()
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
func (s *Scaler) Demand(model string) {
	s.mu.Lock()
	st := s.models[model]
	scalable := st != nil && st.desired < st.Max
	s.mu.Unlock()
	if scalable {
		s.signal()
	}
}

func (s *Scaler) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run looks at all models whenever somebody waits, and now and then, until ctx ends.
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
		changed, next := s.look(time.Now())
		if changed {
			s.config.Apply()
		}
		timer.Reset(next)
	}
}

// look brings all numbers up to date and says whether one has changed, and when to look again.
func (s *Scaler) look(now time.Time) (changed bool, next time.Duration) {
	next = s.config.Look
	s.mu.Lock()
	names := slices.Sorted(maps.Keys(s.models))
	s.mu.Unlock()
	for _, name := range names {
		load := s.config.Load(name) // without the lock: it takes others
		s.mu.Lock()
		if st := s.models[name]; st != nil {
			before := st.desired
			st.follow(load, now)
			if st.Min < st.Max {
				next = min(next, max(st.Cooldown/2, shortestLook))
			}
			if st.desired != before {
				changed = true
				s.config.Log.Info("scaled", zap.String("model", name), zap.Int("from", before), zap.Int("to", st.desired),
					zap.Int("running", load.Running), zap.Int("queued", load.Queued))
			}
		}
		s.mu.Unlock()
	}
	return changed, next
}

// follow moves desired to what the load needs.
func (st *state) follow(l Load, now time.Time) {
	need := st.need(l)
	st.admitted = l.Admitted
	if need >= st.desired {
		st.desired, st.since, st.peak = need, time.Time{}, 0
		return
	}
	if st.peak = max(st.peak, need); st.since.IsZero() {
		st.since = now
	}
	if now.Sub(st.since) >= st.Cooldown {
		st.desired, st.since, st.peak = st.peak, time.Time{}, 0
	}
}

// need is how many replicas the load needs now.
func (st *state) need(l Load) int {
	per := l.PerReplica
	if per <= 0 {
		per = unknownPerReplica
	}
	busy := l.Running + l.Queued
	need := (busy + per - 1) / per
	if l.Queued == 0 {
		need = min(need, max(st.desired, 1)) // nobody waits, so there are enough
	}
	if need == 0 && l.Admitted != st.admitted {
		need = 1 // somebody came and went
	}
	return min(max(need, st.Min), st.Max)
}
