package authz_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/openai"
)

func TestB4_KeysOfRunTime(t *testing.T) {
	a := policy(t, authz.Config{Tenants: []authz.TenantConfig{tenant("acme", "file"), tenant("beta")}})
	key := func(text, tenant string, expires time.Time) authz.RuntimeKey {
		return authz.RuntimeKey{KeyConfig: authz.KeyConfig{Hash: authz.HashKey(text), Expires: expires}, Tenant: tenant}
	}
	a.SetKeys([]authz.RuntimeKey{
		key("good", "acme", time.Time{}), key("long", "beta", time.Now().Add(time.Hour)), key("old", "acme", time.Now().Add(-time.Second)),
		key("orphan", "gone", time.Time{}), key("file", "beta", time.Time{}), {KeyConfig: authz.KeyConfig{Hash: "no hash"}, Tenant: "acme"},
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
			if valid := a.Watch(tenant, c.Digest())(); valid != (tenant == want.tenant) {
				t.Errorf("%s of %s: valid %v", text, tenant, valid)
			}
		}
	}
	a.SetKeys(nil)
	if _, fault := a.Authenticate(authz.Credentials{APIKey: "good"}); fault == nil || fault.Code != openai.CodeInvalidAPIKey {
		t.Errorf("revoked: %v", fault)
	}
}

// TestB4_AKeyHasModelsOfItsOwn checks keys of the file and of run time, by every way to find them.
func TestB4_AKeyHasModelsOfItsOwn(t *testing.T) {
	acme := tenant("acme", "all", "chat")
	acme.Models, acme.Keys[1].Models = []string{"chat", "embed"}, []string{"chat", "other"}
	a := policy(t, authz.Config{Tenants: []authz.TenantConfig{acme}})
	made := authz.KeyConfig{ID: "abc", Hash: authz.HashKey("made"), Models: []string{"embed"}}
	a.SetKeys([]authz.RuntimeKey{{KeyConfig: made, Tenant: "acme"}})
	for key, want := range map[string][]string{"all": {"chat", "embed"}, "chat": {"chat"}, "made": {"embed"}} {
		c := authz.Credentials{APIKey: key}
		first, fault := a.Authenticate(c)
		if fault != nil {
			t.Fatal(key, fault)
		}
		later, _ := a.Caller("acme", c.Digest())
		elsewhere, _ := a.Holder("acme", first.Key)
		for way, got := range map[string]*authz.Tenant{"by the key": first, "by its digest": later, "by its name": elsewhere} {
			for _, model := range []string{"chat", "embed", "other"} {
				if got.Allows(model) != slices.Contains(want, model) {
					t.Errorf("%s, found %s: %s allowed is %v", key, way, model, got.Allows(model))
				}
			}
		}
	}
	if got, _ := a.Authenticate(authz.Credentials{APIKey: "made"}); got.Key != "acme/abc" {
		t.Errorf("the key of run time is named %s", got.Key)
	}
	hash := authz.HashKey("all")
	if got, _ := a.Authenticate(authz.Credentials{APIKey: "all"}); got.Key != "acme/"+hash[len("sha256:"):len("sha256:")+8] {
		t.Errorf("the key of the file is named %s", got.Key)
	}
	if got, ok := a.Holder("acme", "acme/unknown"); !ok || got.Key != "acme/unknown" || !got.Allows("embed") {
		t.Errorf("a key that only another gateway knows: %+v", got)
	}
}

// TestB4_TheLastUseOfAKeySurvivesChanges checks that only the keys that were used have a last use,
// and that it stays when keys and tenants change.
func TestB4_TheLastUseOfAKeySurvivesChanges(t *testing.T) {
	c := authz.Config{Tenants: []authz.TenantConfig{tenant("acme", "file", "unused")}}
	a := policy(t, c)
	made := []authz.RuntimeKey{{KeyConfig: authz.KeyConfig{ID: "abc", Hash: authz.HashKey("made")}, Tenant: "acme"}}
	a.SetKeys(made)
	before := time.Now().Add(-time.Minute)
	for _, key := range []string{"file", "made", "wrong"} {
		a.Authenticate(authz.Credentials{APIKey: key})
	}
	a.SetKeys(append(made, authz.RuntimeKey{KeyConfig: authz.KeyConfig{ID: "def", Hash: authz.HashKey("other")}, Tenant: "acme"}))
	if err := a.Set(c); err != nil {
		t.Fatal(err)
	}
	used := a.LastUsed()
	file := "acme/" + authz.FileKeyID(authz.HashKey("file"))
	if len(used) != 2 || !used["acme/abc"].After(before) || !used[file].After(before) {
		t.Errorf("used %v", used)
	}
	a.SetKeys(nil)
	if used := a.LastUsed(); len(used) != 1 {
		t.Errorf("after the revocation: %v", used)
	}
}

// TestB4_KeysThatAreNotReadYetAreNotRefused: as long as the keys of run time are not read, a key
// that may be one of them is not called incorrect. Keys of the file and other texts are judged.
func TestB4_KeysThatAreNotReadYetAreNotRefused(t *testing.T) {
	a := policy(t, authz.Config{Tenants: []authz.TenantConfig{tenant("acme", "file")}})
	made, unknown := authz.NewKey(), authz.NewKey()
	expect := func(wanted map[string]openai.Code) {
		t.Helper()
		for key, want := range wanted {
			got := openai.Code("")
			if _, fault := a.Authenticate(authz.Credentials{APIKey: key}); fault != nil {
				got = fault.Code
			}
			if got != want {
				t.Errorf("%.12s: %q, want %q", key, got, want)
			}
		}
	}
	proof := a.Proof(authz.Credentials{APIKey: made.Secret})
	a.SetUnread(true)
	a.SetKeys(nil) // as a reload of the file does
	if a.Rejects("acme", proof) {
		t.Error("a key is rejected that may be read yet")
	}
	expect(map[string]openai.Code{made.Secret: openai.CodeGatewayUnavailable, "file": "", "other": openai.CodeInvalidAPIKey})
	a.SetKeys([]authz.RuntimeKey{{KeyConfig: authz.KeyConfig{ID: made.ID, Hash: made.Hash}, Tenant: "acme"}})
	a.SetUnread(false)
	expect(map[string]openai.Code{made.Secret: "", unknown.Secret: openai.CodeInvalidAPIKey, "file": ""})
	if a.Rejects("acme", proof) || !a.Rejects("beta", proof) || !a.Rejects("acme", a.Proof(authz.Credentials{APIKey: unknown.Secret})) {
		t.Error("a key that was read belongs to its tenant alone, and another one to none")
	}
}
