package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

var (
	// errNoAnswer means that a script was sent and got no answer, so it may have run.
	errNoAnswer = fmt.Errorf("redis: no answer: %w", admission.ErrUnavailable)
	// errOver means that the task was the tenant's and has ended.
	errOver = fmt.Errorf("redis: the task has ended: %w", admission.ErrUnknownTask)
)

// ownedTask names a task of a tenant.
type ownedTask struct{ tenant, id string }

// Task implements admission.Shared.
func (s *Store) Task(ctx context.Context, tenant, id string) (admission.Task, error) {
	if t, ok := s.localTask(tenant, id); ok {
		return t, nil
	}
	return s.runTaskScript(ctx, "get", []any{tenant, id, 0})
}

// FindTask implements admission.Shared.
func (s *Store) FindTask(ctx context.Context, tenant, key string) (admission.Task, error) {
	return s.runTaskScript(ctx, "find", []any{tenant, key, 0})
}

// EndTask implements admission.Shared. A call that got no answer may have ended the task. A
// repeated call at the same gateway then succeeds.
func (s *Store) EndTask(ctx context.Context, tenant, id string, declared int64) error {
	if t, ok := s.localTask(tenant, id); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.tasks[id] == nil {
			return admission.ErrUnknownTask
		}
		back := int64(0)
		if declared >= 0 {
			back = t.Tokens - declared
		}
		s.releaseLocked(id, back, false)
		return nil
	}
	t, err := s.runTaskScript(ctx, "end", []any{tenant, id, min(max(declared, -1), maxTokens)})
	s.mu.Lock()
	defer s.mu.Unlock()
	name := ownedTask{tenant, id}
	if errors.Is(err, errNoAnswer) {
		s.doubted[name] = time.Now()
	}
	_, doubted := s.doubted[name]
	if err != nil && !(doubted && errors.Is(err, errOver)) {
		return err
	}
	delete(s.doubted, name)
	if err == nil {
		s.rememberEndLocked(admission.Claim{ID: id, Model: t.Model, Tenant: tenant, Task: new(admission.TaskClaim)})
	}
	delete(s.tasks, id)
	delete(s.unreported, id)
	return nil
}

// RenewTask implements admission.Shared.
func (s *Store) RenewTask(ctx context.Context, tenant, id string, lease time.Duration) (admission.Task, error) {
	t, local := s.localTask(tenant, id)
	if local {
		if t.Expires = time.Now().Add(lease); t.Expires.After(t.Until) {
			t.Expires = t.Until
		}
	} else {
		var err error
		if t, err = s.runTaskScript(ctx, "renew", []any{tenant, id, max(lease.Milliseconds(), 1)}); err != nil {
			return t, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.tasks[id]; h != nil {
		h.expires = t.Expires
		if !h.inStore {
			s.unreported[id] = h // a report with the old expiry may be on its way
		}
	}
	return t, nil
}

// localTask returns a live task that was not reported to the store yet.
func (s *Store) localTask(tenant, id string) (admission.Task, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.tasks[id]
	if h == nil || h.inStore || h.claim.Tenant != tenant || !time.Now().Before(h.expires) {
		return admission.Task{}, false
	}
	return admission.Task{ID: id, Model: h.claim.Model, Tenant: tenant, Tokens: h.claim.Tokens, Expires: h.expires, Until: h.until}, true
}

// justReturned reports whether this gateway shares again since a short time. Others may come later.
func (s *Store) justReturned() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.returnedAt) < aliveFor
}

// runTaskScript asks the store about a task of a tenant. args are the tenant, the id (to find it:
// its key) and a number.
func (s *Store) runTaskScript(ctx context.Context, verb string, args []any) (admission.Task, error) {
	if !s.isShared() {
		return admission.Task{}, admission.ErrUnavailable
	}
	s.mu.Lock()
	epoch, writes := s.epoch, s.writes
	s.mu.Unlock()
	r, err := s.runTimed(ctx, taskScript, s.cfg.Timeout, append([]any{s.prefix, s.cfg.Gateway, writes, verb}, args...))
	if err != nil {
		if ctx.Err() == nil {
			s.markUnavailable(err)
		}
		return admission.Task{}, errNoAnswer
	}
	switch r.status {
	case "absent":
		if s.justReturned() { // another gateway may still have to report the task
			return admission.Task{}, admission.ErrUnavailable
		}
		return admission.Task{}, admission.ErrUnknownTask
	case "unknown":
		return admission.Task{}, admission.ErrUnknownTask
	case "over":
		return admission.Task{}, errOver
	case "ended":
		return admission.Task{}, admission.ErrTaskEnded
	case "ok":
	default:
		return admission.Task{}, admission.ErrUnavailable
	}
	model, tokens, left, id, written := r.text(), r.number(), r.number(), r.text(), r.number()
	if r.err != nil {
		return admission.Task{}, admission.ErrUnavailable
	}
	s.mu.Lock()
	if epoch == s.epoch { // else the number is of another epoch
		s.writes = max(s.writes, written)
	}
	s.mu.Unlock()
	tenant, _ := args[0].(string)
	return admission.Task{ID: id, Model: model, Tenant: tenant, Tokens: tokens,
		Expires: time.Now().Add(time.Duration(left) * time.Millisecond)}, nil
}
