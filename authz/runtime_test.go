package authz_test

import (
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/openai"
)

func TestB4_KeysOfRunTime(t *testing.T) {
	a := policy(t, authz.Config{Tenants: []authz.TenantConfig{tenant("acme", "file"), tenant("beta")}})
	key := func(text, tenant string, expires time.Time) authz.RuntimeKey {
		return authz.RuntimeKey{Hash: authz.HashKey(text), Tenant: tenant, Expires: expires}
	}
	a.SetKeys([]authz.RuntimeKey{
		key("good", "acme", time.Time{}), key("long", "beta", time.Now().Add(time.Hour)), key("old", "acme", time.Now().Add(-time.Second)),
		key("orphan", "gone", time.Time{}), key("file", "beta", time.Time{}), {Hash: "no hash", Tenant: "acme"},
	})
	for text, want := range map[string]struct {
		tenant string
		code   openai.Code
	}{
		"good": {"acme", ""}, "long": {"beta", ""}, "file": {"acme", ""}, "old": {"", openai.CodeExpiredAPIKey},
		"orphan": {"", openai.CodeInvalidAPIKey}, "no hash": {"", openai.CodeInvalidAPIKey},
	} {
		c := authz.Credentials{APIKey: text}
		got, fault := a.Authenticate(c)
		if want.code == "" && (fault != nil || got.Name != want.tenant) || want.code != "" && (fault == nil || fault.Code != want.code) {
			t.Errorf("%s: %v, %v", text, got, fault)
		}
		for _, tenant := range []string{"acme", "beta", "gone"} {
			if valid := a.Valid(tenant, c.Digest()); valid != (tenant == want.tenant) {
				t.Errorf("%s of %s: valid %v", text, tenant, valid)
			}
		}
	}
	a.SetKeys(nil)
	if _, fault := a.Authenticate(authz.Credentials{APIKey: "good"}); fault == nil || fault.Code != openai.CodeInvalidAPIKey {
		t.Errorf("revoked: %v", fault)
	}
}
