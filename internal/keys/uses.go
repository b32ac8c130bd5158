package keys

import (
	"context"
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// flushInterval is how often the new uses of keys are stored. A key is stored at most once a
	// minute, because its use is known to the minute.
	flushInterval = 5 * time.Second
	// flushTimeout bounds one flush, because a stop waits for it.
	flushTimeout = time.Second
)

// uses is what a Store knows of the last uses of keys.
type uses struct {
	mu sync.Mutex
	// stored are those of this gateway that the backend has; failed says that the last flush
	// failed. Guarded by mu.
	stored map[string]time.Time
	failed bool

	// known are those of all gateways as the backend told them last; guarded by knownMu.
	knownMu sync.Mutex
	known   map[string]time.Time
}

// flush stores the uses of this gateway that are not stored yet.
func (s *Store) flush(ctx context.Context) {
	if s.Used == nil {
		return
	}
	u := &s.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	now := s.Used()
	news := maps.Clone(now)
	maps.DeleteFunc(news, func(key string, at time.Time) bool { return u.stored[key].Equal(at) })
	if len(news) == 0 {
		return
	}
	saving, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	err := s.Backend.SaveUses(saving, news)
	if err != nil && !u.failed && ctx.Err() == nil {
		s.Log.Error("last uses of keys not stored, trying again", zap.Error(err))
	}
	if u.failed = err != nil; !u.failed {
		u.stored = now
	}
}

// LastUsed returns when keys were last used at any gateway, by the names of the keys. Uses at other
// gateways are up to flushInterval old. While the backend fails, they are those that it told last.
func (s *Store) LastUsed(ctx context.Context) map[string]time.Time {
	all := s.loadUses(ctx)
	if s.Used != nil {
		merge(all, s.Used())
	}
	return all
}

// loadUses returns the uses that the backend tells, and those that it told last while it fails. A
// backend whose keys cannot be read now is not asked, so that a list does not wait in vain.
func (s *Store) loadUses(ctx context.Context) map[string]time.Time {
	s.mu.Lock()
	asks := s.fault == nil
	s.mu.Unlock()
	var all map[string]time.Time
	if asks {
		all, _ = s.Backend.LoadUses(ctx)
	}
	u := &s.uses
	u.knownMu.Lock()
	defer u.knownMu.Unlock()
	if all != nil {
		u.known = all
	}
	known := make(map[string]time.Time, len(u.known))
	maps.Copy(known, u.known)
	return known
}

// merge adds uses to all. The later use of a key stays.
func merge(all, uses map[string]time.Time) {
	for key, at := range uses {
		if at.After(all[key]) {
			all[key] = at
		}
	}
}
