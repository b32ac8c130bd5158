package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// batch is a scheduler in simulated time, with the sequences that were given to it.
type batch struct {
	*scheduler
	start time.Time
}

func newBatch(c Config) *batch {
	e := New(c)
	return &batch{scheduler: e.batch, start: time.Now()}
}

func (b *batch) add(p prompt, limit int) *sequence {
	q := &sequence{prompt: p, limit: limit, bell: make(chan struct{}, 1)}
	b.submit([]*sequence{q})
	return q
}

// times waits for the sequence and returns when each of its tokens came, in milliseconds since the start; for one
// without tokens, when it was prefilled.
func (b *batch) times(q *sequence) []int {
	var list []int
	now := func() int { return int(time.Since(b.start).Milliseconds()) }
	for {
		for len(list) < int(q.produced.Load()) {
			list = append(list, now())
		}
		if q.done() {
			if q.limit == 0 {
				list = append(list, now())
			}
			return list
		}
		<-q.bell
	}
}

// hold makes the timer fire that much after now, as when the process was stopped.
func (b *batch) hold(d time.Duration) {
	b.timer.Stop()
	time.Sleep(d)
	b.tick()
}

// ms is a configuration in which a token of prompt takes a millisecond and a token of output ten.
var ms = Config{PrefillRate: 1000, TokenInterval: 10 * time.Millisecond}

func want(t *testing.T, what string, got, want []int) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s, in ms: -want +got\n%s", what, diff)
	}
}

func TestPrefillThenDecode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatch(ms)
		q := b.add(prompt{tokens: 100}, 3)
		want(t, "tokens", b.times(q), []int{100, 110, 120})
		if l := b.load(); l.running != 0 || l.waiting != 0 || l.kvUsage != 0 {
			t.Errorf("afterwards: %+v", l)
		}
	})
}

func TestCacheShortensPrefill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatch(ms)
		b.times(b.add(blocksOf("sea", 4), 0))
		if got := time.Since(b.start); got != 64*time.Millisecond {
			t.Fatalf("cold prefill of 64 tokens took %v", got)
		}
		b.start = time.Now()
		q := b.add(blocksOf("sea", 5), 0)
		want(t, "prefill of 80 tokens, 64 of them cached", b.times(q), []int{16})
		if q.cached != 64 {
			t.Errorf("%d tokens cached, want 64", q.cached)
		}
		b.forget()
		b.start = time.Now()
		want(t, "prefill without a cache", b.times(b.add(blocksOf("sea", 5), 0)), []int{80})
	})
}

func TestPrefillsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatch(ms)
		first, second := b.add(blocksOf("sea", 2), 1), b.add(blocksOf("sea", 3), 1)
		want(t, "first", b.times(first), []int{32})
		// The second came before the first was in the cache, but was looked up when its turn came.
		want(t, "second", b.times(second), []int{32 + 16})
	})
}

func TestBatchSlowsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := ms
		c.BatchSlowdown = 0.5
		b := newBatch(c)
		long, short := b.add(prompt{}, 4), b.add(prompt{}, 2)
		// Both have their first token at 0. The step that began with one of them alone takes 10 ms, the next would take
		// 15 for two, but by then the short one is done.
		want(t, "short", b.times(short), []int{0, 10})
		want(t, "long", b.times(long)[3:], []int{30})
		b.start = time.Now()
		one, other := b.add(prompt{}, 3), b.add(prompt{}, 4)
		want(t, "one of two", b.times(one)[1:], []int{10, 25})
		want(t, "the other", b.times(other)[3:], []int{35})
	})
}

func TestSlotsAndQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := ms
		c.MaxNumSeqs, c.CacheTokens = 2, 1000
		b := newBatch(c)
		var all []*sequence
		for range 4 {
			all = append(all, b.add(prompt{tokens: 10}, 2))
		}
		if l := b.load(); l.running != 2 || l.waiting != 2 || l.kvUsage != 0.02 {
			t.Errorf("load is %+v, want 2 running, 2 waiting, 20 of 1000 tokens", l)
		}
		want(t, "first", b.times(all[0]), []int{10, 20})
		// The second joined a step under way, so its second token came with it. Both slots were free at 20 and 30.
		want(t, "second", b.times(all[1]), []int{20, 30})
		want(t, "third", b.times(all[2]), []int{30, 40})
		want(t, "fourth", b.times(all[3]), []int{40, 50})
	})
}

func TestLeaveFreesTheSlot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		leave time.Duration // the first is prefilled at 50 ms and decodes until 1040 ms
	}{{"in prefill", 20 * time.Millisecond}, {"in decode", 105 * time.Millisecond}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := ms
				c.MaxNumSeqs = 1
				b := newBatch(c)
				gone, queued, next := b.add(prompt{tokens: 50}, 100), b.add(prompt{}, 1), b.add(prompt{tokens: 7}, 1)
				time.Sleep(tt.leave)
				b.leave([]*sequence{queued})
				if l := b.load(); l.running != 1 || l.waiting != 1 {
					t.Errorf("one left the queue: %+v", l)
				}
				b.leave([]*sequence{gone, gone})
				if l := b.load(); l.running != 1 || l.waiting != 0 {
					t.Errorf("the running one left: %+v", l)
				}
				want(t, "the next", b.times(next), []int{int(tt.leave.Milliseconds()) + 7})
				if gone.done() || queued.done() {
					t.Error("those that left were finished all the same")
				}
				b.leave([]*sequence{next})
				if l := b.load(); l.running != 0 || l.kvUsage != 0 || !b.due.IsZero() {
					t.Errorf("at the end: %+v, timer set for %v", l, b.due)
				}
			})
		})
	}
}

func TestAsFastAsPossible(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatch(Config{MaxNumSeqs: 1})
		for range 3 {
			if q := b.add(prompt{tokens: 1000}, 1000); !q.done() {
				t.Fatalf("%d of 1000 tokens on return", q.produced.Load())
			}
		}
	})
}

// After a standstill the batch goes on from now instead of making up for it.
func TestStandstill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatch(ms)
		q := b.add(prompt{}, 100)
		b.hold(time.Hour)
		if got := q.produced.Load(); got != 2 {
			t.Errorf("%d tokens after a standstill, want 2", got)
		}
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		if got := q.produced.Load(); got != 7 {
			t.Errorf("%d tokens 50 ms later, want 7", got)
		}
		b.leave([]*sequence{q})
	})
}

// A timer that comes late costs no speed.
func TestLateTimer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBatch(ms)
		q := b.add(prompt{}, 100)
		b.hold(75 * time.Millisecond)
		if got := q.produced.Load(); got != 8 {
			t.Errorf("%d tokens after 75 ms, want 8", got)
		}
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		if got := q.produced.Load(); got != 9 {
			t.Errorf("%d tokens after 80 ms, want 9", got)
		}
		b.leave([]*sequence{q})
	})
}
