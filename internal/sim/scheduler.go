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
	// is true. A preemption does not change it.
	cached int
	// text returns the first n tokens of the answer, as the next prompt of the conversation repeats
	// them. nil: the next prompt does not.
	text func(n int) string

	// state and the fields below are guarded by scheduler.mu.
	state sequenceState
	// arrivedAt, admittedAt and firstTokenAt are the times of the submission, of the slot and of
	// the first token.
	arrivedAt, admittedAt, firstTokenAt time.Time
	// slot is the index of the sequence in scheduler.decoding, while the sequence decodes.
	slot int
	// admission is the number of the admission that gave the sequence its slot.
	admission int
	// blocks are the blocks of memory that the sequence holds, and skipped the tokens in those that
	// it has found there. The prefill does not compute skipped tokens.
	blocks  []*block
	skipped int
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
	// prefillRate is the number of prefilled tokens per second. 0: no limit. Each sequence that
	// decodes lengthens a prefill by prefillSlowdown × its length.
	prefillRate, prefillSlowdown float64
	// batchTokens is the number of tokens in the prefill queue at which no further sequence gets a
	// slot.
	batchTokens int
	// interval is the length of a step with one sequence. Each further sequence lengthens the step
	// by slowdown × interval.
	interval time.Duration
	slowdown float64
	metrics  *metrics

	// mu guards the fields below.
	mu sync.Mutex
	// waiting are the sequences without a slot, in order of arrival.
	waiting []*sequence
	// prefilling are the sequences with a slot that are not prefilled, in order of admission. The
	// first is being prefilled.
	prefilling []*sequence
	// prefillStartAt and prefillEndAt are the times between which the first of prefilling is
	// prefilled. prefillEndAt is zero if its prefill has not started.
	prefillStartAt, prefillEndAt time.Time
	// queuedTokens is the number of tokens that the prefills of prefilling compute.
	queuedTokens int
	// decoding are the sequences that get a token with each step.
	decoding []*sequence
	// nextStepAt is the time at which the current step ends, and stepDuration the length of this
	// step.
	nextStepAt   time.Time
	stepDuration time.Duration
	// admissions counts the sequences that have got a slot.
	admissions int
	// memory is nil if it has no limit and keeps nothing.
	memory *blockPool
	// timer calls onTimer at timerAt, which is zero if the timer is not set.
	timer   *time.Timer
	timerAt time.Time
}

// newScheduler returns an idle scheduler that records into m.
func newScheduler(c Config, m *metrics) *scheduler {
	s := &scheduler{
		slots:           max(c.MaxNumSeqs, 1),
		prefillRate:     c.PrefillRate,
		prefillSlowdown: c.PrefillSlowdown,
		batchTokens:     c.MaxBatchedTokens,
		interval:        c.TokenInterval,
		slowdown:        c.BatchSlowdown,
		metrics:         m,
	}
	if c.CacheTokens > 0 {
		s.memory = newBlockPool(c.CacheTokens, c.BlockSize)
	}
	return s
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
		s.cancelLocked(q, now)
	}
	s.advanceLocked(now)
}

// cancelLocked ends one sequence, unless it is complete.
func (s *scheduler) cancelLocked(q *sequence, now time.Time) {
	switch q.state {
	case stateWaiting:
		s.waiting = remove(s.waiting, q)
	case statePrefilling, stateDecoding:
		s.leaveSlotLocked(q, now)
	default:
		return
	}
	q.state = stateDone
	s.metrics.aborted.Inc()
}

// setInterval changes the length of a step with one sequence. The present step ends now. Without an
// interval the running sequences are complete at once.
func (s *scheduler) setInterval(interval time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.interval, s.nextStepAt = interval, now
	s.advanceLocked(now)
}

// clearCache empties the prefix cache.
func (s *scheduler) clearCache() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory != nil {
		s.memory.clear()
	}
}

// loadSnapshot is the load of the scheduler at one moment.
type loadSnapshot struct {
	// running and waiting are numbers of sequences.
	running, waiting int
	cachedTokens     int
	// kvUsage is the used share of the simulated GPU memory, from 0 to 1.
	kvUsage float64
}

func (s *scheduler) snapshot() loadSnapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := loadSnapshot{running: s.runningLocked(), waiting: len(s.waiting)}
	if s.memory != nil {
		l.cachedTokens, l.kvUsage = s.memory.findableTokens(), s.memory.usage()
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

// admitLocked gives free slots to waiting sequences and starts the next prefill. As in vLLM, a
// sequence waits until the prefill queue leaves room in a step, and until there is memory.
func (s *scheduler) admitLocked(at time.Time) {
	for len(s.waiting) > 0 && s.runningLocked() < s.slots && s.queuedTokens < s.batchTokens {
		q := s.waiting[0]
		if !s.reserveLocked(q) {
			break
		}
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.admissions++
		q.state, q.admission = statePrefilling, s.admissions
		if q.admittedAt.IsZero() {
			q.admittedAt, q.cached = at, q.skipped
		}
		s.prefilling = append(s.prefilling, q)
		s.queuedTokens += q.tokens() - q.skipped
	}
	if len(s.prefilling) > 0 && s.prefillEndAt.IsZero() {
		s.prefillStartAt = at
		s.prefillEndAt = at.Add(s.prefillDuration(s.prefilling[0]))
	}
}

// prefillDuration returns the length of a prefill beside the present batch.
func (s *scheduler) prefillDuration(q *sequence) time.Duration {
	if s.prefillRate <= 0 {
		return 0
	}
	seconds := float64(q.tokens()-q.skipped) / s.prefillRate * (1 + s.prefillSlowdown*float64(len(s.decoding)))
	return time.Duration(seconds * float64(time.Second))
}

// endPrefillLocked ends the prefill of the first sequence, which also yields its next token. The
// sequence then decodes, or is complete.
func (s *scheduler) endPrefillLocked(at time.Time) {
	q := s.prefilling[0]
	s.prefilling = slices.Delete(s.prefilling, 0, 1)
	s.prefillEndAt = time.Time{}
	s.queuedTokens -= q.tokens() - q.skipped
	before := int(q.produced.Load())
	if before == 0 { // else the prefill repeats what was lost by a preemption
		q.firstTokenAt = at
		s.metrics.observePrefill(q, at)
	}
	after := min(q.limit, before+1)
	if s.interval <= 0 {
		after = q.limit
	}
	s.metrics.generatedTokens.Add(float64(after - before))
	q.produced.Store(int64(after))
	q.prefilled.Store(true)
	if after == q.limit {
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
	s.growLocked(at)
}

// stepLocked gives every decoding sequence its next token.
func (s *scheduler) stepLocked(at time.Time) {
	s.metrics.observeStep(len(s.decoding), s.stepDuration)
	for i := len(s.decoding) - 1; i >= 0; i-- { // backwards, because removal moves the last sequence to the index of the removed one
		q := s.decoding[i]
		if int(q.produced.Add(1)) < q.limit {
			q.notify()
			continue
		}
		s.removeDecodingLocked(q)
		s.finishLocked(q, at)
	}
	s.growLocked(at)
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
	computed := q.tokens()
	if q.limit > 0 {
		computed-- // the last token is never read by the engine
	}
	if s.memory != nil && s.interval <= 0 { // all tokens were generated at once, without growLocked
		q.blocks = append(q.blocks, s.memory.allocate(s.memory.blocksFor(computed)-len(q.blocks))...)
	}
	s.freeLocked(q, computed)
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
