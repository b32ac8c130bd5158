package admission

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_B5_ARedisThatRefusesAPart: the user of Redis may write the limits, and neither the keys
// of run time nor the usage. In a cluster, a master that is away has the same effect. The gateway
// serves, and says what it does not share.
func TestE2E_B5_ARedisThatRefusesAPart(t *testing.T) {
	t.Parallel()
	up := startSlowEngine(t, 0)
	redis := redistest.Start(t)
	allow := func(rights ...any) {
		t.Helper()
		if err := redis.Client().Do(t.Context(), append([]any{"ACL", "SETUSER", "part"}, rights...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	allow("on", ">secret", "~{sluice}:*", "resetchannels", "&{sluice}:*", "+@all")
	url := strings.Replace(redistest.URL(redis), "redis://", "redis://part:secret@", 1)
	g := harness.Start(t, patient+"\nauth: {mode: keys}\ntenants: [{name: acme, keys: ["+authz.HashKey("secret")+"]}]"+sharedConfig(url, up.url, 4))
	if c := g.AwaitCondition(condition.KeysUnavailable, ""); !strings.Contains(c.Message, "NOPERM") || !strings.Contains(c.Message, "503") {
		t.Errorf("keys: %+v", c)
	}
	if c := g.AwaitCondition(condition.UsageNotShared, ""); !strings.Contains(c.Message, "NOPERM") {
		t.Errorf("usage: %+v", c)
	}
	if a := g.Post("/v1/completions", `{"model":"m","prompt":"x"}`, "authorization: Bearer secret"); a.StatusCode != 200 {
		t.Error(a)
	}
	allow("~{sluice:usage}:*", "~sluice:keys*")
	g.AwaitNoCondition(condition.KeysUnavailable)
	g.AwaitNoCondition(condition.UsageNotShared)
}
