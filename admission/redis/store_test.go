package redis

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testPatience bounds every wait for a condition.
const testPatience = testutil.Patience

// stores runs n stores on the servers. Their timeouts are long, because the machine of a test may
// be busy.
func stores(t testing.TB, n int, cfg Config, servers ...*redistest.Server) []*Store {
	t.Helper()
	if cfg.URL = redistest.URL(servers...); cfg.Timeout == 0 {
		cfg.Timeout = 500 * time.Millisecond
	}
	var all []*Store
	for i := range n {
		cfg.Gateway = fmt.Sprintf("gw%d", i)
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		runStore(t, s)
		all = append(all, s)
	}
	for _, s := range all {
		eventually(t, "all stores know each other", func() bool { return s.Status().Up && s.Gateways() == n })
	}
	return all
}

// runStore runs a store until the test ends, or until the returned function is called.
func runStore(t testing.TB, s *Store) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}

// acquire calls Acquire and waits for the verdicts.
func acquire(s *Store, claims ...admission.Claim) []admission.Verdict {
	answer := make(chan []admission.Verdict, 1)
	s.Acquire(claims, func(v []admission.Verdict) { answer <- v })
	return <-answer
}

func reasons(verdicts []admission.Verdict) []admission.Reason {
	var out []admission.Reason
	for _, v := range verdicts {
		out = append(out, v.Reason)
	}
	return out
}

func wantReasons(t testing.TB, got []admission.Verdict, want ...admission.Reason) {
	t.Helper()
	if !slices.Equal(reasons(got), want) {
		t.Fatalf("verdicts %+v, want reasons %v", got, want)
	}
}

// wantInUse waits until the model has so many leases in the store.
func wantInUse(t testing.TB, server *redistest.Server, model string, want int64) {
	t.Helper()
	c := server.Client()
	var got int64
	defer func() {
		if t.Failed() {
			t.Logf("%d leases of %s", got, model)
		}
	}()
	eventually(t, fmt.Sprintf("%d leases of %s", want, model), func() bool {
		got, _ = c.ZCard(t.Context(), "{sluice}:leases:"+model).Result()
		return got == want
	})
}

func limited(id string, most int) admission.Claim {
	return admission.Claim{ID: id, Model: "chat", Tenant: "acme", Limits: admission.Limits{MaxConcurrent: most}}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	s := stores(t, 1, Config{}, redistest.Start(t))[0]
	wantReasons(t, acquire(s, limited("a", 2), limited("b", 2), limited("c", 2), limited("a", 2)),
		admission.Granted, admission.Granted, admission.ModelConcurrency, admission.Granted)
	s.Release("a", 0, false)
	wantReasons(t, acquire(s, limited("d", 2)), admission.Granted)

	slow := admission.Claim{ID: "e", Model: "slow", Tenant: "acme", Tokens: 60,
		Limits: admission.Limits{TokensPerMinute: 60}, TenantLimits: admission.TenantLimits{RequestsPerMinute: 10, TokensPerMinute: 1000}}
	got := acquire(s, slow)
	wantReasons(t, got, admission.Granted)
	if q := got[0].Quota; q.Requests.Limit != 10 || q.Requests.Remaining != 9 || q.Tokens.Limit != 1000 || q.Tokens.Remaining != 940 ||
		q.Tokens.Reset <= 0 || q.Tokens.Reset > 60*time.Second*60/1000 {
		t.Errorf("quota %+v", q)
	}
	slow.ID, slow.Tokens = "f", 1
	got = acquire(s, slow, slow)
	wantReasons(t, got, admission.ModelTokens, admission.ModelTokens)
	if w := got[0].Wait; w <= 0 || w > time.Second {
		t.Errorf("one token of 60 a minute comes after %v", w)
	}
	s.Release("e", 60, true)
	got = acquire(s, slow)
	wantReasons(t, got, admission.Granted)
	if q := got[0].Quota; q.Requests.Remaining != 9 || q.Tokens.Remaining != 999 {
		t.Errorf("an unused request was not given back: %+v", q)
	}
}

// TestDeniedBlocksItsCall: no claim passes a claim of the same call that its model denied; the next
// call may try.
func TestDeniedBlocksItsCall(t *testing.T) {
	t.Parallel()
	s := stores(t, 1, Config{}, redistest.Start(t))[0]
	claim := func(id string, tokens int64) admission.Claim {
		return admission.Claim{ID: id, Model: "chat", Tenant: "acme", Tokens: tokens, Limits: admission.Limits{TokensPerMinute: 100}}
	}
	many := []admission.Claim{claim("a", 50), claim("b", 60)}
	for i := range 3 * batchLimit { // over several syncs
		many = append(many, claim(fmt.Sprint(i), 1))
	}
	got := acquire(s, many...)
	if got[0].Reason != admission.Granted {
		t.Fatalf("%+v", got[0])
	}
	for i, v := range got[1:] {
		if v.Reason != admission.ModelTokens {
			t.Fatalf("claim %d: %v, want it behind the one that was turned away", i+1, v.Reason)
		}
	}
	wantReasons(t, acquire(s, claim("c", 1)), admission.Granted)
}

// TestNamesDoNotMeet uses names that would make one key if they were joined carelessly.
func TestNamesDoNotMeet(t *testing.T) {
	t.Parallel()
	s := stores(t, 1, Config{}, redistest.Start(t))[0]
	for i, name := range []string{"", ":", "a", "a:", ":a", "{x}", "}", "a\nb", "a\x00b", "prefill:a", "a b", "ä"} {
		c := admission.Claim{ID: fmt.Sprint(i), Model: name, Tenant: name, Replica: "r" + name, ReplicaLimit: 1, Prefill: true,
			Limits: admission.Limits{MaxConcurrent: 1}, TenantLimits: admission.TenantLimits{MaxConcurrent: 1, MaxPrefill: 1}}
		wantReasons(t, acquire(s, c), admission.Granted)
	}
}

func TestExpiryAndRenewal(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := stores(t, 1, Config{Lease: time.Second}, server)
	dying, err := New(Config{Server: Server{URL: redistest.URL(server)}, Gateway: "dying", Lease: time.Second, Timeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	stop := runStore(t, dying)
	eventually(t, "it is up", func() bool { return dying.Status().Up })
	wantReasons(t, acquire(all[0], limited("stays", 2)), admission.Granted)
	wantReasons(t, acquire(dying, limited("expires", 2)), admission.Granted)
	stop()
	wantReasons(t, acquire(all[0], limited("c", 2)), admission.ModelConcurrency)
	eventually(t, "the lease of the process that is gone expires", func() bool {
		return acquire(all[0], limited("c", 2))[0].Reason == admission.Granted
	})
	c := server.Client()
	if _, err := c.ZScore(t.Context(), "{sluice}:leases:chat", "stays").Result(); err != nil {
		t.Error("a lease that is held was not renewed:", err)
	}
	if n := c.Del(t.Context(), "{sluice}:leases:chat").Val(); n != 1 {
		t.Fatal("nothing to lose")
	}
	wantInUse(t, server, "chat", 2) // the renewal adds them again
}

// TestFreed: a gateway with waiters is told of what another one gives back.
func TestFreed(t *testing.T) {
	t.Parallel()
	all := stores(t, 2, Config{}, redistest.Start(t))
	heard := &recordingSubscriber{}
	all[1].Subscribe(heard)
	wantReasons(t, acquire(all[0], limited("a", 1)), admission.Granted)
	wantReasons(t, acquire(all[1], limited("b", 1)), admission.ModelConcurrency)
	all[0].Release("a", 0, false)
	eventually(t, "it is told", func() bool { return heard.freed("chat") > 0 })
	wantReasons(t, acquire(all[1], limited("b", 1)), admission.Granted)
}

// TestFirstToken: the first token makes room in a tenant's limit of prefill, over two gateways.
func TestFirstToken(t *testing.T) {
	t.Parallel()
	all := stores(t, 2, Config{}, redistest.Start(t))
	heard := &recordingSubscriber{}
	all[1].Subscribe(heard)
	claim := func(id string) admission.Claim {
		return admission.Claim{ID: id, Model: "chat", Tenant: "acme", Prefill: true, TenantLimits: admission.TenantLimits{MaxPrefill: 1}}
	}
	wantReasons(t, acquire(all[0], claim("a")), admission.Granted)
	wantReasons(t, acquire(all[1], claim("b")), admission.TenantPrefill)
	all[0].FirstToken("a")
	eventually(t, "it is told", func() bool { return heard.freed("chat") > 0 })
	wantReasons(t, acquire(all[1], claim("b")), admission.Granted)
	if got := acquire(all[1], claim("c")); got[0].ModelInUse != 2 {
		t.Errorf("%+v, want both still running", got)
	}
}

// TestServed: each gateway is told what the other serves, each token once.
func TestServed(t *testing.T) {
	t.Parallel()
	all := stores(t, 2, Config{}, redistest.Start(t))
	heard := &recordingSubscriber{}
	all[1].Subscribe(heard)
	claim := func(id, tenant string, tokens int64) admission.Claim {
		return admission.Claim{ID: id, Model: "chat", Tenant: tenant, Tokens: tokens}
	}
	id := 0
	ask := func(s *Store, tenant string, tokens int64) {
		id++
		wantReasons(t, acquire(s, claim(fmt.Sprint(id), tenant, tokens)), admission.Granted)
	}
	ask(all[1], "acme", 5)
	eventually(t, "it has looked once", func() bool {
		all[1].mu.Lock()
		defer all[1].mu.Unlock()
		return all[1].served["chat"]["acme"].total == 5
	})
	ask(all[0], "acme", 7)
	ask(all[0], "other", 100) // the other gateway has no claims of this tenant
	ask(all[1], "acme", 11)
	eventually(t, "it is told", func() bool { return heard.served("chat/acme") == 7 })
	ask(all[0], "acme", 13)
	eventually(t, "it is told", func() bool { return heard.served("chat/acme") == 20 })
	if n := heard.served("chat/other"); n != 0 {
		t.Errorf("%d tokens of a tenant that is not here", n)
	}
}

// recordingSubscriber is a Subscriber that counts its calls.
type recordingSubscriber struct {
	mu     sync.Mutex
	models map[string]int
	tokens map[string]int64
}

func (e *recordingSubscriber) CapacityFreed(model string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.models == nil {
		e.models = map[string]int{}
	}
	e.models[model]++
}

func (e *recordingSubscriber) TokensServed(model, tenant string, tokens int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tokens == nil {
		e.tokens = map[string]int64{}
	}
	e.tokens[model+"/"+tenant] += tokens
}

func (e *recordingSubscriber) TaskEnded(string) {}

func (e *recordingSubscriber) TaskRenewed(string, time.Duration) {}

func (e *recordingSubscriber) freed(model string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.models[model]
}

func (e *recordingSubscriber) served(key string) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tokens[key]
}
