package redis

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// TestLostDuringASync: another goroutine finds that Redis does not answer while a sync is on its
// way with a part of a call. The call is answered once.
func TestLostDuringASync(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Server: Server{URL: "redis://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.redis.Close() })
	s.startSharing()
	claims := make([]admission.Claim, batchLimit+1)
	for i := range claims {
		claims[i] = admission.Claim{ID: fmt.Sprint(i), Model: "chat", Tenant: "acme"}
	}
	var answers [][]admission.Verdict
	s.Acquire(claims, func(v []admission.Verdict) { answers = append(answers, v) })
	parts, _, _ := s.nextClaims()
	if len(parts) != 1 || len(parts[0].claims) != batchLimit {
		t.Fatalf("the sync has %d parts", len(parts))
	}
	s.markUnavailable(errors.New("a task's script got no answer"))
	if err := s.applyVerdicts(parts, newClaimTable(parts), granting(batchLimit)); err != nil {
		t.Fatal(err)
	}
	if len(answers) != 1 || len(answers[0]) != len(claims) {
		t.Fatalf("%d answers", len(answers))
	}
	want := make([]admission.Reason, batchLimit)
	wantReasons(t, answers[0], append(want, admission.Unavailable)...)
}

// granting is the reply of a sync that grants n claims of one model and one tenant.
func granting(n int) reply {
	verdicts := make([]any, verdictSize*n)
	for i := range verdicts {
		verdicts[i] = int64(0)
	}
	return reply{status: "ok", fields: fields{rest: []any{verdicts, []any{}, []any{int64(0), int64(0), int64(0)}, int64(0)}}}
}

// TestClockOfRedisGoesBack: the clock of Redis was wrong for a moment, and bucket levels are of a
// time to come. They fill from now on.
func TestClockOfRedisGoesBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := stores(t, 1, Config{}, server)[0]
	claim := func(id string) admission.Claim {
		return admission.Claim{ID: id, Model: "chat", Tenant: "acme", Tokens: 600, Limits: admission.Limits{TokensPerMinute: 600}}
	}
	wantReasons(t, acquire(s, claim("a")), admission.Granted)
	tomorrow := time.Now().Add(24 * time.Hour).UnixMicro()
	if err := server.Client().HSet(t.Context(), "{sluice}:runtime:chat", "tokens_at", tomorrow).Err(); err != nil {
		t.Fatal(err)
	}
	few := claim("b")
	few.Tokens = 30 // 3 s
	wantReasons(t, acquire(s, few), admission.ModelTokens)
	eventually(t, "the bucket has filled", func() bool { return acquire(s, few)[0].Reason == admission.Granted })
}

// TestClockOfRedisJumpsAhead: all leases and tasks end in Redis when its clock jumps by an hour.
// The gateway that has them reports them before anything is granted.
func TestClockOfRedisJumpsAhead(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := stores(t, 1, Config{}, server)[0]
	wantReasons(t, acquire(s, limited("a", 2), task("task", "", time.Hour)), admission.Granted, admission.Granted)
	c := server.Client()
	leases, err := c.ZRangeWithScores(t.Context(), "{sluice}:leases:chat", 0, -1).Result()
	if err != nil || len(leases) != 2 {
		t.Fatal(leases, err)
	}
	const hour = 3_600_000_000
	for _, z := range leases {
		z.Score -= 2 * hour / 1000
		if err := c.ZAdd(t.Context(), "{sluice}:leases:chat", z).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Del(t.Context(), "{sluice}:task:task").Err(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.offset -= hour
	s.mu.Unlock()
	if v := acquire(s, limited("b", 2)); v[0].Reason == admission.Granted {
		t.Errorf("beyond the limit: %+v", v)
	}
	eventually(t, "it shares again", func() bool { return acquire(s, limited("b", 2))[0].Reason == admission.ModelConcurrency })
	_, err = s.Task(t.Context(), "acme", "task")
	wantError(t, err, nil)
}

// slowOnce is a hook of a client that gets the answer to its next script late.
type slowOnce time.Duration

func (slowOnce) DialHook(next client.DialHook) client.DialHook { return next }

func (slowOnce) ProcessPipelineHook(next client.ProcessPipelineHook) client.ProcessPipelineHook {
	return next
}

func (d slowOnce) ProcessHook(next client.ProcessHook) client.ProcessHook {
	late := time.Duration(d)
	return func(ctx context.Context, cmd client.Cmder) error {
		err := next(ctx, cmd)
		if err == nil {
			time.Sleep(late)
			late = 0
		}
		return err
	}
}

// TestASlowAnswerIsNoJump: an answer that comes late leaves the clock of Redis known less exactly.
// The next answer, which comes at once, does not show that the clock has jumped.
func TestASlowAnswerIsNoJump(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Server: Server{URL: redistest.URL(redistest.Start(t))}, Lease: 300 * time.Millisecond, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.redis.Close() })
	if _, err := s.join(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.redis.AddHook(slowOnce(s.cfg.Lease + 100*time.Millisecond))
	for range 2 {
		if r, err := s.sendSync(t.Context(), batch{}, newClaimTable(nil), time.Second); err != nil || r.status != "ok" {
			t.Error(r, err)
		}
	}
}

// TestPauseOfAClockThatWentBack: the clock of Redis was wrong for a moment, and the end of a pause
// is in a time to come. Nobody waits for it.
func TestPauseOfAClockThatWentBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := stores(t, 1, Config{}, server)[0]
	tomorrow := time.Now().Add(24 * time.Hour).UnixMicro()
	for at, set := range map[string]func() error{
		"epoch":  func() error { return server.Client().HSet(t.Context(), "{sluice}:epoch", "ready", tomorrow).Err() },
		"return": func() error { return server.Client().Set(t.Context(), "{sluice}:return", tomorrow, 0).Err() },
	} {
		if err := set(); err != nil {
			t.Fatal(err)
		}
		s.markUnavailable(errors.New("a call timed out"))
		eventually(t, "it shares again", func() bool { return s.Status().Up })
		wantReasons(t, acquire(s, limited(at, 2)), admission.Granted)
	}
	wantReasons(t, acquire(s, task("task", "", time.Minute)), admission.ModelConcurrency)
	s.Release("epoch", 0, false)
	wantReasons(t, acquire(s, task("task", "", time.Minute)), admission.Granted)
	_, err := s.Task(t.Context(), "acme", "task")
	wantError(t, err, nil)
}

// startJournaled starts a gateway that has read its journal of tasks, and waits until it shares.
func startJournaled(t *testing.T, config Config, journal string, tenants map[string]admission.TenantLimits) (c *admission.Controller, stop func()) {
	t.Helper()
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	c = admission.New(admission.Config{Shared: s, Gateway: config.Gateway, TaskJournal: journal})
	if err := c.RecoverTasks(); err != nil {
		t.Fatal(err)
	}
	c.SetLimits("chat", admission.Limits{})
	c.SetTenants(tenants)
	stop = runStore(t, s)
	eventually(t, "it shares", func() bool { return s.Status().Up })
	return c, stop
}

// TestTaskOfARestartedGateway: a gateway that is started again reports the tasks of its journal.
// The store still knows what they were charged, and gives back what they have not cost.
func TestTaskOfARestartedGateway(t *testing.T) {
	t.Parallel()
	server, journal := redistest.Start(t), filepath.Join(t.TempDir(), "tasks")
	begin := func(gateway string) (*admission.Controller, func()) {
		return startJournaled(t, Config{Server: Server{URL: redistest.URL(server)}, Timeout: 2 * time.Second, Gateway: gateway}, journal,
			map[string]admission.TenantLimits{"acme": {TokensPerMinute: 600}})
	}
	before, stop := begin("before")
	got, wait, err := before.Schedule(t.Context(), admission.TaskRequest{Model: "chat", Tenant: "acme", Tokens: 590})
	if wait != 0 || err != nil {
		t.Fatal(wait, err)
	}
	stop()
	after, _ := begin("after")
	if err := after.Complete(t.Context(), "acme", got.ID, 0); err != nil {
		t.Fatal(err)
	}
	lease, err := after.Admit(t.Context(), admission.Request{Model: "chat", Tenant: "acme", Tokens: 500})
	if err != nil {
		t.Fatalf("the task has cost nothing, and its tenant is refused: %v", err)
	}
	lease.Release()
}

// TestTaskEndedAloneWhileAnotherRunsIt: a gateway ends a task while Redis is away, and a request of
// the task runs at another gateway. The task's lease lasts as long as that request.
func TestTaskEndedAloneWhileAnotherRunsIt(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := stores(t, 2, Config{}, server)
	wantReasons(t, acquire(all[0], task("a", "", time.Minute)), admission.Granted)
	child := limited("child", 2)
	child.UnderTask = "a"
	wantReasons(t, acquire(all[1], child), admission.Granted)
	server.Pause()
	wantReasons(t, acquire(all[0], limited("x", 2)), admission.Unavailable)
	all[0].Release("a", 100, false) // as the end of a task does then
	server.Resume()
	eventually(t, "they are back", func() bool { return all[0].Status().Up && all[1].Status().Up })
	if _, err := all[1].Task(t.Context(), "acme", "a"); !errors.Is(err, admission.ErrUnknownTask) {
		t.Error(err)
	}
	wantReasons(t, acquire(all[0], limited("y", 1)), admission.ModelConcurrency)
	full := task("z", "", time.Minute)
	full.Tokens = 950 // all that the task was charged is back
	wantReasons(t, acquire(all[0], full), admission.Granted)
	all[0].Release("z", 0, false)
	all[1].Release("child", 0, false)
	wantInUse(t, server, "chat", 0)
}

// TestTaskEndedTwice: a task with a running request is ended at one gateway, and by another one
// that has not heard of it. Its tenant gets the tokens back once.
func TestTaskEndedTwice(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := stores(t, 2, Config{}, server)
	parent := task("a", "", time.Minute)
	parent.Tokens = 600
	wantReasons(t, acquire(all[0], parent), admission.Granted)
	held := func() *heldLease {
		all[0].mu.Lock()
		defer all[0].mu.Unlock()
		return all[0].tasks["a"]
	}
	unheard := held()
	child := limited("child", 2)
	child.UnderTask = "a"
	wantReasons(t, acquire(all[1], child), admission.Granted)
	wantError(t, all[1].EndTask(t.Context(), "acme", "a", 100), nil)
	wantReasons(t, acquire(all[1], task("b", "", time.Minute)), admission.Granted) // 800 are left
	eventually(t, "it is heard", func() bool { return held() == nil })
	all[0].mu.Lock()
	all[0].tasks["a"] = unheard
	all[0].mu.Unlock()
	all[0].Release("a", 600, false)
	eventually(t, "it is reported", func() bool { return !all[0].hasChanges() })
	all[1].Release("child", 0, false)
	wantInUse(t, server, "chat", 1)
	large := task("c", "", time.Minute)
	large.Tokens = 900
	wantReasons(t, acquire(all[1], large), admission.ModelTokens)
}

// TestTaskEndedElsewhere: a gateway hears that another one has ended its task, and counts it no
// more.
func TestTaskEndedElsewhere(t *testing.T) {
	t.Parallel()
	both := controllers(t, 2, "elsewhere", redistest.Start(t))
	for _, c := range both {
		c.SetLimits("chat", admission.Limits{})
	}
	got, wait, err := both[0].Schedule(t.Context(), admission.TaskRequest{Model: "chat", Tenant: "acme", Tokens: 5})
	if wait != 0 || err != nil {
		t.Fatal(wait, err)
	}
	if n := both[0].Stats("chat").InFlight; n != 1 {
		t.Errorf("%d in flight", n)
	}
	wantError(t, both[1].Complete(t.Context(), "acme", got.ID, 5), nil)
	eventually(t, "it is heard", func() bool { return both[0].Stats("chat").InFlight == 0 && both[0].Tenant("acme").Running == 0 })
}

// TestTaskRenewedElsewhere: a task lasts as long as a gateway has renewed it that did not admit it.
// Its own gateway may have admitted it while Redis was away. It may also be started again
// meanwhile, and then reports the task with the end that it knows.
func TestTaskRenewedElsewhere(t *testing.T) {
	t.Parallel()
	server, journal := redistest.Start(t), filepath.Join(t.TempDir(), "tasks")
	begin := func(gateway, journal string) (*admission.Controller, func()) {
		return startJournaled(t, Config{Server: Server{URL: redistest.URL(server)}, Timeout: 500 * time.Millisecond, Gateway: gateway}, journal, nil)
	}
	own, stop := begin("own", journal)
	other, _ := begin("other", "")
	schedule := func(lease time.Duration) admission.Task {
		got, wait, err := own.Schedule(t.Context(), admission.TaskRequest{Model: "chat", Tenant: "acme", Lease: lease})
		if wait != 0 || err != nil {
			t.Fatal(wait, err)
		}
		return got
	}
	server.Pause()
	alone := schedule(6 * time.Second)
	server.Resume()
	eventually(t, "the other gateway renews it", func() bool {
		_, err := other.Renew(t.Context(), "acme", alone.ID, time.Hour)
		return err == nil
	})
	restarted := schedule(8 * time.Second)
	time.Sleep(time.Until(alone.Expires) + 100*time.Millisecond) // beyond what its own gateway gave it
	stop()
	if _, err := other.Renew(t.Context(), "acme", restarted.ID, time.Hour); err != nil {
		t.Fatal(err)
	}
	_, _ = begin("restarted", journal)
	time.Sleep(time.Until(restarted.Expires) + 100*time.Millisecond)
	for name, id := range map[string]string{"admitted alone": alone.ID, "of a restarted gateway": restarted.ID} {
		if got, err := other.Task(t.Context(), "acme", id); err != nil || time.Until(got.Expires) < 50*time.Minute {
			t.Errorf("%s: it has %v left, want about an hour: %v", name, time.Until(got.Expires), err)
		}
	}
}

// TestLeasesOfAClockThatWentBack: the clock of Redis was ahead for a moment, and a gateway has died
// in it. Its leases end in the time that leases last, not when the clock is there again. Tasks have
// their own time, and so have the leases of a gateway whose leases last longer.
func TestLeasesOfAClockThatWentBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := stores(t, 1, Config{Lease: time.Second}, server)[0]
	wantReasons(t, acquire(s, task("task", "", 3*time.Hour), limited("live", 2)), admission.Granted, admission.Granted)
	redis := server.Client()
	dead := client.Z{Score: float64(time.Now().Add(4 * time.Hour).UnixMilli()), Member: "dead"}
	for _, set := range []string{"{sluice}:leases:chat", "{sluice}:tenant_leases:acme", "{sluice}:gateways"} {
		if err := redis.ZAdd(t.Context(), set, dead).Err(); err != nil {
			t.Fatal(err)
		}
	}
	wantReasons(t, acquire(s, limited("next", 3)), admission.ModelConcurrency)
	next := limited("next", 3)
	next.TenantLimits.MaxConcurrent = 3
	eventually(t, "the lease of the dead gateway ends", func() bool { return acquire(s, next)[0].Reason == admission.Granted })
	if n := s.Gateways(); n != 1 {
		t.Errorf("%d gateways", n)
	}

	long, err := New(Config{Server: Server{URL: redistest.URL(server)}, Gateway: "long", Lease: time.Hour, Timeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	runStore(t, long)
	eventually(t, "it is up", func() bool { return long.Status().Up })
	wantReasons(t, acquire(long, limited("long", 4)), admission.Granted)
	for range 300 { // one sync in 32 looks for leases that last too long
		wantReasons(t, acquire(s, limited("full", 4)), admission.ModelConcurrency)
	}
	for id, least := range map[string]time.Duration{"task": 2 * time.Hour, "long": 50 * time.Minute} {
		if left := time.Until(time.UnixMilli(int64(redis.ZScore(t.Context(), "{sluice}:leases:chat", id).Val()))); left < least {
			t.Errorf("%s ends in %v", id, left)
		}
	}
}
