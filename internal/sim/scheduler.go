package sim

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxLag is how far decoding may fall behind the clock and still catch up. Beyond it, as after a
// SIGSTOP or on an overloaded machine, decoding continues from now. A real engine does not catch up
// on lost time either.
const maxLag = 100 * time.Millisecond

// sequence is one stream of tokens that the engine generates.
type sequence struct {
	prompt prompt
	// limit is the number of tokens to generate. It is 0 if only a prefill is needed, as for an
	// embedding.
	limit int
	// changed receives a value, without blocking, when prefilled or produced has changed. Several
	// sequences may share the channel.
	changed chan struct{}
	// truncated tells that the limit of the request ended the answer early.
	truncated bool

	// prefilled tells that the prompt is prefilled.
	prefilled atomic.Bool
	// produced is the number of tokens generated so far.
	produced atomic.Int64
	// cached is the number of prompt tokens found in the prefix cache. It is valid once prefilled
	// is true.
	cached int

	// state and the fields below are guarded by scheduler.mu.
	state sequenceState
	// arrivedAt, admittedAt and firstTokenAt are the times of the submission, of the slot and of
	// the first token.
	arrivedAt, admittedAt, firstTokenAt time.Time
	// slot is the index of the sequence in scheduler.decoding, while the sequence decodes.
	slot int
}

// sequenceState is the state of a sequence in the scheduler.
type sequenceState int

const (
	stateNew sequenceState = iota
	stateWaiting
	statePrefilling
	stateDecoding
	stateDone
)

// complete tells whether all tokens have been generated.
func (q *sequence) complete() bool { return q.prefilled.Load() && int(q.produced.Load()) == q.limit }

// notify reports a change of the sequence without blocking.
func (q *sequence) notify() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// scheduler simulates the batch of an engine. It knows which sequences hold a slot, which prompt is
// being prefilled, and when the next step ends. It has no goroutine of its own: a timer is set for
// the next event, and only while there is one. Its methods may be called concurrently.
type scheduler struct {
	// slots is the number of sequences that run at the same time.
	slots int
	// prefillRate is the number of prefilled tokens per second. 0: no limit.
	prefillRate float64
	// interval is the length of a step with one sequence. Each further sequence lengthens the step
	// by slowdown × interval.
	interval time.Duration
	slowdown float64
	// kvTokens is the capacity of the simulated GPU memory in tokens, for kvUsage alone: it does
	// not limit the batch.
	kvTokens int
	metrics  *metrics

	// mu guards the fields below.
	mu sync.Mutex
	// waiting are the sequences without a slot, in order of arrival.
	waiting []*sequence
	// prefilling are the sequences with a slot that are not prefilled, in order of admission. The
	// first is being prefilled.
	prefilling []*sequence
	// prefillEndAt is the time at which the first of prefilling is prefilled. It is zero if its
	// prefill has not started.
	prefillEndAt time.Time
	// decoding are the sequences that get a token with each step.
	decoding []*sequence
	// nextStepAt is the time at which the current step ends, and stepDuration the length of this
	// step.
	nextStepAt   time.Time
	stepDuration time.Duration
	// heldTokens is the number of tokens of all sequences with a slot.
	heldTokens int
	cache      *prefixCache
	// timer calls onTimer at timerAt, which is zero if the timer is not set.
	timer   *time.Timer
	timerAt time.Time
}

// newScheduler returns an idle scheduler that records into m.
func newScheduler(c Config, m *metrics) *scheduler {
	return &scheduler{
		slots:       max(c.MaxNumSeqs, 1),
		prefillRate: c.PrefillRate,
		interval:    c.TokenInterval,
		slowdown:    c.BatchSlowdown,
		kvTokens:    max(c.CacheTokens, 0),
		metrics:     m,
		cache:       newPrefixCache(c.CacheTokens),
	}
}

// submit enqueues new sequences.
func (s *scheduler) submit(sequences []*sequence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, q := range sequences {
		q.state, q.arrivedAt = stateWaiting, now
	}
	s.waiting = append(s.waiting, sequences...)
	s.advanceLocked(now)
}

// cancel ends sequences that are not complete, because their client disconnected.
func (s *scheduler) cancel(sequences []*sequence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, q := range sequences {
		s.cancelLocked(q)
	}
	s.advanceLocked(now)
}

// cancelLocked ends one sequence, unless it is complete.
func (s *scheduler) cancelLocked(q *sequence) {
	switch q.state {
	case stateWaiting:
		s.waiting = remove(s.waiting, q)
	case statePrefilling:
		if s.prefilling[0] == q {
			s.prefillEndAt = time.Time{}
		}
		s.prefilling = remove(s.prefilling, q)
		s.heldTokens -= q.prompt.tokens
	case stateDecoding:
		s.removeDecodingLocked(q)
		s.heldTokens -= q.prompt.tokens + int(q.produced.Load())
	default:
		return
	}
	q.state = stateDone
	s.metrics.aborted.Inc()
}

// cacheBlocks adds blocks to the prefix cache.
func (s *scheduler) cacheBlocks(blocks []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache.add(blocks)
}

// clearCache empties the prefix cache.
func (s *scheduler) clearCache() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache.clear()
}

// loadSnapshot is the load of the scheduler at one moment.
type loadSnapshot struct {
	// running and waiting are numbers of sequences.
	running, waiting int
	cachedTokens     int
	// kvUsage is the used share of the simulated GPU memory, from 0 to 1.
	kvUsage float64
}

// snapshot returns the present load.
func (s *scheduler) snapshot() loadSnapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := loadSnapshot{running: s.runningLocked(), waiting: len(s.waiting), cachedTokens: s.cache.tokens()}
	if s.kvTokens > 0 {
		l.kvUsage = min(float64(s.heldTokens)/float64(s.kvTokens), 1)
	}
	return l
}

// runningLocked returns the number of sequences that hold a slot.
func (s *scheduler) runningLocked() int { return len(s.prefilling) + len(s.decoding) }

// onTimer processes the events that are due. The timer calls it.
func (s *scheduler) onTimer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timerAt = time.Time{}
	s.advanceLocked(time.Now())
}

// advanceLocked processes all events that were due by now, in order, and sets the timer for the
// next event. Events happen at the time they were due, so a late timer does not slow the engine
// down.
func (s *scheduler) advanceLocked(now time.Time) {
	if len(s.decoding) > 0 && now.Sub(s.nextStepAt) > maxLag {
		s.nextStepAt = now
	}
	at := now
	for {
		s.admitLocked(at)
		prefill := len(s.prefilling) > 0 && !s.prefillEndAt.After(now)
		step := len(s.decoding) > 0 && !s.nextStepAt.After(now)
		switch {
		case prefill && (!step || s.prefillEndAt.Before(s.nextStepAt)):
			at = s.prefillEndAt
			s.endPrefillLocked(at)
		case step:
			at = s.nextStepAt
			s.stepLocked(at)
		default:
			s.setTimerLocked(now)
			return
		}
	}
}

// admitLocked gives free slots to waiting sequences and starts the next prefill.
func (s *scheduler) admitLocked(at time.Time) {
	for len(s.waiting) > 0 && s.runningLocked() < s.slots {
		q := s.waiting[0]
		s.waiting = slices.Delete(s.waiting, 0, 1)
		q.state, q.admittedAt = statePrefilling, at
		s.prefilling = append(s.prefilling, q)
		s.heldTokens += q.prompt.tokens
	}
	if len(s.prefilling) == 0 || !s.prefillEndAt.IsZero() {
		return
	}
	q := s.prefilling[0]
	q.cached = s.cache.match(q.prompt)
	s.prefillEndAt = at
	if s.prefillRate > 0 {
		seconds := float64(q.prompt.tokens-q.cached) / s.prefillRate
		s.prefillEndAt = at.Add(time.Duration(seconds * float64(time.Second)))
	}
}

// endPrefillLocked ends the prefill of the first sequence, which also yields its first token. The
// sequence then decodes, or is complete.
func (s *scheduler) endPrefillLocked(at time.Time) {
	q := s.prefilling[0]
	s.prefilling = slices.Delete(s.prefilling, 0, 1)
	s.prefillEndAt = time.Time{}
	s.cache.add(q.prompt.blocks)
	q.firstTokenAt = at
	s.metrics.observePrefill(q, at)

	first := min(q.limit, 1)
	if s.interval <= 0 {
		first = q.limit
	}
	s.heldTokens += first
	s.metrics.generatedTokens.Add(float64(first))
	q.produced.Store(int64(first))
	q.prefilled.Store(true)
	if first == q.limit {
		s.finishLocked(q, at)
		return
	}
	q.state, q.slot = stateDecoding, len(s.decoding)
	s.decoding = append(s.decoding, q)
	if len(s.decoding) == 1 {
		s.stepDuration = s.nextStepDuration()
		s.nextStepAt = at.Add(s.stepDuration)
	}
	q.notify()
}

// stepLocked gives every decoding sequence its next token.
func (s *scheduler) stepLocked(at time.Time) {
	s.metrics.observeStep(len(s.decoding), s.stepDuration)
	s.heldTokens += len(s.decoding)
	for i := len(s.decoding) - 1; i >= 0; i-- { // backwards, because removal moves the last sequence to the index of the removed one
		q := s.decoding[i]
		if int(q.produced.Add(1)) < q.limit {
			q.notify()
			continue
		}
		s.removeDecodingLocked(q)
		s.finishLocked(q, at)
	}
	s.stepDuration = s.nextStepDuration()
	s.nextStepAt = at.Add(s.stepDuration)
}

// nextStepDuration returns the length of a step of the present batch.
func (s *scheduler) nextStepDuration() time.Duration {
	others := float64(len(s.decoding) - 1)
	return time.Duration(float64(s.interval) * (1 + s.slowdown*others))
}

// finishLocked ends a sequence that is complete.
func (s *scheduler) finishLocked(q *sequence, at time.Time) {
	q.state = stateDone
	s.heldTokens -= q.prompt.tokens + q.limit
	s.metrics.observeFinish(q, at)
	q.notify()
}

// removeDecodingLocked removes a sequence from decoding in constant time, by moving the last one to
// its index.
func (s *scheduler) removeDecodingLocked(q *sequence) {
	last := len(s.decoding) - 1
	s.decoding[q.slot] = s.decoding[last]
	s.decoding[q.slot].slot = q.slot
	s.decoding[last] = nil
	s.decoding = s.decoding[:last]
}

// setTimerLocked sets the timer for the next event, or stops it if there is none.
func (s *scheduler) setTimerLocked(now time.Time) {
	var next time.Time
	if len(s.prefilling) > 0 {
		next = s.prefillEndAt
	}
	if len(s.decoding) > 0 && (next.IsZero() || s.nextStepAt.Before(next)) {
		next = s.nextStepAt
	}
	if next.Equal(s.timerAt) {
		return
	}
	s.timerAt = next
	switch {
	case next.IsZero():
		s.timer.Stop()
	case s.timer == nil:
		s.timer = time.AfterFunc(next.Sub(now), s.onTimer)
	default:
		s.timer.Reset(next.Sub(now))
	}
}

// remove deletes q from list.
func remove(list []*sequence, q *sequence) []*sequence {
	i := slices.Index(list, q)
	return slices.Delete(list, i, i+1)
}
