package admission

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// randomRun runs a Controller and the reference side by side, one step after the other.
type randomRun struct {
	testController
	random *rand.Rand
	ref    *reference
	calls  []*admitCall
	asked  []*expectedCall
	cancel []context.CancelFunc
	log    []string

	mu    sync.Mutex
	slots int   // guarded by mu
	order []int // ids, in the order of admission; guarded by mu
}

func newRandomRun(t *testing.T, seed uint64) *randomRun {
	w := &randomRun{random: rand.New(rand.NewPCG(seed, 1))}
	l := w.limits()
	w.slots = w.random.IntN(8)
	w.ref = newReference(l, w.slots, 2000)
	w.testController = testController{New(Config{MaxQueueBytes: 2000}), t}
	w.SetLimits("chat", l)
	return w
}

func (w *randomRun) limits() Limits {
	return Limits{
		MaxConcurrent:   w.random.IntN(7), // 0 means no limit
		TokensPerMinute: []int{0, 77, 600, 6000, 1_000_000}[w.random.IntN(5)],
		MaxQueue:        1 + w.random.IntN(15),
	}
}

// TestAgainstReference makes random arrivals, aborts, releases, changes of limits and pauses. After
// each of them the Controller must be in exactly the state of the reference. The test compares who
// was admitted, in which order and when, who was refused and why, and the tokens left.
func TestAgainstReference(t *testing.T) {
	t.Parallel()
	const runs, steps = 150, 150
	for seed := range uint64(runs) {
		synctest.Test(t, func(t *testing.T) {
			w := newRandomRun(t, seed)
			for range steps {
				w.step()
				w.compare()
			}
			w.finish()
		})
	}
}

func (w *randomRun) step() {
	switch n := w.random.IntN(100); {
	case n < 45:
		w.arrive()
	case n < 55:
		w.abort()
	case n < 72:
		w.release()
	case n < 76:
		w.addSlot()
		w.ref.slots++
		w.RetryWaiters("chat")
		w.ref.admitNext()
		w.logf("one slot more")
	case n < 80:
		l := w.limits()
		w.logf("limits %+v", l)
		w.SetLimits("chat", l)
		if l != w.ref.limits {
			w.ref.limit(l)
		}
	case n < 81:
		w.logf("removed and back")
		w.Remove("chat")
		w.ref.remove()
		w.SetLimits("chat", w.ref.limits)
		w.ref.admitNext()
	default:
		w.sleep(time.Duration(w.random.Int64N(int64(time.Second<<w.random.IntN(5)))) / 1000 * 1000)
	}
	synctest.Wait()
}

func (w *randomRun) arrive() {
	a := &expectedCall{id: len(w.asked), slot: w.random.IntN(3) > 0, came: w.ref.now, bytes: w.random.IntN(400)}
	a.tokens = w.random.IntN(1 + w.ref.limits.TokensPerMinute/(1+w.random.IntN(9))*11/10)
	timeout := time.Duration(1+w.random.IntN(30_000_000)) * time.Microsecond
	a.deadline = w.ref.now + timeout
	w.logf("arrives %+v", *a)
	ctx, cancel := context.WithCancel(w.t.Context())
	r := Request{Tokens: a.tokens, Bytes: a.bytes, Timeout: timeout, Locked: LockedHooks{ReserveSlot: func(string) (Slot, bool) { return Slot{}, w.place(a) }}, Unlocked: UnlockedHooks{ReleaseSlot: func() { w.t.Error("Unplace, though nothing happens at once here") }}}
	w.asked, w.cancel = append(w.asked, a), append(w.cancel, cancel)
	w.calls = append(w.calls, w.start(ctx, r))
	w.ref.ask(a)
}

func (w *randomRun) place(a *expectedCall) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.slot && w.slots == 0 {
		return false
	}
	if a.slot {
		w.slots--
	}
	w.order = append(w.order, a.id)
	return true
}

func (w *randomRun) addSlot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slots++
}

func (w *randomRun) abort() {
	if len(w.ref.waiting) == 0 {
		return
	}
	a := w.ref.waiting[w.random.IntN(len(w.ref.waiting))]
	w.logf("aborts %d", a.id)
	w.cancel[a.id]()
	w.ref.cancel(a, context.Canceled)
}

func (w *randomRun) release() {
	if len(w.ref.inFlight) > 0 {
		w.end(w.ref.inFlight[w.random.IntN(len(w.ref.inFlight))])
	}
}

func (w *randomRun) end(a *expectedCall) {
	w.logf("releases %d", a.id)
	if a.slot {
		w.addSlot()
	}
	w.calls[a.id].release()
	w.ref.release(a)
	synctest.Wait()
}

func (w *randomRun) sleep(d time.Duration) {
	w.logf("%v pass", d)
	time.Sleep(d)
	synctest.Wait()
	w.ref.advance(w.ref.now + d)
}

func (w *randomRun) logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%v: ", w.ref.now)+fmt.Sprintf(format, args...))
}

func (w *randomRun) compare() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, a := range w.asked {
		if got := w.calls[i].state(); !sameOutcome(got, a) {
			w.fail("request %d: got %+v, want %+v", i, got, *a)
		}
	}
	if !slices.Equal(w.order, w.ref.admitted) {
		w.fail("admitted in order %v, want %v", w.order, w.ref.admitted)
	}
	if got, want := w.Stats("chat"), w.ref.stats(); !sameStats(got, want) {
		w.fail("stats %+v, want %+v", got, want)
	}
	if w.slots != w.ref.slots {
		w.fail("%d slots free, want %d", w.slots, w.ref.slots)
	}
	if got, want := waitingBytesOf(w.Controller), int64(w.ref.queuedBytes()); got != want {
		w.fail("%d bytes held, want %d", got, want)
	}
}

func (w *randomRun) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.log[max(0, len(w.log)-25):] {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

// finish releases all leases. Nothing may be left then.
func (w *randomRun) finish() {
	for len(w.ref.inFlight)+len(w.ref.waiting) > 0 {
		for len(w.ref.inFlight) > 0 {
			w.end(w.ref.inFlight[0])
		}
		w.sleep(5 * time.Second)
		w.compare()
	}
	w.sleep(time.Minute)
	w.compare()
	for _, cancel := range w.cancel {
		cancel()
	}
}
