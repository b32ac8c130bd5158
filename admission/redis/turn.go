package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// errEpoch means that the store was emptied, or is not what this process knew.
var errEpoch = errors.New("redis: the store has lost its state")

// headerArgs is how many arguments of a turn come before the changes.
const headerArgs = 8

// turn takes what there is to Redis, once. An error means that the store is unavailable; everybody has been answered.
func (s *Store) turn(ctx context.Context) error {
	parts, late, stale := s.takeClaims()
	for _, c := range late {
		c.finish(admission.Unavailable)
	}
	for _, c := range stale {
		c.finish(admission.Stale)
	}
	b := s.takeChanges()
	if len(parts) == 0 && b.seq == 0 {
		return nil
	}
	form := newForm(parts)
	r, err := s.sendTurn(ctx, b, form, s.cfg.Timeout)
	if err != nil {
		s.abandon(parts, admission.Unavailable, true)
		return err
	}
	if r.word == "late" || r.word == "epoch" {
		s.abandon(parts, admission.Unavailable, false)
		return wordError(r)
	}
	s.told()
	switch r.word {
	case "ok":
		return s.verdicts(parts, form, r)
	case "stale":
		err = s.refresh(ctx, 2*s.cfg.Timeout)
		reason := admission.Stale
		if err != nil {
			reason = admission.Unavailable
		}
		s.abandon(parts, reason, false)
		return err
	}
	s.abandon(parts, admission.Unavailable, false)
	return wordError(r)
}

// sendTurn makes one round trip, or two when Redis' clock was not what it seemed.
func (s *Store) sendTurn(ctx context.Context, b batch, f *form, timeout time.Duration) (reply, error) {
	r, err := s.ask(ctx, turnScript, timeout, s.turnArgs(b, f, timeout))
	if err == nil && r.word == "late" {
		r, err = s.ask(ctx, turnScript, timeout, s.turnArgs(b, f, timeout))
	}
	if err == nil {
		s.mu.Lock()
		s.notAfter = 0 // it has run
		s.mu.Unlock()
	}
	return r, err
}

func (s *Store) turnArgs(b batch, f *form, timeout time.Duration) []any {
	notAfter := s.deadline(timeout)
	s.mu.Lock()
	epoch, version := s.epoch, s.version
	s.mu.Unlock()
	if s.cfg.Refresh == nil {
		version = "*"
	}
	args := make([]any, 0, headerArgs+10*(len(b.changes)+f.count)+16)
	args = append(args, s.prefix, epoch, notAfter, s.cfg.Gateway, b.seq, version, s.cfg.Lease.Milliseconds(), 0)
	now := time.Now()
	for _, c := range b.changes {
		args = c.args(args, now)
	}
	args[headerArgs-1] = len(args) + 1
	return f.args(args)
}

// flush tells changes until none is left. Nobody waits for it.
func (s *Store) flush(ctx context.Context) error {
	for s.pending() {
		r, err := s.sendTurn(ctx, s.takeChanges(), newForm(nil), patience*s.cfg.Timeout)
		if err != nil {
			return err
		}
		if r.word != "ok" {
			return wordError(r)
		}
		s.told()
	}
	return nil
}

// verdicts reads the answers to the claims and passes them on.
func (s *Store) verdicts(parts []part, f *form, r reply) error {
	if f.count == 0 {
		return nil
	}
	answers, err := numbers(r.rest, 0)
	tasks, taskErr := foundTasks(r.rest)
	levels, levelErr := numbers(r.rest, 2)
	if err = errors.Join(err, taskErr, levelErr); err != nil || len(answers) != verdictSize*f.count ||
		len(levels) != len(f.models)+2*len(f.tenants) {
		s.abandon(parts, admission.Unavailable, true)
		return errors.Join(errReply, err)
	}
	s.seen(f, levels)
	index := 0
	for _, p := range parts {
		for _, claim := range p.claims {
			v := verdict(claim, answers[index*verdictSize:])
			if t, ok := tasks[index]; ok {
				t.Tenant = claim.Tenant
				v.Task = &t
			}
			p.call.add(v)
			index++
		}
		s.note(p)
		s.answer(p.call)
	}
	return nil
}

// verdictSize is how many numbers one verdict is.
const verdictSize = 8

func verdict(c admission.Claim, n []int64) admission.Verdict {
	return admission.Verdict{
		Reason: admission.Reason(n[0]), Wait: micros(n[1]), ModelInUse: int(n[2]), ReplicaInUse: int(n[3]),
		Quota: admission.Quota{
			Requests: allowance(bound(c.TenantLimits.RequestsPerMinute), n[4], n[5]),
			Tokens:   allowance(bound(c.TenantLimits.TokensPerMinute), n[6], n[7]),
		},
	}
}

func allowance(limit, remaining, reset int64) admission.Allowance {
	if limit == 0 {
		return admission.Allowance{}
	}
	return admission.Allowance{Limit: limit, Remaining: remaining, Reset: micros(reset)}
}

// foundTasks are the tasks of earlier calls, by the index of the claim that found them.
func foundTasks(rest []any) (map[int]admission.Task, error) {
	if len(rest) < 2 {
		return nil, errReply
	}
	list, _ := rest[1].([]any)
	tasks := map[int]admission.Task{}
	for _, entry := range list {
		e, _ := entry.([]any)
		index, err := number(e, 0)
		id, idErr := text(e, 1)
		model, modelErr := text(e, 2)
		tokens, tokensErr := number(e, 3)
		left, leftErr := number(e, 4)
		if err = errors.Join(err, idErr, modelErr, tokensErr, leftErr); err != nil {
			return nil, err
		}
		tasks[int(index)] = admission.Task{ID: id, Model: model, Tokens: tokens, Expires: time.Now().Add(time.Duration(left) * time.Millisecond)}
	}
	return tasks, nil
}

// note remembers the leases that a part of a call was granted.
func (s *Store) note(p part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	verdicts := p.call.verdicts[len(p.call.verdicts)-len(p.claims):]
	for i, claim := range p.claims {
		s.activeLocked(claim, verdicts[i].Reason == admission.Granted)
		if verdicts[i].Reason != admission.Granted || verdicts[i].Task != nil {
			continue
		}
		delete(s.lost, claim.ID)
		h := &held{claim: claim, inStore: true}
		if claim.Task == nil {
			s.live[claim.ID] = h
		} else {
			h.expires = time.Now().Add(claim.Task.Lease)
			s.tasks[claim.ID] = h
		}
	}
}

// seen remembers how full the buckets are.
func (s *Store) seen(f *form, levels []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	see := func(kind byte, name string, size, tokens int64) {
		if size > 0 {
			s.levels[bucketName{kind, name}] = level{size, tokens, now}
		}
	}
	for i, m := range f.models {
		see('m', m.name, m.tokens, levels[i])
	}
	for i, t := range f.tenants {
		see('t', t.name, t.tokens, levels[len(f.models)+2*i])
		see('r', t.name, t.requests, levels[len(f.models)+2*i+1])
	}
}

// refresh has the limits loaded again. Callers may be waiting meanwhile.
func (s *Store) refresh(ctx context.Context, timeout time.Duration) error {
	if s.cfg.Refresh == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	version, err := s.cfg.Refresh(ctx)
	if err != nil {
		return fmt.Errorf("redis: loading changed limits: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
	return nil
}

// wordError says why a script did nothing.
func wordError(r reply) error {
	switch r.word {
	case "epoch":
		return errEpoch
	case "wait":
		return errors.New("redis: the store is being filled again")
	case "late":
		return errors.New("redis: the clock jumps, or Redis is slow")
	}
	return errReply
}
