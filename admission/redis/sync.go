package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// errEpoch means that the store was emptied, or is not the one that this process knew.
var errEpoch = errors.New("redis: the store has lost its state")

// syncHeaderArgs is the number of arguments of a sync before the changes.
const syncHeaderArgs = 9

// sync sends waiting claims and changes to Redis, once. An error means that the store is
// unavailable; all calls were answered then.
func (s *Store) sync(ctx context.Context) error {
	parts, late, stale := s.nextClaims()
	for _, c := range late {
		c.finish(admission.Unavailable)
	}
	for _, c := range stale {
		c.finish(admission.Stale)
	}
	b := s.nextBatch()
	if len(parts) == 0 && b.seq == 0 {
		return nil
	}
	form := newClaimTable(parts)
	r, err := s.sendSync(ctx, b, form, s.cfg.Timeout)
	if err != nil {
		s.failParts(parts, admission.Unavailable, true)
		return err
	}
	if r.status == "late" || r.status == "epoch" {
		s.failParts(parts, admission.Unavailable, false)
		return statusError(r)
	}
	s.confirmBatch()
	switch r.status {
	case "ok":
		return s.applyVerdicts(parts, form, r)
	case "stale":
		err = s.refresh(ctx, 2*s.cfg.Timeout)
		reason := admission.Stale
		if err != nil {
			reason = admission.Unavailable
		}
		s.failParts(parts, reason, false)
		return err
	}
	s.failParts(parts, admission.Unavailable, false)
	return statusError(r)
}

// sendSync makes one round trip, or two if Redis' clock was not what this process thought.
func (s *Store) sendSync(ctx context.Context, b batch, f *claimTable, timeout time.Duration) (reply, error) {
	r, err := s.runTimed(ctx, syncScript, timeout, s.syncArgs(b, f, timeout))
	if err == nil && r.status == "late" {
		r, err = s.runTimed(ctx, syncScript, timeout, s.syncArgs(b, f, timeout))
	}
	if err == nil {
		s.mu.Lock()
		s.notAfter = 0 // it has run
		if r.status == "ok" {
			last := fields{rest: r.rest[min(len(r.rest), 3):]}
			s.writes = last.number()
			err = last.err
		}
		s.mu.Unlock()
	}
	return r, err
}

func (s *Store) syncArgs(b batch, f *claimTable, timeout time.Duration) []any {
	notAfter := s.deadline(timeout)
	s.mu.Lock()
	epoch, writes, version := s.epoch, s.writes, s.version
	s.mu.Unlock()
	if s.cfg.Refresh == nil {
		version = "*"
	}
	args := make([]any, 0, syncHeaderArgs+10*(len(b.changes)+f.count)+16)
	args = append(args, s.prefix, epoch, writes, notAfter, s.cfg.Gateway, b.seq, version, s.cfg.Lease.Milliseconds(), 0)
	now := time.Now()
	for _, c := range b.changes {
		args = c.args(args, now)
	}
	args[syncHeaderArgs-1] = len(args) + 1
	return f.args(args)
}

// flush sends changes until none is left. No caller waits for it.
func (s *Store) flush(ctx context.Context) error {
	for s.hasChanges() {
		r, err := s.sendSync(ctx, s.nextBatch(), newClaimTable(nil), BackgroundTimeout(s.cfg.Timeout))
		if err != nil {
			return err
		}
		if r.status != "ok" {
			return statusError(r)
		}
		s.confirmBatch()
	}
	return nil
}

// applyVerdicts reads the answers to the claims and passes them on.
func (s *Store) applyVerdicts(parts []callPart, f *claimTable, r reply) error {
	if f.count == 0 {
		return nil
	}
	answers, tasks, levels := r.numbers(), foundTasks(&r.fields), r.numbers()
	if r.err != nil || len(answers) != verdictSize*f.count || len(levels) != len(f.models)+2*len(f.tenants) {
		s.failParts(parts, admission.Unavailable, true)
		return errReply
	}
	s.recordLevels(f, levels)
	index := 0
	for _, p := range parts {
		for _, claim := range p.claims {
			v := verdict(claim, answers[index*verdictSize:])
			if t, ok := tasks[index]; ok {
				t.Tenant = claim.Tenant
				v.Task = &t
			}
			p.call.addVerdict(v)
			index++
		}
		s.recordGrants(p)
		s.finishIfComplete(p.call)
	}
	return nil
}

// verdictSize is the number of integers in one verdict.
const verdictSize = 7

func verdict(c admission.Claim, n []int64) admission.Verdict {
	return admission.Verdict{
		Reason: admission.Reason(n[0]), Wait: micros(n[1]), ModelInUse: int(n[2]),
		Quota: admission.Quota{
			Requests: allowance(clampLimit(int64(c.TenantLimits.RequestsPerMinute)), n[3], n[4]),
			Tokens:   allowance(clampLimit(int64(c.TenantLimits.TokensPerMinute)), n[5], n[6]),
		},
	}
}

func allowance(limit, remaining, reset int64) admission.Allowance {
	if limit == 0 {
		return admission.Allowance{}
	}
	return admission.Allowance{Limit: limit, Remaining: remaining, Reset: micros(reset)}
}

// foundTasks reads the tasks of earlier calls, by the index of the claim that found them.
func foundTasks(f *fields) map[int]admission.Task {
	tasks := map[int]admission.Task{}
	all := fields{rest: f.list()}
	for len(all.rest) > 0 {
		e := fields{rest: all.list()}
		index, id, model, tokens, left := e.number(), e.text(), e.text(), e.number(), e.number()
		tasks[int(index)] = admission.Task{ID: id, Model: model, Tokens: tokens, Expires: time.Now().Add(time.Duration(left) * time.Millisecond)}
		f.err = cmp.Or(f.err, e.err)
	}
	return tasks
}

// recordGrants records the leases that a part of a call was granted.
func (s *Store) recordGrants(p callPart) {
	s.mu.Lock()
	defer s.mu.Unlock()
	verdicts := p.call.verdicts[len(p.call.verdicts)-len(p.claims):]
	for i, claim := range p.claims {
		s.recordClaimLocked(claim, verdicts[i].Reason == admission.Granted && claim.UnderTask == "")
		if verdicts[i].Reason != admission.Granted || verdicts[i].Task != nil {
			continue
		}
		delete(s.unanswered, claim.ID)
		h := &heldLease{claim: claim, inStore: true}
		if claim.Task == nil {
			s.live[claim.ID] = h
		} else {
			now := time.Now()
			h.expires, h.until = now.Add(claim.Task.Lease), now.Add(claim.Task.Lifetime)
			s.tasks[claim.ID] = h
		}
	}
}

// recordLevels records how full the buckets are.
func (s *Store) recordLevels(f *claimTable, levels []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	see := func(kind byte, name string, size, tokens int64) {
		if size > 0 {
			s.levels[bucketName{kind, name}] = level{size, tokens, now}
		}
	}
	for i, m := range f.models {
		see('m', m.name, m.value("max_tokens_per_minute", modelLimits), levels[i])
	}
	for i, t := range f.tenants {
		see('t', t.name, t.value("tokens_per_minute", tenantLimits), levels[len(f.models)+2*i])
		see('r', t.name, t.value("requests_per_minute", tenantLimits), levels[len(f.models)+2*i+1])
	}
}

// refresh loads the limits again. Callers may wait meanwhile.
func (s *Store) refresh(ctx context.Context, timeout time.Duration) error {
	if s.cfg.Refresh == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	version, err := s.cfg.Refresh(ctx)
	if err != nil {
		return fmt.Errorf("redis: cannot load changed limits: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
	return nil
}

// statusError returns why a script did nothing.
func statusError(r reply) error {
	switch r.status {
	case "epoch":
		return errEpoch
	case "wait":
		return errors.New("redis: nothing is granted until the gateways have reported their leases")
	case "late":
		return errors.New("redis: the script ran too late: the clock jumped, or Redis is slow")
	}
	return errReply
}
