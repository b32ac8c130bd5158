package redis

import (
	"fmt"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// TestNothingIsLeftOfTenantsThatAreGone: what the store keeps of a tenant expires after its last
// request. A key with limits is a tenant too, and keys come and go for ever.
func TestNothingIsLeftOfTenantsThatAreGone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, c := stores(t, 1, Config{}, server)[0], server.Client()
	claim := admission.Claim{ID: "a", Model: "chat", Tenant: "acme", Tokens: 10,
		TenantLimits: admission.TenantLimits{RequestsPerMinute: 60, TokensPerMinute: 100, MaxConcurrent: 1, MaxPrefill: 1}, Prefill: true}
	wantReasons(t, acquire(s, claim), admission.Granted)
	s.Release("a", 0, false)
	eventually(t, "only what expires is left of the tenant", func() bool {
		keys, err := c.Keys(t.Context(), "*acme*").Result()
		for _, key := range keys {
			left, _ := c.TTL(t.Context(), key).Result()
			if left <= 0 || left > 7*24*time.Hour {
				return false
			}
		}
		return err == nil && len(keys) == 1
	})
	var others []any
	for i := range 25_000 {
		others = append(others, fmt.Sprint("tenant", i), 1)
	}
	if err := c.HSet(t.Context(), "{sluice}:served:chat", others...).Err(); err != nil {
		t.Fatal(err)
	}
	claim.ID = "b"
	wantReasons(t, acquire(s, claim), admission.Granted)
	if n := c.HLen(t.Context(), "{sluice}:served:chat").Val(); n != 1 {
		t.Errorf("tokens served are counted for %d tenants, want them counted anew", n)
	}
}

// TestNothingIsLeftOfLeasesThatNobodyEnds: a gateway may die with leases of tenants, replicas and
// models that nobody asks for again. Their sets expire.
func TestNothingIsLeftOfLeasesThatNobodyEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, c := stores(t, 1, Config{}, server)[0], server.Client()
	claim := func(id, under string) admission.Claim {
		return admission.Claim{ID: id, Model: "chat", Tenant: "acme", Prefill: true, Replica: "chat-0", UnderTask: under,
			Limits: admission.Limits{MaxConcurrent: 10}, TenantLimits: admission.TenantLimits{MaxConcurrent: 10, MaxPrefill: 10}}
	}
	wantReasons(t, acquire(s, task("t", "", 10*24*time.Hour), claim("a", ""), claim("b", "")), admission.Granted, admission.Granted, admission.Granted)
	wantReasons(t, acquire(s, claim("c", "t")), admission.Granted)
	wantReasons(t, acquire(s, claim("d", "")), admission.Granted) // it ends long before the task
	s.MoveSlot("b", "chat-1")
	sets := []string{"leases:chat", "tenant_leases:acme", "prefill:acme", "replica:chat-0", "replica:chat-1", "task_requests:t"}
	eventually(t, "each set expires, and not before its last lease", func() bool {
		for _, set := range sets {
			last, err := c.ZRevRangeWithScores(t.Context(), "{sluice}:"+set, 0, 0).Result()
			if err != nil || len(last) == 0 {
				return false
			}
			left := c.PTTL(t.Context(), "{sluice}:"+set).Val()
			if left <= 0 || time.Now().Add(left+time.Second).UnixMilli() < int64(last[0].Score) {
				return false
			}
		}
		return true
	})
}

// TestASilentGatewayThatIsForgottenComesBack: a join removes the last writes of silent gateways
// when there are many. For a gateway that comes back, the store has lost nothing. A store of an
// older snapshot has.
func TestASilentGatewayThatIsForgottenComesBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, c := stores(t, 1, Config{}, server)[0], server.Client()
	run := func(script *client.Script, args ...any) reply {
		r, err := s.runTimed(t.Context(), script, time.Second, append([]any{s.prefix}, args...))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	join := func(gateway string) reply { return run(joinScript, gateway, "", 0, "1", 0, "0", 0, 1000) } // it counts as live for 0 ms
	joined := join("silent")
	epoch, seen := joined.rest[0], joined.rest[5].(int64)
	for i := range 200 {
		if err := c.HSet(t.Context(), "{sluice}:epoch", fmt.Sprint("by:ended", i), 1).Err(); err != nil {
			t.Fatal(err)
		}
	}
	join("another")
	if c.HExists(t.Context(), "{sluice}:epoch", "by:silent").Val() {
		t.Fatal("the last write of the silent gateway was kept")
	}
	heartbeat := func(seen int64) string { return run(heartbeatScript, "silent", epoch, seen, 1000, 0).status }
	if later := heartbeat(seen + 1000); later != "epoch" {
		t.Errorf("a store without writes that were seen answers %q", later)
	}
	if again := heartbeat(seen); again != "ok" {
		t.Errorf("the heartbeat after the silence is answered with %q", again)
	}
}
