package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// books follows what callers do at several gateways, and what that must cost.
type books struct {
	t   *testing.T
	all []*admission.Controller
	// running counts the leases of the model with a limit.
	running atomic.Int64

	mu sync.Mutex
	// spent has the cost of what has ended, by the key of the bucket in Redis; guarded by mu
	spent map[string]int64
}

const (
	booksLimit = 6
	booksSize  = 6_000_000 // tokens per minute, more than are spent
)

// TestBooksOfThreeGateways: callers do anything at three gateways, in any order. A limit is obeyed,
// and nothing is left in the end. Each bucket has been charged the real cost, to the token.
func TestBooksOfThreeGateways(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			b := &books{t: t, all: controllers(t, 3, "sluice", server), spent: map[string]int64{}}
			own := admission.TenantLimits{TokensPerMinute: booksSize}
			ofKey := own
			ofKey.MaxConcurrent = 3
			for _, c := range b.all {
				c.SetLimits("chat", admission.Limits{MaxConcurrent: booksLimit, TokensPerMinute: booksSize})
				c.SetTenants(map[string]admission.TenantLimits{"acme": own, admission.KeyTenant("acme/k"): ofKey})
			}
			// A bucket that is never full again has gained a known number of tokens in the end.
			lease, err := b.all[0].Admit(t.Context(), admission.Request{Model: "chat", Tenant: "acme", APIKey: "acme/k", Tokens: booksSize / 2})
			if err != nil {
				t.Fatal(err)
			}
			lease.Release()
			wantInUse(t, server, "chat", 0)
			before := b.levels(server)
			var callers sync.WaitGroup
			for i := range uint64(20) {
				callers.Go(func() { b.call(rand.New(rand.NewPCG(seed, i))) })
			}
			callers.Wait()
			b.wantNothingLeft(server)
			for key, was := range before {
				eventually(t, key+" has been charged what was used", func() bool {
					now := b.levels(server)[key]
					gained := booksSize * (now.seen.UnixMicro() - was.seen.UnixMicro()) / time.Minute.Microseconds()
					off := now.tokens - (was.tokens - b.spent[key] + gained)
					return off >= -1 && off <= 1
				})
			}
		})
	}
}

// levels reads the buckets of the model, the tenant and its key.
func (b *books) levels(server *redistest.Server) map[string]level {
	client, all := server.Client(), map[string]level{}
	for _, key := range []string{"runtime:chat", "tenant_runtime:acme", "tenant_runtime:#acme/k"} {
		tokens, err := client.HGet(b.t.Context(), "{sluice}:"+key, "tokens").Int64()
		at, atErr := client.HGet(b.t.Context(), "{sluice}:"+key, "tokens_at").Int64()
		if err = errors.Join(err, atErr); err != nil {
			b.t.Fatal(err)
		}
		all[key] = level{tokens: tokens, seen: time.UnixMicro(at)}
	}
	return all
}

// wantNothingLeft waits until neither Redis nor a gateway counts anything.
func (b *books) wantNothingLeft(server *redistest.Server) {
	client := server.Client()
	for _, set := range []string{"leases:*", "tenant_leases:*", "prefill:*", "task_requests:*"} {
		eventually(b.t, "no "+set, func() bool { return len(client.Keys(b.t.Context(), "{sluice}:"+set).Val()) == 0 })
	}
	for i, c := range b.all {
		eventually(b.t, fmt.Sprint("gateway ", i, " counts nothing"), func() bool {
			return c.Stats("chat").InFlight == 0 && c.Tenant("acme") == admission.TenantStats{Quota: c.Tenant("acme").Quota} &&
				c.Tenant(admission.KeyTenant("acme/k")).Running == 0
		})
	}
}

// spend records what has been used for good.
func (b *books) spend(limited bool, tokens int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent["runtime:chat"] += int64(tokens)
	b.spent["tenant_runtime:acme"] += int64(tokens)
	if limited {
		b.spent["tenant_runtime:#acme/k"] += int64(tokens)
	}
}

// hold counts one lease of the model.
func (b *books) hold() {
	if n := b.running.Add(1); n > booksLimit {
		b.t.Errorf("%d at once, the limit is %d", n, booksLimit)
	}
}

// call is a caller with a number of requests and tasks.
func (b *books) call(r *rand.Rand) {
	for range 60 {
		key := ""
		if r.IntN(2) == 0 {
			key = "acme/k"
		}
		if r.IntN(2) == 0 {
			b.task(r, key)
			continue
		}
		ask := admission.Request{APIKey: key, Tokens: 1 + r.IntN(50)}
		if cost, ok := b.request(r, ask, true); ok {
			b.spend(key != "", cost)
		}
	}
}

// request makes a request at any gateway, whose caller may leave, and returns its cost.
func (b *books) request(r *rand.Rand, ask admission.Request, leased bool) (cost int, ok bool) {
	ask.Model, ask.Tenant, ask.Prefill, ask.Timeout = "chat", "acme", r.IntN(2) == 0, time.Duration(1+r.IntN(50))*time.Millisecond
	ctx, leave := context.WithTimeout(b.t.Context(), time.Duration(1+r.IntN(100))*time.Millisecond)
	defer leave()
	lease, err := b.all[r.IntN(len(b.all))].Admit(ctx, ask)
	if err != nil {
		return 0, false
	}
	if leased {
		b.hold()
	}
	time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
	if r.IntN(2) == 0 {
		lease.FirstToken()
	}
	cost = r.IntN(ask.Tokens + 1)
	early := r.IntN(2) == 0
	if early {
		lease.Correct(cost)
	}
	if leased {
		b.running.Add(-1)
	}
	lease.Release()
	if !early {
		lease.Correct(cost)
	}
	return cost, true
}

// task schedules a task at one gateway, uses it at others, and completes it at two.
func (b *books) task(r *rand.Rand, key string) {
	any := func() *admission.Controller { return b.all[r.IntN(len(b.all))] }
	ask := admission.TaskRequest{Model: "chat", Tenant: "acme", APIKey: key, Tokens: 100, MaxWait: time.Duration(r.IntN(20)) * time.Millisecond}
	if r.IntN(2) == 0 {
		ask.Key = strconv.FormatUint(r.Uint64(), 36)
	}
	task, wait, err := any().Schedule(b.t.Context(), ask)
	if err != nil {
		b.t.Error(err)
	}
	if err != nil || wait > 0 {
		return
	}
	b.hold()
	if ask.Key != "" {
		if again, _, err := any().Schedule(b.t.Context(), ask); again.ID != task.ID {
			b.t.Errorf("a repeated call got %+v, %v, want task %s", again, err, task.ID)
		}
	}
	for range r.IntN(3) { // within the estimate of the task
		_, _ = b.request(r, admission.Request{UnderTask: task.ID, Tokens: 1 + r.IntN(50)}, false)
	}
	b.running.Add(-1)
	declared := 100 + r.IntN(50)
	var ends atomic.Int64
	var both sync.WaitGroup
	for _, c := range []*admission.Controller{any(), any()} {
		both.Go(func() {
			if err := c.Complete(b.t.Context(), "acme", task.ID, declared); err == nil {
				ends.Add(1)
			} else if !errors.Is(err, admission.ErrUnknownTask) {
				b.t.Error(err)
			}
		})
	}
	both.Wait()
	if n := ends.Load(); n != 1 {
		b.t.Errorf("task %s ended %d times", task.ID, n)
	}
	b.spend(key != "", declared)
}
