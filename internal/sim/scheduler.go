package sim

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxLag is how far the batch may fall behind the clock and still catch up. Beyond it, as after a SIGSTOP or on a machine
// that is too busy, decoding goes on from now: a real engine does not make up for lost time either.
const maxLag = 100 * time.Millisecond

// sequence is one stream of tokens that the engine works on.
type sequence struct {
	prompt prompt
	limit  int // tokens to generate; 0 for what needs prefill alone, such as an embedding
	// bell is rung, without blocking, when prefilled or produced has changed. Several sequences may share one.
	bell     chan struct{}
	cutShort bool // limit is the caller's, the answer would have been longer

	prefilled atomic.Bool
	produced  atomic.Int64
	cached    int // prompt tokens found in the cache; valid once prefilled

	// Guarded by scheduler.mu.
	state                    sequenceState
	arrived, admitted, first time.Time // first: when the first token came
	slot                     int       // index in scheduler.decoding
}

type sequenceState int

const (
	isNew sequenceState = iota
	isWaiting
	isPrefilling
	isDecoding
	isOver
)

// done says that all tokens are there.
func (q *sequence) done() bool { return q.prefilled.Load() && int(q.produced.Load()) == q.limit }

func (q *sequence) ring() {
	select {
	case q.bell <- struct{}{}:
	default:
	}
}

// scheduler is the engine's batch: who holds a slot, whose prompt is being taken in, and when the next step is due. It has
// no goroutine of its own: a timer is set for the next event and only while there is one.
type scheduler struct {
	slots    int
	rate     float64 // prefill tokens a second; 0: no limit
	interval time.Duration
	slowdown float64
	kvTokens int
	observe  *metrics

	mu         sync.Mutex
	waiting    []*sequence
	prefilling []*sequence // holders of slots, first come first served; the first is being computed
	prefillEnd time.Time   // when the first is ready; zero: not begun
	decoding   []*sequence
	nextStep   time.Time
	step       time.Duration // length of the step that ends at nextStep
	held       int           // tokens of all that hold a slot
	cache      *prefixCache
	timer      *time.Timer
	due        time.Time // what the timer is set for; zero: not set
}

func newScheduler(c Config, m *metrics) *scheduler {
	return &scheduler{
		slots:    max(c.MaxNumSeqs, 1),
		rate:     c.PrefillRate,
		interval: c.TokenInterval,
		slowdown: c.BatchSlowdown,
		kvTokens: max(c.CacheTokens, 0),
		observe:  m,
		cache:    newPrefixCache(c.CacheTokens),
	}
}

// submit queues new sequences.
func (s *scheduler) submit(sequences []*sequence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, q := range sequences {
		q.state, q.arrived = isWaiting, now
	}
	s.waiting = append(s.waiting, sequences...)
	s.advanceLocked(now)
}

// leave gives up sequences that are not finished: their client has gone.
func (s *scheduler) leave(sequences []*sequence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, q := range sequences {
		s.dropLocked(q)
	}
	s.advanceLocked(now)
}

func (s *scheduler) dropLocked(q *sequence) {
	switch q.state {
	case isWaiting:
		s.waiting = remove(s.waiting, q)
	case isPrefilling:
		if s.prefilling[0] == q {
			s.prefillEnd = time.Time{}
		}
		s.prefilling = remove(s.prefilling, q)
		s.held -= q.prompt.tokens
	case isDecoding:
		s.undecodeLocked(q)
		s.held -= q.prompt.tokens + int(q.produced.Load())
	default:
		return
	}
	q.state = isOver
	s.observe.aborted.Inc()
}

// remember adds blocks to the prefix cache: those of a finished answer.
func (s *scheduler) remember(blocks []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache.put(blocks)
}

// forget empties the prefix cache.
func (s *scheduler) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache.clear()
}

// load is a picture of the scheduler at one moment.
type load struct {
	running, waiting int
	cachedTokens     int
	kvUsage          float64 // 0 … 1
}

func (s *scheduler) load() load {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := load{running: s.runningLocked(), waiting: len(s.waiting), cachedTokens: s.cache.tokens()}
	if s.kvTokens > 0 {
		l.kvUsage = min(float64(s.held)/float64(s.kvTokens), 1)
	}
	return l
}

func (s *scheduler) runningLocked() int { return len(s.prefilling) + len(s.decoding) }

func (s *scheduler) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = time.Time{}
	s.advanceLocked(time.Now())
}

// advanceLocked makes everything happen that was due by now, in order, and sets the timer for what comes next. Events
// happen at the time they were due, so a late timer does not slow the engine down.
func (s *scheduler) advanceLocked(now time.Time) {
	if len(s.decoding) > 0 && now.Sub(s.nextStep) > maxLag {
		s.nextStep = now
	}
	at := now
	for {
		s.admitLocked(at)
		prefill := len(s.prefilling) > 0 && !s.prefillEnd.After(now)
		step := len(s.decoding) > 0 && !s.nextStep.After(now)
		switch {
		case prefill && (!step || s.prefillEnd.Before(s.nextStep)):
			at = s.prefillEnd
			s.endPrefillLocked(at)
		case step:
			at = s.nextStep
			s.stepLocked(at)
		default:
			s.armLocked(now)
			return
		}
	}
}

// admitLocked fills the free slots and begins the next prefill.
func (s *scheduler) admitLocked(at time.Time) {
	for len(s.waiting) > 0 && s.runningLocked() < s.slots {
		q := s.waiting[0]
		s.waiting = slices.Delete(s.waiting, 0, 1)
		q.state, q.admitted = isPrefilling, at
		s.prefilling = append(s.prefilling, q)
		s.held += q.prompt.tokens
	}
	if len(s.prefilling) == 0 || !s.prefillEnd.IsZero() {
		return
	}
	q := s.prefilling[0]
	q.cached = s.cache.match(q.prompt)
	s.prefillEnd = at
	if s.rate > 0 {
		seconds := float64(q.prompt.tokens-q.cached) / s.rate
		s.prefillEnd = at.Add(time.Duration(seconds * float64(time.Second)))
	}
}

// endPrefillLocked moves the first prefilled sequence on. Prefill yields the first token.
func (s *scheduler) endPrefillLocked(at time.Time) {
	q := s.prefilling[0]
	s.prefilling = slices.Delete(s.prefilling, 0, 1)
	s.prefillEnd = time.Time{}
	s.cache.put(q.prompt.blocks)
	q.first = at
	s.observe.prefilled(q, at)

	first := min(q.limit, 1)
	if s.interval <= 0 {
		first = q.limit
	}
	s.held += first
	s.observe.generated.Add(float64(first))
	q.produced.Store(int64(first))
	q.prefilled.Store(true)
	if first == q.limit {
		s.finishLocked(q, at)
		return
	}
	q.state, q.slot = isDecoding, len(s.decoding)
	s.decoding = append(s.decoding, q)
	if len(s.decoding) == 1 {
		s.step = s.stepTime()
		s.nextStep = at.Add(s.step)
	}
	q.ring()
}

// stepLocked gives every decoding sequence its next token.
func (s *scheduler) stepLocked(at time.Time) {
	s.observe.stepped(len(s.decoding), s.step)
	s.held += len(s.decoding)
	for i := len(s.decoding) - 1; i >= 0; i-- { // backwards: the finished are replaced by the last
		q := s.decoding[i]
		if int(q.produced.Add(1)) < q.limit {
			q.ring()
			continue
		}
		s.undecodeLocked(q)
		s.finishLocked(q, at)
	}
	s.step = s.stepTime()
	s.nextStep = at.Add(s.step)
}

// stepTime is how long a step of the present batch takes.
func (s *scheduler) stepTime() time.Duration {
	others := float64(len(s.decoding) - 1)
	return time.Duration(float64(s.interval) * (1 + s.slowdown*others))
}

func (s *scheduler) finishLocked(q *sequence, at time.Time) {
	q.state = isOver
	s.held -= q.prompt.tokens + q.limit
	s.observe.finished(q, at)
	q.ring()
}

func (s *scheduler) undecodeLocked(q *sequence) {
	last := len(s.decoding) - 1
	s.decoding[q.slot] = s.decoding[last]
	s.decoding[q.slot].slot = q.slot
	s.decoding[last] = nil
	s.decoding = s.decoding[:last]
}

// armLocked sets the timer for the next event, and stops it when there is none.
func (s *scheduler) armLocked(now time.Time) {
	var next time.Time
	if len(s.prefilling) > 0 {
		next = s.prefillEnd
	}
	if len(s.decoding) > 0 && (next.IsZero() || s.nextStep.Before(next)) {
		next = s.nextStep
	}
	if next.Equal(s.due) {
		return
	}
	s.due = next
	switch {
	case next.IsZero():
		s.timer.Stop()
	case s.timer == nil:
		s.timer = time.AfterFunc(next.Sub(now), s.tick)
	default:
		s.timer.Reset(next.Sub(now))
	}
}

func remove(list []*sequence, q *sequence) []*sequence {
	i := slices.Index(list, q)
	return slices.Delete(list, i, i+1)
}
