package redis

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission"
)

// Run talks to Redis until ctx ends, and then disconnects. Leases that still exist last until they
// expire. Run is called once and returns nil.
func (s *Store) Run(ctx context.Context) error {
	listening := make(chan struct{})
	listenCtx, stop := context.WithCancel(ctx)
	go func() {
		defer close(listening)
		s.receiveEvents(listenCtx)
	}()
	for ctx.Err() == nil {
		if pause := s.rejoin(ctx); pause > 0 {
			sleep(ctx, pause)
			continue
		}
		err := s.serve(ctx)
		if err != nil && ctx.Err() == nil {
			s.markUnavailable(err)
		}
		s.wasShared, s.resumeAt = true, 0
		if !errors.Is(err, errEpoch) {
			sleep(ctx, probeEvery)
		}
	}
	stop()
	s.disconnect()
	<-listening
	return nil
}

// serve makes syncs while Redis answers. It returns nil when ctx has ended, or when another
// goroutine has found that Redis does not answer.
func (s *Store) serve(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
		if !s.isShared() {
			return nil
		}
		if err := s.sendHeartbeat(ctx); err != nil {
			return err
		}
		if err := s.sync(ctx); err != nil {
			return err
		}
		if s.hasWork() {
			s.wakeRun()
		}
		timer.Reset(time.Until(s.nextHeartbeat))
	}
}

func (s *Store) isShared() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shared
}

// hasWork reports whether another sync is due at once.
func (s *Store) hasWork() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls) > 0 || len(s.changes) > 0 || len(s.unreported) > 0
}

// sendHeartbeat tells the other gateways that this one is live, learns how many are, and renews
// leases, each when it is due.
func (s *Store) sendHeartbeat(ctx context.Context) error {
	now := time.Now()
	if !now.Before(s.nextRenewal) {
		s.nextRenewal = now.Add(s.cfg.Lease / 5)
		s.renewLeases()
	}
	if now.Before(s.nextHeartbeat) {
		return nil
	}
	s.nextHeartbeat = now.Add(heartbeatEvery)
	s.mu.Lock()
	args := []any{s.prefix, s.cfg.Gateway, s.epoch, s.writes, aliveFor.Milliseconds()}
	asked := s.servedQueriesLocked(now)
	s.mu.Unlock()
	r, err := s.runTimed(ctx, heartbeatScript, s.cfg.Timeout, appendServedQueries(args, asked))
	if err != nil {
		return err
	}
	if r.status != "ok" {
		return statusError(r)
	}
	gateways, wait, version, served, writes := r.number(), r.number(), r.text(), r.numbers(), r.number()
	if r.err != nil {
		return r.err
	}
	if wait > 0 {
		return statusError(reply{status: "wait"})
	}
	s.mu.Lock()
	s.writes = writes
	s.status.Gateways = max(int(gateways), 1)
	stale := s.cfg.Refresh != nil && version != s.version
	s.mu.Unlock()
	s.reportServed(asked, served)
	if stale {
		return s.refresh(ctx, 2*s.cfg.Timeout)
	}
	return nil
}

// rejoin brings the store and this process to the same state, after which claims are sent again. It
// returns how long to wait before the next attempt; 0 means success.
func (s *Store) rejoin(ctx context.Context) time.Duration {
	wait, err := s.join(ctx)
	if err == nil && wait == 0 {
		return 0
	}
	if err != nil && ctx.Err() == nil {
		s.markUnavailable(err)
	}
	if err != nil {
		s.resumeAt = 0
	}
	if err != nil || wait > probeEvery {
		return probeEvery
	}
	return wait
}

func (s *Store) join(ctx context.Context) (time.Duration, error) {
	s.mu.Lock()
	known, seen, notAfter := s.epoch, s.writes, s.notAfter
	fresh := known == "" && len(s.live) == 0 && len(s.tasks) == 0
	returning := 0
	if s.wasShared {
		returning = s.status.Gateways
	}
	s.mu.Unlock()
	args := []any{s.prefix, s.cfg.Gateway, known, seen, boolArg(fresh), aliveFor.Milliseconds(), returning, s.resumeAt,
		s.cfg.Lease.Milliseconds()}
	r, err := s.runTimed(ctx, joinScript, BackgroundTimeout(s.cfg.Timeout), args)
	if err != nil {
		return 0, err
	}
	epoch, wait, returnAt, gateways, version, writes := r.text(), r.number(), r.number(), r.number(), r.text(), r.number()
	if r.err != nil {
		return 0, r.err
	}
	s.resumeAt = returnAt
	// A sync that was sent before and got no answer must not run after what is sent now. A clock
	// that was put back is not waited for.
	if still := micros(notAfter - r.now); still >= 0 && still < 2*BackgroundTimeout(s.cfg.Timeout) {
		return still + time.Millisecond, nil
	}
	s.prepareReports(epoch, writes, max(int(gateways), 1))
	if s.cfg.Refresh != nil && version != s.currentVersion() {
		if err := s.refresh(ctx, BackgroundTimeout(s.cfg.Timeout)); err != nil {
			return 0, err
		}
	}
	// Else the store would be lost again by the next heartbeat, and again each second. A gateway
	// that stays alone knows the number of gateways and the limits by now.
	if err := s.answersInTime(ctx); err != nil {
		return 0, err
	}
	return s.reportAndResume(ctx, micros(wait))
}

// reportAndResume reports everything to the store. When the moment is near, it makes claims wait
// for the store, so that this gateway admits nothing that the store does not know.
func (s *Store) reportAndResume(ctx context.Context, wait time.Duration) (time.Duration, error) {
	if soon := wait - s.cfg.Timeout; soon > 0 {
		return soon, s.flush(ctx)
	}
	s.mu.Lock()
	s.resuming = true
	s.mu.Unlock()
	began := time.Now()
	if err := s.flush(ctx); err != nil {
		return 0, err
	}
	sleep(ctx, wait-time.Since(began))
	s.startSharing()
	return 0, nil
}

func (s *Store) currentVersion() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// prepareReports prepares what to report: all live leases and the undoing of claims without an
// answer. To a store that has lost its state it also reports the buckets and the tasks.
func (s *Store) prepareReports(epoch string, writes int64, gateways int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A store that was emptied does not know the other gateways yet. Until claims are sent again,
	// the larger number is the safe one.
	s.status.Gateways = max(s.status.Gateways, gateways)
	if epoch != s.epoch && s.epoch != "" {
		s.restoreLevelsLocked()
	}
	s.epoch, s.writes = epoch, writes
	for id, claim := range s.unanswered {
		s.changes = append(s.changes, change{kind: leaseEnded, claim: claim, tokens: claim.Tokens, requests: 1})
		delete(s.unanswered, id)
	}
	maps.Copy(s.unreported, s.live)
}

// restoreLevelsLocked is for a store that has lost its state. The levels of buckets come first, so
// that what is owed is taken from them. Leases that have ended since an older snapshot end again.
// The old state may have counted the last batch; the new one counts it in any case.
func (s *Store) restoreLevelsLocked() {
	var first []change
	now := time.Now()
	for name, l := range s.levels {
		if l.at(now) < l.size {
			first = append(first, change{kind: bucketLevel, bucket: name, level: l})
		}
	}
	for _, e := range s.ended {
		first = append(first, e.change())
	}
	s.ended = nil // until the store has taken them
	s.changes = append(append(first, s.batch.changes...), s.changes...)
	s.batch = batch{}
	maps.Copy(s.unreported, s.tasks)
}

// startSharing makes claims go to Redis again.
func (s *Store) startSharing() {
	s.mu.Lock()
	s.setSharedLocked(true)
	if s.wasShared {
		s.returnedAt = time.Now()
	}
	gateways, subscriber := s.status.Gateways, s.subscriber
	waiting := slices.Collect(maps.Keys(s.served))
	s.mu.Unlock()
	s.cfg.Log.Info("Redis connected, limits shared by all gateways", zap.Int("gateways", gateways))
	if subscriber == nil {
		return
	}
	for _, model := range waiting { // their events of the outage were missed
		subscriber.CapacityFreed(model)
	}
}

// disconnect answers all calls, reports what is left, and disconnects.
func (s *Store) disconnect() {
	s.mu.Lock()
	calls, was := s.calls, s.shared
	s.calls, s.resuming = nil, false
	if was {
		s.setSharedLocked(false)
	}
	s.mu.Unlock()
	for _, c := range calls {
		c.finish(admission.Unavailable)
	}
	if was {
		ctx, cancel := context.WithTimeout(context.Background(), BackgroundTimeout(s.cfg.Timeout))
		defer cancel()
		_ = s.flush(ctx) // leases that could not be reported expire
		_ = s.redis.ZRem(ctx, s.prefix+"gateways", s.cfg.Gateway).Err()
	}
	if err := s.redis.Close(); err != nil {
		s.cfg.Log.Warn("Redis connection not closed cleanly", zap.Error(err))
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
