package sim

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// hasTokens returns how many tokens of a prompt an idle engine finds in its memory.
func (s *testScheduler) hasTokens(p prompt) int {
	if s.memory == nil {
		return 0
	}
	return len(s.memory.match(p.blocks)) * blockSize
}

// serve runs one request to its end and returns its sequence.
func (s *testScheduler) serve(p prompt, limit int) *sequence {
	q := s.add(p, limit)
	s.tokenTimes(q)
	return q
}

// TestB1_AMatchSkipsFullBlocksOnly: the last token of a prompt is always computed, and blocks
// behind a gap are useless.
func TestB1_AMatchSkipsFullBlocksOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestScheduler(Config{CacheTokens: 100 * blockSize})
		sea := strings.Repeat(" sea", 3*blockSize)
		for _, c := range []struct {
			name string
			text string
			want int
		}{
			{"a first prompt", sea, 0},
			{"the same prompt again", sea, 2 * blockSize},
			{"one token more", sea + " x", 3 * blockSize},
			{"another word at the end of the first block", strings.Repeat(" sea", blockSize-1) + " x" + sea, 0},
			{"another prompt", strings.Repeat(" hill", 3*blockSize), 0},
			{"no prompt", "", 0},
		} {
			if q := s.serve(textPrompt(c.text), 1); q.cached != c.want {
				t.Errorf("%s: %d tokens cached, want %d", c.name, q.cached, c.want)
			}
		}
	})
}

// TestB1_TheLeastRecentlyUsedBlockLeavesFirst: of one prompt the end leaves first.
func TestB1_TheLeastRecentlyUsedBlockLeavesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestScheduler(Config{CacheTokens: 4 * blockSize})
		older, younger := distinctPrompt("old", 2), distinctPrompt("young", 2)
		s.serve(older, 0)
		s.serve(younger, 0)
		s.serve(distinctPrompt("old", 2), 0) // finds one block, and computes the other again
		s.serve(distinctPrompt("new", 1), 0)
		if got := s.hasTokens(older); got != 2*blockSize {
			t.Errorf("%d tokens left of the prompt that was used last", got)
		}
		if got := s.hasTokens(younger); got != blockSize {
			t.Errorf("%d tokens left of the prompt that was used longest ago, want its beginning", got)
		}
		huge := distinctPrompt("huge", 50)
		s.serve(huge, 0)
		if got := s.hasTokens(huge); got != 4*blockSize {
			t.Errorf("%d tokens cached of a prompt larger than the memory, want all of the memory", got)
		}
		none := newTestScheduler(Config{CacheTokens: -1})
		none.serve(older, 0)
		if q := none.serve(older, 0); q.cached != 0 {
			t.Errorf("%d tokens cached without a cache", q.cached)
		}
	})
}

// TestB1_RunningRequestsKeepTheirBlocks: nothing evicts a block that a running request holds. A
// request for which there is no memory waits.
func TestB1_RunningRequestsKeepTheirBlocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := millisecondConfig
		c.CacheTokens = 4 * blockSize
		s := newTestScheduler(c)
		sea, hill := distinctPrompt("sea", 2), distinctPrompt("hill", 3)
		first := s.add(sea, 10) // decodes from 32 ms to 122 ms
		second := s.add(hill, 1)
		time.Sleep(100 * time.Millisecond)
		if l := s.snapshot(); l.running != 1 || l.waiting != 1 || l.kvUsage != 0.75 {
			t.Errorf("while the first runs: %+v", l)
		}
		compareTimes(t, "the second", s.tokenTimes(second), []int{122 + 48})
		if !first.complete() {
			t.Error("the first did not finish")
		}
		// The second needed 3 of the 4 blocks, so only the beginning of the first is left.
		if got := s.hasTokens(sea); got != blockSize {
			t.Errorf("%d tokens left of the first prompt, want one block", got)
		}
	})
}

// TestB1_AnswersAreCached: the next turn of a conversation finds the prompt and the answer of the
// turn before, except for the last token of the answer.
func TestB1_AnswersAreCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, interval := range []time.Duration{0, time.Millisecond} {
			s := newTestScheduler(Config{TokenInterval: interval})
			ask := textPrompt(strings.Repeat(" ask", 20))
			reply := func(n int) string { return strings.Repeat(" reply", n) }
			q := &sequence{prompt: ask, limit: 29, changed: make(chan struct{}, 1), text: reply}
			s.submit([]*sequence{q})
			s.tokenTimes(q)
			next := func(answer int) prompt { return textPrompt(strings.Repeat(" ask", 20) + reply(answer)) }
			if got := s.hasTokens(next(29)); got != 48 {
				t.Errorf("interval %v: %d tokens of 49 cached, want 48", interval, got)
			}
			s = newTestScheduler(Config{TokenInterval: interval})
			q = &sequence{prompt: ask, limit: 28, changed: make(chan struct{}, 1), text: reply}
			s.submit([]*sequence{q})
			s.tokenTimes(q)
			if got := s.hasTokens(next(28)); got != 32 {
				t.Errorf("interval %v: %d tokens of 48 cached, want 32: the last was never read", interval, got)
			}
		}
	})
}

// TestB1_APreemptedRequestGoesOn: when the memory is full, the request that was admitted last gives
// its memory back, and later continues without losing a token.
func TestB1_APreemptedRequestGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := millisecondConfig
		c.CacheTokens = 4 * blockSize
		s := newTestScheduler(c)
		first, second := s.add(prompt{tokens: 24}, 20), s.add(prompt{tokens: 24}, 20)
		s.tokenTimes(first)
		s.tokenTimes(second)
		if first.admission != 1 || second.admission != 3 {
			t.Errorf("admissions %d and %d: the second was not preempted in memory for one of them", first.admission, second.admission)
		}
		if got := second.produced.Load(); got != 20 || second.cached != 0 {
			t.Errorf("%d tokens after a preemption, want 20; %d cached", got, second.cached)
		}
		if l := s.snapshot(); l.running != 0 || l.waiting != 0 || l.kvUsage != 0 || s.queuedTokens != 0 {
			t.Errorf("afterwards: %+v, %d tokens queued", l, s.queuedTokens)
		}
	})
}

// TestB1_ACancelledPrefillLeavesWhatItComputed: nobody finds blocks that were never computed.
func TestB1_ACancelledPrefillLeavesWhatItComputed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestScheduler(millisecondConfig)
		sea := distinctPrompt("sea", 4)
		q := s.add(sea, 5)
		queued := s.add(distinctPrompt("hill", 2), 5)
		time.Sleep(40 * time.Millisecond)
		s.cancel([]*sequence{queued, q})
		if got := s.hasTokens(sea); got != 2*blockSize {
			t.Errorf("%d tokens cached after 40 of 64, want 32", got)
		}
		if got := s.hasTokens(distinctPrompt("hill", 2)); got != 0 {
			t.Errorf("%d tokens cached of a prompt that was never computed", got)
		}
		if l := s.snapshot(); l.kvUsage != 0 || l.cachedTokens != 2*blockSize || s.memory.unused != s.memory.capacity-2 {
			t.Errorf("afterwards: %+v, %d of %d blocks unused", l, s.memory.unused, s.memory.capacity)
		}
	})
}

// TestB1_WaitingBehindTheStep: sequences whose prefill is far away are not running, as in vLLM.
func TestB1_WaitingBehindTheStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := millisecondConfig
		c.MaxBatchedTokens = 100
		s := newTestScheduler(c)
		var last *sequence
		for range 4 {
			last = s.add(prompt{tokens: 60}, 1)
		}
		if l := s.snapshot(); l.running != 2 || l.waiting != 2 {
			t.Errorf("%+v, want two in the step of 100 tokens", l)
		}
		compareTimes(t, "the last", s.tokenTimes(last), []int{240})
	})
}

// TestB1_DecodesSlowPrefill: each decoding request lengthens a prefill.
func TestB1_DecodesSlowPrefill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := millisecondConfig
		c.PrefillSlowdown = 0.25
		s := newTestScheduler(c)
		both := []*sequence{s.add(prompt{}, 1000), s.add(prompt{}, 1000)}
		compareTimes(t, "a prefill beside two decodes", s.tokenTimes(s.add(prompt{tokens: 100}, 1)), []int{150})
		s.cancel(both)
	})
}
