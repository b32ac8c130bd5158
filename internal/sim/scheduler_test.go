package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testScheduler is a scheduler in simulated time.
type testScheduler struct {
	*scheduler
	start time.Time
}

func newTestScheduler(c Config) *testScheduler {
	e := New(c)
	return &testScheduler{scheduler: e.scheduler, start: time.Now()}
}

func (s *testScheduler) add(p prompt, limit int) *sequence {
	q := &sequence{prompt: p, limit: limit, changed: make(chan struct{}, 1)}
	s.submit([]*sequence{q})
	return q
}

// tokenTimes waits for the sequence and returns the time of each of its tokens, in milliseconds
// since the start. For a sequence without tokens it returns the time of the prefill.
func (s *testScheduler) tokenTimes(q *sequence) []int {
	var list []int
	now := func() int { return int(time.Since(s.start).Milliseconds()) }
	for {
		for len(list) < int(q.produced.Load()) {
			list = append(list, now())
		}
		if q.complete() {
			if q.limit == 0 {
				list = append(list, now())
			}
			return list
		}
		<-q.changed
	}
}

// delayTimer makes the timer fire d later, as if the process had been stopped.
func (s *testScheduler) delayTimer(d time.Duration) {
	s.timer.Stop()
	time.Sleep(d)
	s.onTimer()
}

// millisecondConfig prefills one token per millisecond and decodes one token per ten milliseconds.
var millisecondConfig = Config{PrefillRate: 1000, TokenInterval: 10 * time.Millisecond}

func compareTimes(t *testing.T, what string, got, want []int) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s, in ms: -want +got\n%s", what, diff)
	}
}

func TestPrefillThenDecode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestScheduler(millisecondConfig)
		q := b.add(prompt{tokens: 100}, 3)
		compareTimes(t, "tokens", b.tokenTimes(q), []int{100, 110, 120})
		if l := b.snapshot(); l.running != 0 || l.waiting != 0 || l.kvUsage != 0 {
			t.Errorf("afterwards: %+v", l)
		}
	})
}

func TestCacheShortensPrefill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestScheduler(millisecondConfig)
		b.tokenTimes(b.add(distinctPrompt("sea", 4), 0))
		if got := time.Since(b.start); got != 64*time.Millisecond {
			t.Fatalf("cold prefill of 64 tokens took %v", got)
		}
		b.start = time.Now()
		q := b.add(distinctPrompt("sea", 5), 0)
		compareTimes(t, "prefill of 80 tokens, 64 of them cached", b.tokenTimes(q), []int{16})
		if q.cached != 64 {
			t.Errorf("%d tokens cached, want 64", q.cached)
		}
		b.clearCache()
		b.start = time.Now()
		compareTimes(t, "prefill without a cache", b.tokenTimes(b.add(distinctPrompt("sea", 5), 0)), []int{80})
	})
}

func TestPrefillsRunOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestScheduler(millisecondConfig)
		first, second := b.add(distinctPrompt("sea", 2), 1), b.add(distinctPrompt("sea", 3), 1)
		compareTimes(t, "first", b.tokenTimes(first), []int{32})
		// The second prompt arrived before the first was in the cache, but was looked up when its
		// prefill started.
		compareTimes(t, "second", b.tokenTimes(second), []int{32 + 16})
	})
}

func TestBatchSlowsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := millisecondConfig
		c.BatchSlowdown = 0.5
		b := newTestScheduler(c)
		long, short := b.add(prompt{}, 4), b.add(prompt{}, 2)
		// Both get their first token at 0. The step that began with one sequence takes 10 ms. A
		// step with two would take 15 ms, but the short sequence is complete before it.
		compareTimes(t, "short", b.tokenTimes(short), []int{0, 10})
		compareTimes(t, "long", b.tokenTimes(long)[3:], []int{30})
		b.start = time.Now()
		one, other := b.add(prompt{}, 3), b.add(prompt{}, 4)
		compareTimes(t, "one of two", b.tokenTimes(one)[1:], []int{10, 25})
		compareTimes(t, "the other", b.tokenTimes(other)[3:], []int{35})
	})
}

func TestSlotsAndQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := millisecondConfig
		c.MaxNumSeqs, c.CacheTokens = 2, 1600
		b := newTestScheduler(c)
		var all []*sequence
		for range 4 {
			all = append(all, b.add(prompt{tokens: 10}, 2))
		}
		if l := b.snapshot(); l.running != 2 || l.waiting != 2 || l.kvUsage != 0.02 {
			t.Errorf("load is %+v, want 2 running, 2 waiting, 2 of 100 blocks", l)
		}
		compareTimes(t, "first", b.tokenTimes(all[0]), []int{10, 20})
		// The second sequence joined while a step ran, so it got its second token with that step.
		// The slots were free at 20 and 30.
		compareTimes(t, "second", b.tokenTimes(all[1]), []int{20, 30})
		compareTimes(t, "third", b.tokenTimes(all[2]), []int{30, 40})
		compareTimes(t, "fourth", b.tokenTimes(all[3]), []int{40, 50})
	})
}

func TestCancelFreesTheSlot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		leave time.Duration // the first is prefilled at 50 ms and decodes until 1040 ms
	}{{"in prefill", 20 * time.Millisecond}, {"in decode", 105 * time.Millisecond}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := millisecondConfig
				c.MaxNumSeqs = 1
				b := newTestScheduler(c)
				gone, queued, next := b.add(prompt{tokens: 50}, 100), b.add(prompt{}, 1), b.add(prompt{tokens: 7}, 1)
				time.Sleep(tt.leave)
				b.cancel([]*sequence{queued})
				if l := b.snapshot(); l.running != 1 || l.waiting != 1 {
					t.Errorf("one left the queue: %+v", l)
				}
				b.cancel([]*sequence{gone, gone})
				if l := b.snapshot(); l.running != 1 || l.waiting != 0 {
					t.Errorf("the running one left: %+v", l)
				}
				compareTimes(t, "the next", b.tokenTimes(next), []int{int(tt.leave.Milliseconds()) + 7})
				if gone.complete() || queued.complete() {
					t.Error("those that left were finished all the same")
				}
				b.cancel([]*sequence{next})
				if l := b.snapshot(); l.running != 0 || l.kvUsage != 0 || !b.timerAt.IsZero() {
					t.Errorf("at the end: %+v, timer set for %v", l, b.timerAt)
				}
			})
		})
	}
}

func TestAsFastAsPossible(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestScheduler(Config{MaxNumSeqs: 1})
		for range 3 {
			if q := b.add(prompt{tokens: 1000}, 1000); !q.complete() {
				t.Fatalf("%d of 1000 tokens on return", q.produced.Load())
			}
		}
	})
}

// TestThePaceChanges: a running request continues with the new interval, and without one it is
// complete at once.
func TestThePaceChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestScheduler(millisecondConfig)
		q := b.add(prompt{tokens: 20}, 1000)
		go func() {
			time.Sleep(45 * time.Millisecond)
			b.setInterval(100 * time.Millisecond)
			time.Sleep(200 * time.Millisecond)
			b.setInterval(0)
		}()
		got := b.tokenTimes(q)
		compareTimes(t, "the first tokens", got[:8], []int{20, 30, 40, 45, 145, 245, 245, 245})
		if len(got) != 1000 || got[999] != 245 {
			t.Errorf("%d tokens, the last at %d", len(got), got[len(got)-1])
		}
		b.setInterval(time.Second) // nothing runs
		compareTimes(t, "tokens of the next", b.tokenTimes(b.add(prompt{}, 2)), []int{245, 1245})
	})
}

// TestNoCatchUpAfterStandstill checks that the batch continues from now after a standstill.
func TestNoCatchUpAfterStandstill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestScheduler(millisecondConfig)
		q := b.add(prompt{}, 100)
		b.delayTimer(time.Hour)
		if got := q.produced.Load(); got != 2 {
			t.Errorf("%d tokens after a standstill, want 2", got)
		}
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		if got := q.produced.Load(); got != 7 {
			t.Errorf("%d tokens 50 ms later, want 7", got)
		}
		b.cancel([]*sequence{q})
	})
}

// TestLateTimer checks that a timer which fires late costs no speed.
func TestLateTimer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestScheduler(millisecondConfig)
		q := b.add(prompt{}, 100)
		b.delayTimer(75 * time.Millisecond)
		if got := q.produced.Load(); got != 8 {
			t.Errorf("%d tokens after 75 ms, want 8", got)
		}
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		if got := q.produced.Load(); got != 9 {
			t.Errorf("%d tokens after 80 ms, want 9", got)
		}
		b.cancel([]*sequence{q})
	})
}
