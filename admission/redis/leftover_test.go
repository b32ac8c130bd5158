package redis

import (
	"fmt"
	"testing"
	"time"

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
