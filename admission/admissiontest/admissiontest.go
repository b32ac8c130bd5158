// Package admissiontest holds what every admission.Controller must show, whatever keeps its limits: one process, or a store that gateways
// share. It runs in real time, for a few seconds, because a store has a clock of its own.
package admissiontest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// patience is how long a condition that must come true may take.
const patience = 10 * time.Second

// Run runs all tests. open returns a Controller that nobody has used; it ends with its test.
func Run(t *testing.T, open func(t *testing.T) *admission.Controller) {
	for name, test := range map[string]func(*bench){
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
		"settle":           settle,
		"settle wakes":     settleWakes,
		"close":            closing,
		"order":            order,
		"no passing":       noPassing,
		"timeout":          timeout,
		"queue full":       queueFull,
		"eviction":         eviction,
		"pool shares":      poolShares,
		"pool queue":       poolQueue,
		"resume":           resume,
		"task":             task,
		"task key":         taskKey,
		"task renewal":     taskRenewal,
		"task waits":       taskWaits,
		"task settles":     taskSettles,
		"task and request": taskAndRequest,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&bench{Controller: open(t), T: t})
		})
	}
}

// bench is a Controller and its test.
type bench struct {
	*admission.Controller
	*testing.T
}

// ctx is the test's: it ends with the test.
func (b *bench) ctx() context.Context { return b.T.Context() }

// admit expects a lease at once.
func (b *bench) admit(r admission.Request) *admission.Lease {
	b.Helper()
	lease, err := b.try(r)
	if err != nil {
		b.Fatalf("not admitted: %v", err)
	}
	return lease
}

// try waits a few seconds at most.
func (b *bench) try(r admission.Request) (*admission.Lease, error) {
	if r.Model == "" && r.Pool == "" {
		r.Model = "chat"
	}
	if r.Timeout == 0 {
		r.Timeout = patience
	}
	return b.Admit(b.ctx(), r)
}

// refuse expects a refusal at once, and returns after how long to retry.
func (b *bench) refuse(r admission.Request, reason admission.Reason) time.Duration {
	b.Helper()
	lease, err := b.try(r)
	var refused *admission.Refused
	if !errors.As(err, &refused) || refused.Reason != reason || refused.RetryAfter <= 0 {
		b.Fatalf("got %v, %v, want a refusal: %v", lease, err, reason)
	}
	return refused.RetryAfter
}

// pending is an Admit that has not ended.
type pending struct {
	done  chan struct{}
	lease *admission.Lease
	err   error
}

// queue starts an Admit and returns when it waits in a queue.
func (b *bench) queue(r admission.Request) *pending {
	b.Helper()
	p := &pending{done: make(chan struct{})}
	waits := make(chan struct{})
	r.OnWait = func() { close(waits) }
	go func() {
		defer close(p.done)
		p.lease, p.err = b.try(r)
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

// get expects that the call ends with a lease.
func (b *bench) get(p *pending) *admission.Lease {
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

func (b *bench) waits(all ...*pending) {
	b.Helper()
	for i, p := range all {
		select {
		case <-p.done:
			b.Fatalf("call %d ended: %v, %v", i, p.lease, p.err)
		default:
		}
	}
}

func (b *bench) until(what string, ok func() bool) {
	b.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func (b *bench) tenant(l admission.TenantLimits) {
	b.SetTenants(map[string]admission.TenantLimits{"acme": l})
}

func concurrency(b *bench) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 2})
	one, two := b.admit(admission.Request{}), b.admit(admission.Request{})
	three := b.queue(admission.Request{})
	four := b.queue(admission.Request{})
	b.waits(three, four)
	one.Release()
	one.Release()
	last := b.get(three)
	b.waits(four)
	two.Release()
	b.get(four).Release()
	last.Release()
	b.until("everything is free", func() bool { return b.Stats("chat").InFlight == 0 })
	b.admit(admission.Request{}).Release()
}

func exactBudget(b *bench) {
	const callers, budget = 400, 20
	b.SetLimits("chat", admission.Limits{MaxConcurrent: budget, MaxQueue: callers})
	var inside, most atomic.Int64
	full := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			lease, err := b.try(admission.Request{Timeout: time.Minute})
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

func tokens(b *bench) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 6000}) // 100 a second
	b.admit(admission.Request{Tokens: 6000}).Release()
	start := time.Now()
	large, small := b.queue(admission.Request{Tokens: 50}), b.queue(admission.Request{Tokens: 1})
	b.get(large)
	b.get(small)
	if took := time.Since(start); took < 450*time.Millisecond {
		b.Errorf("51 tokens came after %v, want 510 ms", took)
	}
}

func tooLate(b *bench) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 600})
	b.admit(admission.Request{Tokens: 600}).Release()
	for range 2 {
		after := b.refuse(admission.Request{Tokens: 100, Timeout: 5 * time.Second}, admission.ModelTokens)
		if after < 9*time.Second || after > 13*time.Second {
			b.Errorf("retry after %v, want 10 s with jitter on top", after)
		}
	}
}

func neverFits(b *bench) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 60})
	b.SetLimits("large", admission.Limits{})
	b.tenant(admission.TenantLimits{TokensPerMinute: 90})
	for _, r := range []admission.Request{{Model: "chat", Tokens: 61}, {Model: "large", Tenant: "acme", Tokens: 91}} {
		if lease, err := b.try(r); !errors.Is(err, admission.ErrNeverFits) {
			b.Errorf("got %v, %v, want ErrNeverFits", lease, err)
		}
	}
	if lease, err := b.try(admission.Request{Model: "nobody"}); !errors.Is(err, admission.ErrUnknownModel) {
		b.Errorf("got %v, %v, want ErrUnknownModel", lease, err)
	}
}

// unused: who leaves while it waits takes nothing with it.
func unused(b *bench) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1, TokensPerMinute: 600})
	b.tenant(admission.TenantLimits{RequestsPerMinute: 2, TokensPerMinute: 600})
	holder := b.admit(admission.Request{})
	for range 5 {
		ctx, leave := context.WithCancel(b.ctx())
		_, err := b.Admit(ctx, admission.Request{Model: "chat", Tenant: "acme", Tokens: 600, OnWait: leave, Timeout: patience})
		if !errors.Is(err, context.Canceled) {
			b.Fatalf("got %v, want %v", err, context.Canceled)
		}
	}
	holder.Release()
	b.admit(admission.Request{Tenant: "acme", Tokens: 590}).Release()
}

func changedLimits(b *bench) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	b.admit(admission.Request{})
	waiting := b.queue(admission.Request{})
	b.waits(waiting)
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 2})
	b.get(waiting)
	other := b.queue(admission.Request{})
	b.Remove("chat")
	<-other.done
	if !errors.Is(other.err, admission.ErrRemoved) {
		b.Errorf("got %v, want ErrRemoved", other.err)
	}
}

func tenantRequests(b *bench) {
	b.SetLimits("chat", admission.Limits{})
	b.tenant(admission.TenantLimits{RequestsPerMinute: 3})
	for i := range 3 {
		lease := b.admit(admission.Request{Tenant: "acme"})
		if got := lease.Quota().Requests; got.Limit != 3 || got.Remaining != int64(2-i) || got.Reset <= 0 {
			b.Errorf("quota %+v after %d requests", got, i+1)
		}
	}
	after := b.refuse(admission.Request{Tenant: "acme"}, admission.TenantRequests)
	if after < 19*time.Second || after > 26*time.Second {
		b.Errorf("retry after %v, want 20 s with jitter on top", after)
	}
	b.admit(admission.Request{Tenant: "other"})
}

func tenantTokens(b *bench) {
	b.SetLimits("chat", admission.Limits{})
	b.tenant(admission.TenantLimits{TokensPerMinute: 600})
	b.admit(admission.Request{Tenant: "acme", Tokens: 600}).Release()
	after := b.refuse(admission.Request{Tenant: "acme", Tokens: 100}, admission.TenantTokens)
	if after < 9*time.Second || after > 13*time.Second {
		b.Errorf("retry after %v, want 10 s with jitter on top", after)
	}
}

func tenantStreams(b *bench) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	b.tenant(admission.TenantLimits{MaxConcurrent: 2})
	running := b.admit(admission.Request{Tenant: "acme"})
	waiting := b.queue(admission.Request{Tenant: "acme"})
	_ = b.refuse(admission.Request{Tenant: "acme"}, admission.TenantStreams)
	running.Release()
	b.get(waiting).Release()
	b.admit(admission.Request{Tenant: "acme"}).Release()
}

func tenantPrefill(b *bench) {
	b.SetLimits("chat", admission.Limits{})
	b.tenant(admission.TenantLimits{MaxPrefill: 1})
	r := admission.Request{Tenant: "acme", Prefill: true}
	one := b.admit(r)
	two := b.queue(r)
	b.admit(admission.Request{Tenant: "other", Prefill: true})
	b.admit(admission.Request{Tenant: "third"})
	b.waits(two)
	one.FirstToken()
	b.get(two).Release()
	b.admit(r)
}

func settle(b *bench) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 600})
	b.tenant(admission.TenantLimits{TokensPerMinute: 700})
	first := b.admit(admission.Request{Tenant: "acme", Tokens: 600})
	first.Settle(100)
	first.Settle(0)
	first.Release()
	second := b.admit(admission.Request{Tenant: "acme", Tokens: 450})
	second.Release()
	second.Settle(100)
	b.until("the second is settled", func() bool {
		ctx, cancel := context.WithTimeout(b.ctx(), 300*time.Millisecond)
		defer cancel()
		lease, err := b.Admit(ctx, admission.Request{Model: "chat", Tenant: "acme", Tokens: 380})
		if err == nil {
			lease.Release()
		}
		return err == nil
	})
}

// settleWakes: tokens that come back are there for those who wait for tokens. Without them the wait would be 50 s.
func settleWakes(b *bench) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 600})
	first := b.admit(admission.Request{Tokens: 600})
	waiting := b.queue(admission.Request{Tokens: 500, Timeout: 2 * time.Minute})
	first.Release()
	first.Settle(50)
	b.get(waiting)
}

// closing: nobody waits any more, and what runs goes on.
func closing(b *bench) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	b.SetLimits("free", admission.Limits{})
	running := b.admit(admission.Request{})
	waiting := b.queue(admission.Request{})
	b.Close()
	<-waiting.done
	if !errors.Is(waiting.err, admission.ErrClosed) {
		b.Errorf("who waited: %v", waiting.err)
	}
	if _, err := b.try(admission.Request{}); !errors.Is(err, admission.ErrClosed) {
		b.Errorf("who would have to wait: %v", err)
	}
	if _, wait, err := b.Schedule(b.ctx(), admission.TaskRequest{Model: "chat", MaxWait: time.Minute}); wait <= 0 || err != nil {
		b.Errorf("a call that is willing to wait: %v, %v", wait, err)
	}
	b.admit(admission.Request{Model: "free"}).Release()
	running.Release()
}

// order: bands, and tenants by weight inside them.
func order(b *bench) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	b.SetTenants(map[string]admission.TenantLimits{"b": {Weight: 2}})
	current := b.admit(admission.Request{})
	waiting := map[string]*pending{}
	for _, name := range []string{"z-batch", "a1", "a2", "b1", "b2", "b3", "y-interactive"} {
		r := admission.Request{Tenant: name[:1], Tokens: 8}
		switch name {
		case "z-batch":
			r.Priority = admission.Batch
		case "y-interactive":
			r.Priority = admission.Interactive
		}
		waiting[name] = b.queue(r)
	}
	var got []string
	for len(waiting) > 0 {
		current.Release()
		b.until("the next is admitted", func() bool {
			for name, p := range waiting {
				select {
				case <-p.done:
					got, current = append(got, name), b.get(p)
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

// noPassing: a small request does not pass a large one that waits for its tokens; one of a higher band does.
func noPassing(b *bench) {
	b.SetLimits("chat", admission.Limits{TokensPerMinute: 600})
	b.admit(admission.Request{Tokens: 590})
	large := b.queue(admission.Request{Tenant: "large", Tokens: 20})
	small := b.queue(admission.Request{Tenant: "small", Tokens: 1})
	b.admit(admission.Request{Tenant: "high", Priority: admission.Interactive, Tokens: 2})
	b.waits(large, small)
	b.get(large)
	b.get(small)
}

func timeout(b *bench) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1})
	holder := b.admit(admission.Request{})
	if lease, err := b.try(admission.Request{Timeout: 50 * time.Millisecond}); !errors.Is(err, admission.ErrTimeout) {
		b.Errorf("got %v, %v, want ErrTimeout", lease, err)
	}
	holder.Release()
	b.admit(admission.Request{})
}

func queueFull(b *bench) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1, MaxQueue: 1})
	b.SetLimits("strict", admission.Limits{MaxConcurrent: 1, MaxQueue: -1})
	b.admit(admission.Request{})
	b.queue(admission.Request{})
	_ = b.refuse(admission.Request{}, admission.QueueFull)
	b.admit(admission.Request{Model: "strict"})
	_ = b.refuse(admission.Request{Model: "strict"}, admission.QueueFull)
}

func eviction(b *bench) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 1, MaxQueue: 1})
	b.admit(admission.Request{})
	low := b.queue(admission.Request{Priority: admission.Batch})
	high := b.queue(admission.Request{Priority: admission.Interactive})
	<-low.done
	var refused *admission.Refused
	if !errors.As(low.err, &refused) || refused.Reason != admission.Evicted {
		b.Errorf("got %v, want a refusal: evicted", low.err)
	}
	b.waits(high)
}

func poolShares(b *bench) {
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

func poolQueue(b *bench) {
	for _, model := range []string{"a", "b"} {
		b.SetLimits(model, admission.Limits{MaxConcurrent: 1})
	}
	b.SetPools(map[string][]string{"auto": {"a", "b"}})
	one, two := b.admit(admission.Request{Pool: "auto"}), b.admit(admission.Request{Pool: "auto"})
	if one.Model() == two.Model() {
		b.Fatalf("both went to %s", one.Model())
	}
	waiting := b.queue(admission.Request{Pool: "auto"})
	b.waits(waiting)
	two.Release()
	if got := b.get(waiting).Model(); got != two.Model() {
		b.Errorf("went to %s, but %s had room", got, two.Model())
	}
}

func resume(b *bench) {
	b.SetLimits("chat", admission.Limits{MaxConcurrent: 2, TokensPerMinute: 60})
	lease, err := b.Resume(admission.Resumed{Model: "chat", ID: "before-1", Tokens: 60})
	if err != nil || lease.ID() != "before-1" {
		b.Fatalf("got %v, %v", lease, err)
	}
	b.until("the resumed lease counts", func() bool { return b.Stats("chat").InFlight == 1 })
	b.admit(admission.Request{Tokens: 50}) // resumed requests take no tokens
	waiting := b.queue(admission.Request{})
	b.waits(waiting)
	lease.Release()
	b.get(waiting)
}

// schedule expects a task.
func (b *bench) schedule(r admission.TaskRequest) admission.Task {
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

// postponed expects a wait.
func (b *bench) postponed(r admission.TaskRequest) time.Duration {
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

func (b *bench) unknown(what string, err error) {
	b.Helper()
	if !errors.Is(err, admission.ErrUnknownTask) {
		b.Errorf("%s: got %v, want ErrUnknownTask", what, err)
	}
}
