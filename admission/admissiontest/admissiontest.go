// Package admissiontest is the contract that every admission.Controller must meet, whether one
// process keeps its limits or a store that gateways share. The tests of admission and of
// admission/redis use it. It runs in real time, for a few seconds, because a store has its own
// clock.
package admissiontest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// patience is the time in which a condition must become true.
const patience = 10 * time.Second

// Run runs all tests. open returns a Controller that nobody has used. The Controller ends with its
// test.
func Run(t *testing.T, open func(t *testing.T) *admission.Controller) {
	for name, test := range map[string]func(*suite){
		"concurrency":      concurrency,
		"exact budget":     exactBudget,
		"tokens":           tokens,
		"never fits":       neverFits,
		"tokens too late":  tooLate,
		"unused":           unused,
		"changed limits":   changedLimits,
		"tenant requests":  tenantRequests,
		"tenant tokens":    tenantTokens,
		"tenant streams":   tenantStreams,
		"tenant prefill":   tenantPrefill,
		"settle":           correction,
		"settle wakes":     correctionAdmitsWaiters,
		"settle again":     correctionAgain,
		"close":            closing,
		"X20 close tasks":  closingTasks,
		"order":            order,
		"no passing":       noPassing,
		"timeout":          timeout,
		"queue full":       queueFull,
		"eviction":         eviction,
		"pool shares":      poolShares,
		"pool queue":       poolQueue,
		"resume":           recoveredRequest,
		"task":             task,
		"task key":         taskKey,
		"task key, full":   taskKeyWhileFull,
		"task renewal":     taskRenewal,
		"task waits":       taskWaits,
		"task settles":     taskCorrection,
		"task and request": taskAndRequest,

		"X2 a task covers its estimate":          taskCoversEstimate,
		"X2 requests of a task are requests":     taskRequestsCount,
		"X2 requests of a task are settled":      taskRequestsSettled,
		"X2 a declared cost cannot lie":          taskDeclaredCost,
		"X2 a cost that is known late":           taskCorrectedLate,
		"X2 a running request keeps the lease":   taskHeldByRequest,
		"X2 an ended task admits nothing":        taskEndedWhileWaiting,
		"X2 a request waits not for its own":     taskRequestPasses,
		"X2 tasks of others do not exist":        taskOfAnother,
		"X2 a task has a lifetime":               taskLifetime,
		"X2 requests of a task count as prefill": taskPrefill,
		"X2 an unused request costs nothing":     taskRequestUnused,
		"X2 a debt is its tenant's":              tenantDebt,

		"B4 a key has limits of its own":     keyLimits,
		"B4 a refused request costs no key":  keyGivesBack,
		"B4 a key is charged what was used":  keyIsCorrected,
		"B4 the key's concurrency ends":      keyConcurrency,
		"B4 a task counts for its key":       keyOfATask,
		"B4 a task with a key of its caller": keyOfARepeatedTask,
		"B4 a task that waits holds no key":  keyOfAPostponedTask,
		"B4 a recovered request has its key": keyRecovered,
		"B4 a preempted request is admitted": keyPreempted,
		"B4 the limits of a key end":         keyLimitsEnd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&suite{Controller: open(t), T: t})
		})
	}
}

// suite is a Controller and its test.
type suite struct {
	*admission.Controller
	*testing.T
}

// ctx ends with the test.
func (b *suite) ctx() context.Context { return b.T.Context() }

// admit expects a lease at once.
func (b *suite) admit(r admission.Request) *admission.Lease {
	b.Helper()
	lease, err := b.tryAdmit(r)
	if err != nil {
		b.Fatalf("not admitted: %v", err)
	}
	return lease
}

// tryAdmit waits a few seconds at most.
func (b *suite) tryAdmit(r admission.Request) (*admission.Lease, error) {
	if r.Model == "" && r.Pool == "" {
		r.Model = "chat"
	}
	r.Timeout = cmp.Or(r.Timeout, patience)
	return b.Admit(b.ctx(), r)
}

// wantRefused expects a refusal at once, and returns its RetryAfter.
func (b *suite) wantRefused(r admission.Request, reason admission.Reason) time.Duration {
	b.Helper()
	lease, err := b.tryAdmit(r)
	var refused *admission.Refused
	if !errors.As(err, &refused) || refused.Reason != reason || refused.RetryAfter <= 0 {
		b.Fatalf("got %v, %v, want a refusal: %v", lease, err, reason)
	}
	return refused.RetryAfter
}

// pendingAdmit is an Admit that has not ended.
type pendingAdmit struct {
	done  chan struct{}
	lease *admission.Lease
	err   error
}

// startAdmit starts an Admit and returns when it waits in a queue.
func (b *suite) startAdmit(r admission.Request) *pendingAdmit {
	b.Helper()
	p := &pendingAdmit{done: make(chan struct{})}
	waits := make(chan struct{})
	r.Unlocked.OnWait = func() { close(waits) }
	go func() {
		defer close(p.done)
		p.lease, p.err = b.tryAdmit(r)
	}()
	select {
	case <-waits:
	case <-p.done:
		b.Fatalf("did not wait: %v, %v", p.lease, p.err)
	case <-time.After(patience):
		b.Fatal("neither waits nor ends")
	}
	return p
}

// wantAdmitted expects that the call ends with a lease.
func (b *suite) wantAdmitted(p *pendingAdmit) *admission.Lease {
	b.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		b.Fatal("still waits")
	}
	if p.err != nil {
		b.Fatalf("not admitted: %v", p.err)
	}
	return p.lease
}

func (b *suite) wantWaiting(all ...*pendingAdmit) {
	b.Helper()
	for i, p := range all {
		select {
		case <-p.done:
			b.Fatalf("call %d ended: %v, %v", i, p.lease, p.err)
		default:
		}
	}
}

func (b *suite) eventually(what string, ok func() bool) {
	b.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func (b *suite) setTenantLimits(l admission.TenantLimits) {
	b.SetTenants(map[string]admission.TenantLimits{"acme": l})
}

func concurrency(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 2})
	one, two := b.admit(admission.Request{}), b.admit(admission.Request{})
	three := b.startAdmit(admission.Request{})
	four := b.startAdmit(admission.Request{})
	b.wantWaiting(three, four)
	one.Release()
	one.Release()
	last := b.wantAdmitted(three)
	b.wantWaiting(four)
	two.Release()
	b.wantAdmitted(four).Release()
	last.Release()
	b.eventually("everything is free", func() bool { return b.Stats("chat").InFlight == 0 })
	b.admit(admission.Request{}).Release()
}

func exactBudget(b *suite) {
	const callers, budget = 400, 20
	b.SetLimits("chat", admission.Limits{MaxConcurrent: budget, MaxQueue: callers})
	var inside, most atomic.Int64
	full := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			lease, err := b.tryAdmit(admission.Request{Timeout: time.Minute})
			if err != nil {
				b.Error(err)
				return
			}
			n := inside.Add(1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			if n == budget {
				once.Do(func() { close(full) })
			}
			select {
			case <-full:
			case <-time.After(patience):
				b.Errorf("only %d inside at once", inside.Load())
			}
			inside.Add(-1)
			lease.Release()
		})
	}
	wg.Wait()
	if most.Load() != budget {
		b.Errorf("at most %d inside at once, want %d", most.Load(), budget)
	}
}

func tokens(b *suite) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 6000}) // 100 per second
	start := time.Now()                                          // before the tokens are gone, so that a pause here only adds to what is measured
	b.admit(admission.Request{Tokens: 6000}).Release()
	large, small := b.startAdmit(admission.Request{Tokens: 50}), b.startAdmit(admission.Request{Tokens: 1})
	b.wantAdmitted(large)
	b.wantAdmitted(small)
	if took := time.Since(start); took < 450*time.Millisecond {
		b.Errorf("51 tokens came after %v, want 510 ms", took)
	}
}

func tooLate(b *suite) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 600})
	b.admit(admission.Request{Tokens: 600}).Release()
	for range 2 {
		after := b.wantRefused(admission.Request{Tokens: 100, Timeout: 5 * time.Second}, admission.ModelTokens)
		if after < 9*time.Second || after > 10600*time.Millisecond {
			b.Errorf("retry after %v, want 10 s, and hardly more", after)
		}
	}
}

func neverFits(b *suite) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 60})
	b.SetLimits("large", admission.Limits{})
	b.setTenantLimits(admission.TenantLimits{TokensPerMinute: 90})
	for _, r := range []admission.Request{{Model: "chat", Tokens: 61}, {Model: "large", Tenant: "acme", Tokens: 91}} {
		if lease, err := b.tryAdmit(r); !errors.Is(err, admission.ErrNeverFits) {
			b.Errorf("got %v, %v, want ErrNeverFits", lease, err)
		}
	}
	if lease, err := b.tryAdmit(admission.Request{Model: "nobody"}); !errors.Is(err, admission.ErrUnknownModel) {
		b.Errorf("got %v, %v, want ErrUnknownModel", lease, err)
	}
}

// unused: a waiter that is cancelled holds nothing and was charged nothing.
func unused(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1, TokensPerMinute: 600})
	b.setTenantLimits(admission.TenantLimits{RequestsPerMinute: 2, TokensPerMinute: 600})
	holder := b.admit(admission.Request{})
	for range 5 {
		ctx, leave := context.WithCancel(b.ctx())
		_, err := b.Admit(ctx, admission.Request{Model: "chat", Tenant: "acme", Tokens: 600,
			Unlocked: admission.UnlockedHooks{OnWait: leave}, Timeout: patience})
		if !errors.Is(err, context.Canceled) {
			b.Fatalf("got %v, want %v", err, context.Canceled)
		}
	}
	holder.Release()
	b.admit(admission.Request{Tenant: "acme", Tokens: 590}).Release()
}

func changedLimits(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	b.admit(admission.Request{})
	waiting := b.startAdmit(admission.Request{})
	b.wantWaiting(waiting)
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 2})
	b.wantAdmitted(waiting)
	other := b.startAdmit(admission.Request{})
	b.Remove("chat")
	<-other.done
	if !errors.Is(other.err, admission.ErrRemoved) {
		b.Errorf("got %v, want ErrRemoved", other.err)
	}
}

func tenantRequests(b *suite) {
	b.SetLimits("chat", admission.Limits{})
	b.setTenantLimits(admission.TenantLimits{RequestsPerMinute: 3})
	for i := range 3 {
		lease := b.admit(admission.Request{Tenant: "acme"})
		if got := lease.Quota().Requests; got.Limit != 3 || got.Remaining != int64(2-i) || got.Reset <= 0 {
			b.Errorf("quota %+v after %d requests", got, i+1)
		}
	}
	after := b.wantRefused(admission.Request{Tenant: "acme"}, admission.TenantRequests)
	if after < 19*time.Second || after > 21100*time.Millisecond {
		b.Errorf("retry after %v, want 20 s, and hardly more", after)
	}
	b.admit(admission.Request{Tenant: "other"})
}

func tenantTokens(b *suite) {
	b.SetLimits("chat", admission.Limits{})
	b.setTenantLimits(admission.TenantLimits{TokensPerMinute: 600})
	b.admit(admission.Request{Tenant: "acme", Tokens: 600}).Release()
	after := b.wantRefused(admission.Request{Tenant: "acme", Tokens: 100}, admission.TenantTokens)
	if after < 9*time.Second || after > 10600*time.Millisecond {
		b.Errorf("retry after %v, want 10 s, and hardly more", after)
	}
}

func tenantStreams(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	b.setTenantLimits(admission.TenantLimits{MaxConcurrent: 2})
	running := b.admit(admission.Request{Tenant: "acme"})
	waiting := b.startAdmit(admission.Request{Tenant: "acme"})
	_ = b.wantRefused(admission.Request{Tenant: "acme"}, admission.TenantStreams)
	running.Release()
	b.wantAdmitted(waiting).Release()
	b.admit(admission.Request{Tenant: "acme"}).Release()
}

func tenantPrefill(b *suite) {
	b.SetLimits("chat", admission.Limits{})
	b.setTenantLimits(admission.TenantLimits{MaxPrefill: 1})
	r := admission.Request{Tenant: "acme", Prefill: true}
	one := b.admit(r)
	two := b.startAdmit(r)
	b.admit(admission.Request{Tenant: "other", Prefill: true})
	b.admit(admission.Request{Tenant: "third"})
	b.wantWaiting(two)
	one.FirstToken()
	b.wantAdmitted(two).Release()
	b.admit(r)
}

func correction(b *suite) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 600})
	b.setTenantLimits(admission.TenantLimits{TokensPerMinute: 700})
	first := b.admit(admission.Request{Tenant: "acme", Tokens: 600})
	first.Correct(100)
	first.Correct(0)
	first.Release()
	second := b.admit(admission.Request{Tenant: "acme", Tokens: 450})
	second.Release()
	second.Correct(100)
	b.eventually("the second is settled", func() bool {
		ctx, cancel := context.WithTimeout(b.ctx(), 300*time.Millisecond)
		defer cancel()
		lease, err := b.Admit(ctx, admission.Request{Model: "chat", Tenant: "acme", Tokens: 380})
		if err == nil {
			lease.Release()
		}
		return err == nil
	})
}

// correctionAdmitsWaiters: tokens that are given back admit waiters. Without them the wait would be
// 50 s.
func correctionAdmitsWaiters(b *suite) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 600})
	first := b.admit(admission.Request{Tokens: 600})
	waiting := b.startAdmit(admission.Request{Tokens: 500, Timeout: 2 * time.Minute})
	first.Release()
	first.Correct(50)
	b.wantAdmitted(waiting)
}

// correctionAgain: a cost that is known late replaces the first one, of a lease that is released
// and of one that is not.
func correctionAgain(b *suite) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 6000})
	first := b.admit(admission.Request{Tokens: 1000})
	first.CorrectAgain(6000) // it has no cost to replace
	first.Correct(6000)
	first.CorrectAgain(2000)
	first.CorrectAgain(-1)
	first.Release()
	second := b.admit(admission.Request{Tokens: 1000})
	second.Correct(5000)
	second.Release()
	second.CorrectAgain(500)
	b.eventually("the costs are 2000 and 500", func() bool {
		ctx, cancel := context.WithTimeout(b.ctx(), 300*time.Millisecond)
		defer cancel()
		lease, err := b.Admit(ctx, admission.Request{Model: "chat", Tokens: 3400})
		if err == nil {
			lease.Correct(0)
			lease.Release()
		}
		return err == nil
	})
	second.CorrectAgain(4000)
	waiting := b.startAdmit(admission.Request{Tokens: 2000, Timeout: 2 * time.Minute})
	b.wantWaiting(waiting)
	second.CorrectAgain(0)
	b.wantAdmitted(waiting)
}

// closing: no request waits any more, and running requests go on.
func closing(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	b.SetLimits("free", admission.Limits{})
	running := b.admit(admission.Request{})
	waiting := b.startAdmit(admission.Request{})
	b.Close()
	<-waiting.done
	if !errors.Is(waiting.err, admission.ErrClosed) {
		b.Errorf("who waited: %v", waiting.err)
	}
	if _, err := b.tryAdmit(admission.Request{}); !errors.Is(err, admission.ErrClosed) {
		b.Errorf("who would have to wait: %v", err)
	}
	if _, wait, err := b.Schedule(b.ctx(), admission.TaskRequest{Model: "chat", MaxWait: time.Minute}); wait <= 0 || err != nil {
		b.Errorf("a call that is willing to wait: %v, %v", wait, err)
	}
	b.admit(admission.Request{Model: "free"}).Release()
	running.Release()
}

// closingTasks: no task is admitted, ended or renewed any more. Requests are admitted, also those
// that have waited behind a task.
func closingTasks(b *suite) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 600})
	b.SetLimits("full", admission.Limits{MaxConcurrent: 1})
	task, _, err := b.Schedule(b.ctx(), admission.TaskRequest{Model: "chat", Tokens: 550})
	if err != nil {
		b.Fatal(err)
	}
	running := b.admit(admission.Request{Model: "full"})
	ended := make(chan struct{}, 2)
	for _, model := range []string{"full", "chat"} {
		go func() {
			defer func() { ended <- struct{}{} }()
			r := admission.TaskRequest{Model: model, Tokens: 500, MaxWait: 10 * time.Minute}
			if late, wait, err := b.Schedule(b.ctx(), r); wait <= 0 || late.ID != "" || err != nil {
				b.Errorf("a call that waited for %s: %+v, %v, %v", model, late, wait, err)
			}
		}()
		for deadline := time.Now().Add(patience); b.Stats(model).Queued == 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	behind := b.startAdmit(admission.Request{Tokens: 10, Timeout: 5 * time.Minute})
	other := b.startAdmit(admission.Request{Model: "full"})
	b.CloseTasks()
	for range 2 {
		select {
		case <-ended:
		case <-time.After(patience):
			b.Fatal("a call of Schedule still waits")
		}
	}
	b.wantAdmitted(behind).Release()
	running.Release()
	b.wantAdmitted(other).Release()
	if late, wait, err := b.Schedule(b.ctx(), admission.TaskRequest{Model: "full"}); wait <= 0 || late.ID != "" || err != nil {
		b.Errorf("a later call: %+v, %v, %v", late, wait, err)
	}
	if err := b.Complete(b.ctx(), "", task.ID, -1); !errors.Is(err, admission.ErrNotRecorded) {
		b.Errorf("Complete: %v", err)
	}
	if same, err := b.Renew(b.ctx(), "", task.ID, time.Hour); !errors.Is(err, admission.ErrNotRecorded) || same.ID != task.ID {
		b.Errorf("Renew: %+v, %v", same, err)
	}
	if _, err := b.Renew(b.ctx(), "", "nobody", time.Hour); !errors.Is(err, admission.ErrUnknownTask) {
		b.Errorf("Renew of no task: %v", err)
	}
	if n := b.Stats("chat").InFlight; n != 1 {
		b.Errorf("%d leases, want that of the task", n)
	}
}

// order: bands are strict, and tenants inside a band share by weight.
func order(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	b.SetTenants(map[string]admission.TenantLimits{"b": {Weight: 2}})
	current := b.admit(admission.Request{})
	waiting := map[string]*pendingAdmit{}
	for _, name := range []string{"z-batch", "a1", "a2", "b1", "b2", "b3", "y-interactive"} {
		r := admission.Request{Tenant: name[:1], Tokens: 8}
		switch name {
		case "z-batch":
			r.Priority = admission.Batch
		case "y-interactive":
			r.Priority = admission.Interactive
		}
		waiting[name] = b.startAdmit(r)
	}
	var got []string
	for len(waiting) > 0 {
		current.Release()
		b.eventually("the next is admitted", func() bool {
			for name, p := range waiting {
				select {
				case <-p.done:
					got, current = append(got, name), b.wantAdmitted(p)
					delete(waiting, name)
					return true
				default:
				}
			}
			return false
		})
	}
	want := []string{"y-interactive", "a1", "b1", "b2", "a2", "b3", "z-batch"}
	if !slices.Equal(got, want) {
		b.Errorf("order %v, want %v", got, want)
	}
}

// noPassing: a small request does not pass a large one that waits for its tokens; one of a higher
// band does.
func noPassing(b *suite) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 600})
	b.admit(admission.Request{Tokens: 590})
	large := b.startAdmit(admission.Request{Tenant: "large", Tokens: 20})
	small := b.startAdmit(admission.Request{Tenant: "small", Tokens: 1})
	b.admit(admission.Request{Tenant: "high", Priority: admission.Interactive, Tokens: 2})
	b.wantWaiting(large, small)
	b.wantAdmitted(large)
	b.wantAdmitted(small)
}

func timeout(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	holder := b.admit(admission.Request{})
	if lease, err := b.tryAdmit(admission.Request{Timeout: 50 * time.Millisecond}); !errors.Is(err, admission.ErrTimeout) {
		b.Errorf("got %v, %v, want ErrTimeout", lease, err)
	}
	holder.Release()
	b.admit(admission.Request{})
}

func queueFull(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1, MaxQueue: 1})
	b.SetLimits("strict", admission.Limits{MaxConcurrent: 1, MaxQueue: -1})
	b.admit(admission.Request{})
	b.startAdmit(admission.Request{})
	_ = b.wantRefused(admission.Request{}, admission.QueueFull)
	b.admit(admission.Request{Model: "strict"})
	_ = b.wantRefused(admission.Request{Model: "strict"}, admission.QueueFull)
}

func eviction(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1, MaxQueue: 1})
	b.admit(admission.Request{})
	low := b.startAdmit(admission.Request{Priority: admission.Batch})
	high := b.startAdmit(admission.Request{Priority: admission.Interactive})
	<-low.done
	var refused *admission.Refused
	if !errors.As(low.err, &refused) || refused.Reason != admission.Evicted {
		b.Errorf("got %v, want a refusal: evicted", low.err)
	}
	b.wantWaiting(high)
}

func poolShares(b *suite) {
	got := map[string]int{}
	for model, weight := range map[string]int{"a": 5, "b": 3, "c": 2} {
		b.SetLimits(model, admission.Limits{Weight: weight, MaxConcurrent: 100})
	}
	b.SetPools(map[string][]string{"auto": {"a", "b", "c"}})
	for range 500 {
		lease := b.admit(admission.Request{Pool: "auto", Tokens: 10})
		got[lease.Model()]++
		lease.Release()
	}
	for model, want := range map[string]int{"a": 250, "b": 150, "c": 100} {
		if n := got[model]; n < want-10 || n > want+10 {
			b.Errorf("%v, want %s about %d times", got, model, want)
		}
	}
}

func poolQueue(b *suite) {
	for _, model := range []string{"a", "b"} {
		b.SetLimits(model, admission.Limits{MaxConcurrent: 1})
	}
	b.SetPools(map[string][]string{"auto": {"a", "b"}})
	one, two := b.admit(admission.Request{Pool: "auto"}), b.admit(admission.Request{Pool: "auto"})
	if one.Model() == two.Model() {
		b.Fatalf("both went to %s", one.Model())
	}
	waiting := b.startAdmit(admission.Request{Pool: "auto"})
	b.wantWaiting(waiting)
	two.Release()
	if got := b.wantAdmitted(waiting).Model(); got != two.Model() {
		b.Errorf("went to %s, but %s had room", got, two.Model())
	}
}

func recoveredRequest(b *suite) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 2, TokensPerMinute: 60})
	lease := b.RecoverRequest(admission.RecoveredRequest{Model: "chat", ID: "before-1", Tokens: 60})
	if lease.ID() != "before-1" {
		b.Fatalf("got %v", lease)
	}
	b.eventually("the resumed lease counts", func() bool { return b.Stats("chat").InFlight == 1 })
	b.admit(admission.Request{Tokens: 50}) // recovered requests are charged no tokens
	waiting := b.startAdmit(admission.Request{})
	b.wantWaiting(waiting)
	lease.Release()
	b.wantAdmitted(waiting)
}

// schedule expects a task.
func (b *suite) schedule(r admission.TaskRequest) admission.Task {
	b.Helper()
	if r.Model == "" && r.Pool == "" {
		r.Model = "chat"
	}
	got, wait, err := b.Schedule(b.ctx(), r)
	if err != nil || wait != 0 || got.ID == "" {
		b.Fatalf("got %+v, %v, %v, want a task", got, wait, err)
	}
	return got
}

// postponed expects to be told to wait.
func (b *suite) postponed(r admission.TaskRequest) time.Duration {
	b.Helper()
	if r.Model == "" && r.Pool == "" {
		r.Model = "chat"
	}
	got, wait, err := b.Schedule(b.ctx(), r)
	if err != nil || wait <= 0 || got != (admission.Task{}) {
		b.Fatalf("got %+v, %v, %v, want a wait", got, wait, err)
	}
	return wait
}

func (b *suite) wantUnknownTask(what string, err error) {
	b.Helper()
	if !errors.Is(err, admission.ErrUnknownTask) {
		b.Errorf("%s: got %v, want ErrUnknownTask", what, err)
	}
}
