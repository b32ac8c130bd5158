package admission

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestDecisionsAtOnce(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		limits Limits
		before []int // tokens of the requests that came before; those beyond the limits wait
		ended  bool  // the context has ended
		ask    Request
		want   error // nil means a lease
	}{
		{name: "no limits", ask: Request{Tokens: 1 << 60}},
		{name: "no limits, many before", before: make([]int, 50)},
		{name: "within concurrency", limits: Limits{MaxConcurrent: 3}, before: []int{0, 0}},
		{name: "bucket full at the start", limits: Limits{TokensPerMinute: 600}, ask: Request{Tokens: 600}},
		{name: "negative limits are none", limits: Limits{MaxConcurrent: -1, TokensPerMinute: -1}, ask: Request{Tokens: 9}},
		{name: "negative tokens are none", limits: Limits{TokensPerMinute: 600}, before: []int{600}, ask: Request{Tokens: -5}},
		{name: "unknown model", ask: Request{Model: "nobody"}, want: ErrUnknownModel},
		{name: "ended context", ended: true, want: context.Canceled},
		{name: "never fits", limits: Limits{TokensPerMinute: 600}, ask: Request{Tokens: 601}, want: ErrNeverFits},
		{name: "a guess is lowered", limits: Limits{TokensPerMinute: 600}, ask: Request{Tokens: 9000, Guessed: 8999}},
		{name: "the prompt never fits", limits: Limits{TokensPerMinute: 600}, ask: Request{Tokens: 9000, Guessed: 8400}, want: ErrNeverFits},
		{name: "nobody may wait", limits: Limits{MaxConcurrent: 1, MaxQueue: -1}, before: []int{0}, want: errQueueFull},
		{name: "queue full", limits: Limits{MaxConcurrent: 1, MaxQueue: 2}, before: []int{0, 0, 0}, want: errQueueFull},
		{name: "queue full by default", limits: Limits{MaxConcurrent: 1}, before: make([]int, 1001), want: errQueueFull},
		{name: "more bytes than may wait", limits: Limits{MaxConcurrent: 1}, before: []int{0},
			ask: Request{Bytes: 1<<30 + 1}, want: errQueueFull},
		{name: "tokens after the deadline", limits: Limits{TokensPerMinute: 600}, before: []int{600},
			ask: Request{Tokens: 20, Timeout: 2*time.Second - 1}, want: errTokensTooLate(2 * time.Second)},
		{name: "tokens after the queue's deadline", limits: Limits{TokensPerMinute: 600, QueueTimeout: time.Second}, before: []int{600},
			ask: Request{Tokens: 20}, want: errTokensTooLate(2 * time.Second)},
		{name: "tokens after those of others", limits: Limits{TokensPerMinute: 600}, before: []int{600, 300, 100},
			ask: Request{Tokens: 20, Timeout: 41 * time.Second}, want: errTokensTooLate(42 * time.Second)},
		{name: "no tokens of its own, but behind others", limits: Limits{TokensPerMinute: 600}, before: []int{600, 300},
			ask: Request{Timeout: 29 * time.Second}, want: errTokensTooLate(30 * time.Second)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newTestController(t, tt.limits)
				for _, tokens := range tt.before {
					d.startTokens(tokens)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.ended {
					cancel()
				}
				before := d.Stats("chat")
				got := d.start(ctx, tt.ask)
				if tt.want == nil {
					d.wantAdmitted(got, 0)
				} else {
					d.wantRefused(got, tt.want, 0)
					d.wantStats(before) // a refused request changes nothing
				}
				d.Remove("chat") // fails the waiters
			})
		})
	}
}

func TestConcurrencyInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 2, QueueTimeout: time.Hour})
		calls := make([]*admitCall, 6)
		for i := range calls {
			calls[i] = d.startTokens(0)
		}
		for i := range 4 {
			d.wantAdmitted(calls[i], max(0, time.Duration(i-1))*time.Second)
			d.wantAdmitted(calls[i+1], time.Duration(i)*time.Second)
			d.wantWaiting(calls[i+2:]...)
			d.wantStats(Stats{InFlight: 2, Queued: 4 - i, Tokens: -1})
			time.Sleep(time.Second)
			calls[i].release()
			synctest.Wait()
		}
		d.wantAdmitted(calls[5], 4*time.Second)
		d.wantStats(Stats{InFlight: 2, Tokens: -1})
	})
}

func TestReleaseCountsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 2})
		first, _ := d.startTokens(0), d.startTokens(0)
		first.release()
		first.release()
		d.wantStats(Stats{InFlight: 1, Tokens: -1})
		d.wantAdmitted(d.startTokens(0), 0)
		last := d.startTokens(0)
		first.release()
		d.wantWaiting(last)
		time.Sleep(time.Minute)
		d.wantRefused(last, ErrTimeout, time.Minute)
	})
}

func TestTokensComeInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{TokensPerMinute: 600}) // 10 a second
		d.wantAdmitted(d.startTokens(600), 0)
		large, small := d.startTokens(50), d.startTokens(1)
		time.Sleep(5*time.Second - 1)
		d.wantWaiting(large, small) // the small one does not pass the large one
		time.Sleep(time.Nanosecond)
		d.wantAdmitted(large, 5*time.Second)
		d.wantWaiting(small)
		d.wantStats(Stats{InFlight: 2, Queued: 1, LacksTokens: true, Tokens: 0})
		time.Sleep(time.Second)
		d.wantAdmitted(small, 5*time.Second+100*time.Millisecond)
		d.wantStats(Stats{InFlight: 3, Tokens: 9})
		large.release()
		d.wantStats(Stats{InFlight: 2, Tokens: 9}) // tokens are spent, not lent
		time.Sleep(time.Hour)
		d.wantStats(Stats{InFlight: 2, Tokens: 600}) // the bucket does not grow
	})
}

func TestNegativeCostAddsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{TokensPerMinute: 600})
		d.startTokens(600)
		d.wantAdmitted(d.startTokens(-100), 0)
		d.wantStats(Stats{InFlight: 2, Tokens: 0})
	})
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		queue time.Duration
		asked time.Duration
		want  time.Duration
	}{
		{"default", 0, 0, time.Minute},
		{"the queue's", 5 * time.Second, 0, 5 * time.Second},
		{"the request's", 5 * time.Second, time.Second, time.Second},
		{"the request's, though longer", 5 * time.Second, time.Hour, time.Hour},
		{"negative", -1, -1, time.Minute},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newTestController(t, Limits{MaxConcurrent: 1, QueueTimeout: tt.queue})
				d.startTokens(0)
				tardy := d.start(t.Context(), Request{Timeout: tt.asked, Bytes: 7})
				d.wantStats(Stats{InFlight: 1, Queued: 1, QueuedBytes: 7, Tokens: -1})
				time.Sleep(tt.want)
				d.wantRefused(tardy, ErrTimeout, tt.want)
				d.wantStats(Stats{InFlight: 1, Tokens: -1})
			})
		})
	}
}

// TestHeadLeaves: when the head leaves, the waiters behind it are admitted at the same moment, if
// there is enough for them.
func TestHeadLeaves(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"timeout", "abort"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newTestController(t, Limits{TokensPerMinute: 600})
				d.startTokens(600)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r := Request{Locked: LockedHooks{ReserveSlot: func(string) (Slot, bool) { return Slot{}, false }}}
				if how == "timeout" {
					r.Timeout = 9 * time.Second
				} else {
					time.AfterFunc(9*time.Second, cancel)
				}
				head, next := d.start(ctx, r), d.startTokens(50)
				time.Sleep(9*time.Second - 1)
				d.wantWaiting(head, next)
				time.Sleep(time.Nanosecond)
				d.wantRefused(head, map[string]error{"timeout": ErrTimeout, "abort": context.Canceled}[how], 9*time.Second)
				d.wantAdmitted(next, 9*time.Second)
			})
		})
	}
}

func TestQueuedBytesOfAllModels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := testController{New(Config{MaxQueueBytes: 100}), t}
		d.SetLimits("chat", Limits{MaxConcurrent: 1})
		d.SetLimits("embed", Limits{MaxConcurrent: 1})
		ask := func(model string, bytes int) *admitCall {
			return d.start(t.Context(), Request{Model: model, Bytes: bytes})
		}
		d.wantAdmitted(ask("chat", 1000), 0) // refused, so it holds nothing
		embed := ask("embed", 0)
		d.wantWaiting(ask("chat", 60), ask("embed", 30))
		d.wantRefused(ask("embed", 11), errQueueFull, 0)
		d.wantRefused(ask("chat", 11), errQueueFull, 0)
		d.wantWaiting(ask("embed", 10), ask("chat", 0), ask("chat", -1))
		d.wantStats(Stats{InFlight: 1, Queued: 3, QueuedBytes: 60, Tokens: -1})
		embed.release() // the request of 30 bytes is admitted
		synctest.Wait()
		d.wantWaiting(ask("chat", 30))
		d.wantRefused(ask("chat", 1), errQueueFull, 0)
		time.Sleep(time.Hour) // all waiters time out
		if held := waitingBytesOf(d.Controller); held != 0 {
			t.Errorf("%d bytes held, want 0", held)
		}
	})
}

func TestOnWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1, MaxQueue: 1})
		waited := 0
		r := Request{Unlocked: UnlockedHooks{OnWait: func() {
			waited++
			if d.Stats("chat").Queued != 1 { // would hang with the lock held
				t.Error("OnWait of a request that has no place in the queue")
			}
		}}}
		first := d.start(t.Context(), r)
		d.wantAdmitted(first, 0)
		if waited != 0 {
			t.Error("OnWait of a request that did not wait")
		}
		second := d.start(t.Context(), r)
		d.wantWaiting(second)
		d.wantRefused(d.start(t.Context(), r), errQueueFull, 0)
		first.release()
		d.wantAdmitted(second, 0)
		if waited != 1 {
			t.Errorf("OnWait called %d times, want 1", waited)
		}
	})
}
