package admission

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testController is a Controller with one model, "chat", inside a synctest bubble.
type testController struct {
	*Controller
	t *testing.T
}

func newTestController(t *testing.T, l Limits) testController {
	c := New(Config{})
	c.SetLimits("chat", l)
	return testController{c, t}
}

// admitCall is one Admit in a goroutine of its own.
type admitCall struct{ result atomic.Pointer[outcome] }

// outcome is how an Admit ended.
type outcome struct {
	lease *Lease
	err   error
	// after is how long Admit took.
	after time.Duration
	ended bool
}

// state returns how the call ended; the zero outcome while it waits.
func (c *admitCall) state() outcome {
	if o := c.result.Load(); o != nil {
		return *o
	}
	return outcome{}
}

func (c *admitCall) release() { c.state().lease.Release() }

// start starts an Admit and returns when it has ended or waits.
func (d testController) start(ctx context.Context, r Request) *admitCall {
	d.t.Helper()
	if r.Model == "" && r.Pool == "" {
		r.Model = "chat"
	}
	c := &admitCall{}
	started := time.Now()
	go func() {
		lease, err := d.Admit(ctx, r)
		c.result.Store(&outcome{lease, err, time.Since(started), true})
	}()
	synctest.Wait()
	return c
}

// startTokens starts an Admit of which only the tokens matter.
func (d testController) startTokens(tokens int) *admitCall {
	d.t.Helper()
	return d.start(d.t.Context(), Request{Tokens: tokens})
}

// wantAdmitted fails the test unless the call got its lease after exactly this time.
func (d testController) wantAdmitted(c *admitCall, after time.Duration) {
	d.t.Helper()
	synctest.Wait()
	if got := c.state(); got.lease == nil || got.err != nil || got.after != after {
		d.t.Fatalf("got %+v, want a lease after %v", got, after)
	}
}

// wantRefused fails the test unless the call got this error after exactly this time.
func (d testController) wantRefused(c *admitCall, want error, after time.Duration) {
	d.t.Helper()
	synctest.Wait()
	if got := c.state(); got.lease != nil || !sameError(got.err, want) || got.after != after {
		d.t.Fatalf("got %+v, want %v after %v", got, want, after)
	}
}

// wantWaiting fails the test if a call has ended.
func (d testController) wantWaiting(calls ...*admitCall) {
	d.t.Helper()
	synctest.Wait()
	for i, c := range calls {
		if got := c.state(); got.ended {
			d.t.Fatalf("call %d ended: %+v, want it to wait", i, got)
		}
	}
}

func (d testController) wantStats(want Stats) {
	d.t.Helper()
	synctest.Wait()
	want.Share = want.InFlight
	if got := d.Stats("chat"); got != want {
		d.t.Fatalf("Stats = %+v, want %+v", got, want)
	}
}

// errQueueFull is the refusal of a full queue.
var errQueueFull = &Refused{Reason: QueueFull}

// errTokensTooLate is the refusal because the model's tokens come too late.
func errTokensTooLate(after time.Duration) error {
	return &Refused{Reason: ModelTokens, RetryAfter: after}
}

func sameError(got, want error) bool {
	a, ok := got.(*Refused)
	b, both := want.(*Refused)
	if ok && both {
		// RetryAfter is never less, and hardly more. 0 in want means any learned value.
		most := b.RetryAfter + returnSpread(b.RetryAfter)
		inTime := b.RetryAfter > 0 && a.RetryAfter >= b.RetryAfter && a.RetryAfter <= most
		learned := b.RetryAfter == 0 && a.RetryAfter >= time.Second && a.RetryAfter <= 61*time.Second
		return a.Reason == b.Reason && (inTime || learned)
	}
	return got == want
}

// waitingBytesOf returns the bytes that all waiters hold.
func waitingBytesOf(c *Controller) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waitingBytes + c.newcomerBytes
}

// Limits returns the model's limits as they were set, and whether the model is known.
func (c *Controller) Limits(model string) (Limits, bool) {
	c.mu.Lock()
	defer c.unlockAndRun()
	g, ok := c.gates[model]
	if !ok {
		return Limits{}, false
	}
	return g.usage.limits, true
}
