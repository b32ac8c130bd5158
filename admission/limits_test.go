package admission

import (
	"context"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func TestBucket(t *testing.T) {
	t.Parallel()
	b := &bucket{}
	b.resize(600, epoch)
	steps := []struct {
		name string
		at   time.Duration
		take int
		ask  int64
		want time.Duration
	}{
		{"full at the start", 0, 0, 600, 0},
		{"empty", 0, 600, 10, time.Second},
		{"more than it holds", 0, 0, 1230, 2*time.Minute + 3*time.Second},
		{"filling", 500 * time.Millisecond, 0, 10, 500 * time.Millisecond},
		{"the clock goes back", -time.Hour, 0, 10, time.Hour + time.Second},
		{"and returns", 500 * time.Millisecond, 0, 10, 500 * time.Millisecond},
		{"there", time.Second, 0, 10, 0},
		{"taken", time.Second, 10, 1, 100 * time.Millisecond},
		{"a nanosecond is no token", time.Second + 1, 0, 1, 100*time.Millisecond - 1},
		{"nor is the next", time.Second + 999, 0, 1, 100*time.Millisecond - 999},
		{"in parts", time.Second + 33_333_333, 0, 1, 66_666_667},
		{"whole again", time.Second + 100*time.Millisecond, 0, 1, 0},
		{"nothing asked", time.Second, 1, 0, 0},
		{"never above its size", 5 * time.Hour, 0, 601, 100 * time.Millisecond},
		{"waits too long to count", 5 * time.Hour, 0, math.MaxInt64, maxWaitMinutes * time.Minute},
	}
	for _, s := range steps {
		now := epoch.Add(s.at)
		b.charge(int64(s.take))
		if got := b.wait(s.ask, now); got != s.want {
			t.Errorf("%s: wait(%d) = %v, want %v", s.name, s.ask, got, s.want)
		}
	}
}

func TestBucketResize(t *testing.T) {
	t.Parallel()
	b := &bucket{}
	steps := []struct {
		name   string
		resize int
		take   int
		want   float64
	}{
		{"none", 0, 5, -1},
		{"first limit: full", 600, 0, 600},
		{"larger: keeps its level", 1200, 0, 600},
		{"larger, used", 1200, 100, 500},
		{"smaller: cut", 60, 0, 60},
		{"larger again: keeps", 600, 60, 0},
		{"none again", -1, 0, -1},
		{"a limit again: full", 600, 0, 600},
		{"beyond counting", math.MaxInt, 0, 600},
	}
	for _, s := range steps {
		b.resize(s.resize, epoch)
		b.charge(int64(s.take))
		if got := b.tokens(epoch); got != s.want {
			t.Errorf("%s: %v tokens, want %v", s.name, got, s.want)
		}
	}
	b.refill(epoch.Add(59 * time.Second))
	if got := b.tokens(epoch.Add(time.Hour)); got != float64(maxTokens) {
		t.Errorf("a huge bucket holds %v, want %v", got, float64(maxTokens))
	}
	b.correct(math.MaxInt)
	if got := b.tokens(epoch.Add(time.Hour)); got != float64(maxTokens) {
		t.Errorf("a huge refund made it %v, want %v", got, float64(maxTokens))
	}
}

// TestBucketResizeLater: the time before a change counts at the old rate.
func TestBucketResizeLater(t *testing.T) {
	t.Parallel()
	b := &bucket{}
	b.resize(60, epoch)
	b.charge(60)
	b.resize(600, epoch.Add(30*time.Second))
	if got := b.tokens(epoch.Add(31 * time.Second)); got != 30+10 {
		t.Errorf("%v tokens, want 40", got)
	}
}

// TestBucketIsExact takes all that the bucket gives and compares with exact fractions: never a
// token too many, and none missing when the promised wait is over.
func TestBucketIsExact(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(11, 11))
	for range 50 {
		perMinute := 1 + random.IntN([]int{10, 1000, 1_000_000, 2_000_000_000}[random.IntN(4)])
		b := &bucket{}
		b.resize(perMinute, epoch)
		level, at := big.NewRat(int64(perMinute), 1), time.Duration(0)
		for range 200 {
			tokens := 1 + random.IntN(perMinute)
			step := b.wait(int64(tokens), epoch.Add(at))
			if step > 0 && b.wait(int64(tokens), epoch.Add(at+step-time.Microsecond)) == 0 {
				t.Fatalf("limit %d: %d tokens came before the promised %v", perMinute, tokens, step)
			}
			if random.IntN(3) == 0 {
				step += time.Duration(random.IntN(1000)) * time.Microsecond
			}
			at += step
			gain := new(big.Rat).Mul(big.NewRat(int64(perMinute), 60_000_000), big.NewRat(step.Microseconds(), 1))
			if level.Add(level, gain); level.Cmp(big.NewRat(int64(perMinute), 1)) > 0 {
				level.SetInt64(int64(perMinute))
			}
			if wait := b.wait(int64(tokens), epoch.Add(at)); wait != 0 {
				t.Fatalf("limit %d: %d tokens promised after %v, still %v to wait", perMinute, tokens, step, wait)
			}
			b.charge(int64(tokens))
			if level.Sub(level, big.NewRat(int64(tokens), 1)); level.Sign() < 0 {
				t.Fatalf("limit %d: %d tokens taken that were not there", perMinute, tokens)
			}
		}
	}
}

func TestRaisedLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 1, TokensPerMinute: 60})
		d.startTokens(60)
		a, b, c := d.startTokens(0), d.startTokens(30), d.startTokens(1)
		d.SetLimits("chat", Limits{MaxConcurrent: 9, TokensPerMinute: 60})
		d.wantAdmitted(a, 0)
		d.wantWaiting(b, c)
		d.SetLimits("chat", Limits{MaxConcurrent: 9, TokensPerMinute: 600})
		time.Sleep(3 * time.Second)
		d.wantAdmitted(b, 3*time.Second)
		d.wantWaiting(c)
		d.SetLimits("chat", Limits{MaxConcurrent: 9})
		d.wantAdmitted(c, 3*time.Second)
		if got, ok := d.Limits("chat"); !ok || got != (Limits{MaxConcurrent: 9}) {
			t.Errorf("Limits = %+v, %v", got, ok)
		}
	})
}

func TestLoweredLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTestController(t, Limits{MaxConcurrent: 2, TokensPerMinute: 600})
		one, two := d.startTokens(300), d.startTokens(300)
		never := d.startTokens(100)
		soon := d.start(t.Context(), Request{Tokens: 10, Timeout: 20 * time.Second})
		tardy := d.start(t.Context(), Request{Tokens: 10, Timeout: 19 * time.Second})
		last := d.startTokens(5)
		d.wantWaiting(never, soon, tardy, last)
		d.SetLimits("chat", Limits{MaxConcurrent: 1, TokensPerMinute: 60, MaxQueue: 1})
		d.wantRefused(never, ErrNeverFits, 0)
		// last is behind soon, whose tokens come after 10 s. The tokens of never are no longer
		// ahead of it.
		d.wantWaiting(soon, last)
		d.wantRefused(tardy, errTokensTooLate(20*time.Second), 0)
		d.wantStats(Stats{InFlight: 2, Queued: 2, Tokens: 0})
		time.Sleep(11 * time.Second)
		one.release()
		d.wantWaiting(soon) // one lease exists, which is the limit now
		two.release()
		d.wantAdmitted(soon, 11*time.Second)
		d.wantWaiting(last)
		d.SetLimits("chat", Limits{MaxConcurrent: 3})
		d.wantAdmitted(last, 11*time.Second)
	})
}

// TestSameLimits: a change of the fleet sets all limits again. This must not refuse any waiter,
// even if its tokens come too late should all waiters before it be admitted.
func TestSameLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{TokensPerMinute: 60}
		d := newTestController(t, limits)
		ctx, leave := context.WithCancel(t.Context())
		head := d.start(ctx, Request{Tokens: 60, Locked: LockedHooks{ReserveSlot: func(string) (Slot, bool) { return Slot{}, false }}})
		next := d.start(t.Context(), Request{Tokens: 30, Timeout: 40 * time.Second})
		time.Sleep(20 * time.Second)
		d.SetLimits("chat", limits)
		d.wantWaiting(head, next)
		leave()
		d.wantAdmitted(next, 20*time.Second)
	})
}

func TestRemove(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{MaxConcurrent: 1, TokensPerMinute: 600}
		d := newTestController(t, limits)
		d.Remove("nobody")
		held := d.startTokens(600)
		waiting := d.start(t.Context(), Request{Tokens: 10, Bytes: 5})
		d.Remove("chat")
		d.wantRefused(waiting, ErrRemoved, 0)
		d.wantRefused(d.startTokens(0), ErrUnknownModel, 0)
		d.wantStats(Stats{Tokens: -1})
		if _, ok := d.Limits("chat"); ok {
			t.Error("a removed model has limits")
		}
		if n := waitingBytesOf(d.Controller); n != 0 {
			t.Errorf("%d bytes held, want 0", n)
		}

		// It comes back as it left: with one lease and an empty bucket.
		d.SetLimits("chat", limits)
		d.wantStats(Stats{InFlight: 1, Tokens: 0})
		again := d.startTokens(0)
		d.wantWaiting(again)
		held.release()
		d.wantAdmitted(again, 0)

		// An idle gate is forgotten.
		d.Remove("chat")
		again.release()
		time.Sleep(time.Minute)
		d.SetLimits("other", Limits{})
		d.Remove("other")
		if len(d.retired) != 0 {
			t.Errorf("%d removed models are kept", len(d.retired))
		}
	})
}
