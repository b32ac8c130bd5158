// Package keys keeps the API keys that operators make while the gateway runs. Package
// internal/gateway runs a Store and tells package authz of every change. Only hashes are stored: in
// the state directory, or in Redis for all gateways that share it.
package keys

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
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
	// Created is when the key was made. Expires is when it ends; zero: it does not end.
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"`
}

// MaxKeys is the number of keys that a store may have.
const MaxKeys = 10_000

// ErrFull means that the store has MaxKeys keys.
var ErrFull = errors.New("there are 10000 keys already: revoke those that are not used")

// Backend stores keys by their ids.
type Backend interface {
	// Load returns all keys.
	Load(ctx context.Context) ([]Key, error)
	// Add stores a key.
	Add(ctx context.Context, k Key) error
	// Remove removes a key and reports whether it was there.
	Remove(ctx context.Context, id string) (bool, error)
}

// interval is how often a Store looks for changes of other gateways.
const interval = 500 * time.Millisecond

// Store has the keys of a Backend as they were a moment ago. Its methods are safe for concurrent
// use. While the backend fails, the keys of before stay.
type Store struct {
	backend Backend
	apply   func([]Key)
	log     *zap.Logger

	mu sync.Mutex
	// keys are those that apply was told, sorted by time; fault is why they cannot be read.
	// Guarded by mu.
	keys  []Key
	fault error
}

// New returns a Store that tells apply of all keys whenever they change. It reads nothing yet.
func New(b Backend, apply func([]Key), log *zap.Logger) *Store {
	return &Store{backend: b, apply: apply, log: log}
}

// List returns the keys, the oldest first.
func (s *Store) List() []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.keys)
}

// Add stores a key, which is good at this gateway at once and at others within a second. The error
// may be ErrFull.
func (s *Store) Add(ctx context.Context, k Key) error {
	if len(s.List()) >= MaxKeys {
		return ErrFull
	}
	if err := s.backend.Add(ctx, k); err != nil {
		return err
	}
	return s.Read(ctx)
}

// Remove removes a key and reports whether it was there.
func (s *Store) Remove(ctx context.Context, id string) (bool, error) {
	found, err := s.backend.Remove(ctx, id)
	if err != nil {
		return false, err
	}
	return found, s.Read(ctx)
}

// Read reads the keys and tells of a change.
func (s *Store) Read(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.backend.Load(ctx)
	if err != nil {
		if s.fault == nil && ctx.Err() == nil {
			s.log.Error("keys of run time not read, those of before stay", zap.Error(err))
		}
		s.fault = err
		return err
	}
	s.fault = nil
	slices.SortFunc(all, func(a, b Key) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	if !reflect.DeepEqual(all, s.keys) {
		s.keys = all
		s.apply(slices.Clone(all))
	}
	return nil
}

// Run follows the changes of other gateways until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		_ = s.Read(ctx) // the next try is soon
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
