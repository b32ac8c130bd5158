// Package keys keeps the API keys that operators make while the gateway runs. Package
// internal/gateway runs a Store and tells package authz of every change. Only hashes are stored: in
// the state directory, or in Redis for all gateways that share it.
package keys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/beat"
)

// Key is one key. The key itself is not in it.
type Key struct {
	// ID is a part of the key that is not confidential.
	ID string `json:"id"`
	// Hash is "sha256:" and the hex digits of the SHA-256 of the key.
	Hash string `json:"hash"`
	// Tenant is the name of the tenant, Name what operators call the key; it may be empty.
	Tenant string `json:"tenant"`
	Name   string `json:"name,omitempty"`
	// Models are the models and pools that the key may use, of those of its tenant. Empty: all.
	Models []string `json:"models,omitempty"`
	// Limits are those of the key, beside those of its tenant.
	Limits Limits `json:"limits,omitzero"`
	// Budgets are those of the key, beside those of its tenant.
	Budgets []Budget `json:"budgets,omitempty"`
	// Created is when the key was made. Expires is when it ends; zero: it does not end.
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"`
}

// Limits are the limits of one key over all models. 0 is no limit.
type Limits struct {
	RequestsPerMinute    int `json:"requests_per_minute,omitempty"`
	TokensPerMinute      int `json:"tokens_per_minute,omitempty"`
	MaxConcurrentStreams int `json:"max_concurrent_streams,omitempty"`
}

// Budget is what a key may use in a day or month, in tokens or in the currency of the prices.
type Budget struct {
	// Per is day or month, Of is tokens or cost.
	Per string `json:"per"`
	Of  string `json:"of"`
	// Soft is warned about, and Hard refused. 0: not so.
	Soft float64 `json:"soft,omitempty"`
	Hard float64 `json:"hard,omitempty"`
}

// MaxKeys is the number of keys that a store may have.
const MaxKeys = 10_000

// ErrFull means that the store has MaxKeys keys.
var ErrFull = errors.New("there are 10000 keys already: revoke those that are not used")

// Backend stores keys by their ids.
type Backend interface {
	// Load returns all keys. While they do not change, it may return the same slice again. The
	// caller must not change it. With an error *Damaged it returns the keys that can be read.
	Load(ctx context.Context) ([]Key, error)
	// Add stores a key.
	Add(ctx context.Context, k Key) error
	// Remove removes a key and reports whether it was there.
	Remove(ctx context.Context, id string) (bool, error)
	// LoadUses returns when keys were last used, by the names of the keys.
	LoadUses(ctx context.Context) (map[string]time.Time, error)
	// SaveUses stores when keys were last used. Of two uses of a key the later one stays, and of
	// all keys the maxUses that were used last.
	SaveUses(ctx context.Context, uses map[string]time.Time) error
}

// maxUses bounds the keys whose last use is stored: those of run time, and as many of the file.
const maxUses = 2 * MaxKeys

// interval is how often a Store looks for changes of other gateways.
const interval = 500 * time.Millisecond

// Config is what New needs.
type Config struct {
	Backend Backend
	// Apply is told of all keys when they are first read, and whenever they change. A lock is held:
	// it must not call the Store.
	Apply func([]Key)
	// Used returns when each key was last used at this gateway, to the minute, by the names of the
	// keys. nil: no use is stored.
	Used func() map[string]time.Time
	Log  *zap.Logger
}

// Store has the keys of a Backend as they were a moment ago. Its methods are safe for concurrent
// use. While the backend fails, the keys of before stay.
type Store struct {
	Config

	// reading is held while the backend is asked, so that an older answer never follows a newer
	// one. It is taken before mu.
	reading sync.Mutex
	// unanswered gets the answer of a Load that load has not waited for; nil: there is none.
	// Guarded by reading.
	unanswered chan loadResult

	mu sync.Mutex
	// keys are those that apply was told, sorted by time; read says that they were read once, and
	// fault why they cannot be read now. Guarded by mu.
	keys  []Key
	read  bool
	fault error
	// damaged says which keys cannot be read although the others can; guarded by mu.
	damaged error
	// loaded is what the backend returned last, nil if it is not in force; guarded by mu.
	loaded []Key

	uses uses
}

// New returns a Store. It reads nothing yet.
func New(c Config) *Store { return &Store{Config: c} }

// List returns the keys, the oldest first.
func (s *Store) List() []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.keys)
}

// Fault returns why the keys could not be read the last time, and whether they have been read
// before. A nil error means that they were read, and an error *Damaged that all but some were.
func (s *Store) Fault() (read bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		return s.read, s.damaged
	}
	return s.read, s.fault
}

// Add stores a key, which is good at this gateway at once and at others within a second. The error
// may be ErrFull.
func (s *Store) Add(ctx context.Context, k Key) error {
	if len(s.List()) >= MaxKeys {
		return ErrFull
	}
	return s.change(ctx, func() error { return s.Backend.Add(ctx, k) }, func(all []Key) []Key { return append(all, k) })
}

// Remove removes a key and reports whether it was there.
func (s *Store) Remove(ctx context.Context, id string) (bool, error) {
	found := false
	err := s.change(ctx, func() (err error) {
		found, err = s.Backend.Remove(ctx, id)
		return err
	}, func(all []Key) []Key {
		return slices.DeleteFunc(all, func(k Key) bool { return k.ID == id })
	})
	return found, err
}

// change changes the backend, and puts the change in force also if the keys cannot be read then.
func (s *Store) change(ctx context.Context, stored func() error, change func([]Key) []Key) error {
	err := s.store(stored, change)
	if err == nil {
		_ = s.Read(ctx) // it logs why it fails
	}
	return err
}

// store is change without the reading. No reading that began before may end after it.
func (s *Store) store(stored func() error, change func([]Key) []Key) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	if err := stored(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = nil
	if s.read { // else the first reading finds the change
		s.keys = change(slices.Clone(s.keys))
		s.Apply(slices.Clone(s.keys))
	}
	return nil
}

// readTimeout bounds one read of the keys.
const readTimeout = 2 * time.Second

// loadResult is what a Load has returned.
type loadResult struct {
	keys []Key
	err  error
}

// load asks the backend for the keys, for readTimeout at most. It returns when ctx ends, also while
// the backend does not. Until the backend has answered, the next calls ask it nothing: a disk may
// hang for days. s.reading is held.
func (s *Store) load(ctx context.Context) ([]Key, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	silent := func() error { return fmt.Errorf("the store of keys does not answer: %w", ctx.Err()) }
	if s.unanswered != nil {
		select {
		case <-s.unanswered: // it is old
		case <-ctx.Done():
			return nil, silent()
		}
	}
	s.unanswered = make(chan loadResult, 1)
	go func(answer chan<- loadResult) {
		all, err := s.Backend.Load(ctx)
		answer <- loadResult{all, err}
	}(s.unanswered)
	select {
	case r := <-s.unanswered:
		s.unanswered = nil
		return r.keys, r.err
	case <-ctx.Done():
		return nil, silent()
	}
}

// Read reads the keys and tells of a change.
func (s *Store) Read(ctx context.Context) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	all, err := s.load(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return err // the caller has gone, which says nothing of the keys
	}
	var damaged *Damaged
	if err != nil && !errors.As(err, &damaged) {
		if s.fault == nil {
			s.Log.Error("keys of run time not read, those of before stay", zap.Error(err))
		}
		s.fault = err
		return err
	}
	if err != nil && (s.damaged == nil || s.damaged.Error() != err.Error()) {
		s.Log.Error("keys of run time damaged, the others are in force", zap.Strings("ids", damaged.IDs))
	}
	s.fault, s.damaged = nil, err
	if s.read && len(all) > 0 && len(all) == len(s.loaded) && &all[0] == &s.loaded[0] {
		return nil // nothing has changed, and there may be thousands of keys
	}
	s.loaded, all = all, slices.Clone(all)
	slices.SortFunc(all, func(a, b Key) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	if !s.read || !reflect.DeepEqual(all, s.keys) {
		s.keys, s.read = all, true
		s.Apply(slices.Clone(all))
	}
	return nil
}

// Run follows the changes of other gateways until ctx ends, and stores the last uses of keys.
func (s *Store) Run(ctx context.Context) error {
	tick, flush := beat.After(interval), beat.After(flushInterval)
	_ = s.Read(ctx) // the next try is soon
	for {
		select {
		case <-ctx.Done():
			s.flush(context.WithoutCancel(ctx))
			return nil
		case <-tick:
			tick = beat.After(interval)
			_ = s.Read(ctx)
		case <-flush:
			flush = beat.After(flushInterval)
			s.flush(ctx)
		}
	}
}
