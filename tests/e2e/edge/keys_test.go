package edge

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// newKeyBy runs `sluice keys new` at a gateway and returns the key and its id.
func newKeyBy(t *testing.T, g *harness.Gateway, args ...string) (key, id string) {
	t.Helper()
	out, err := g.RunCommand(append([]string{"keys", "new", "--admin", strings.TrimPrefix(g.Admin, "http://"), "--tenant", "acme"}, args...)...)
	if _, scanErr := fmt.Sscanf(out, "key (shown only once): %s\nid: %s\n", &key, &id); err != nil || scanErr != nil {
		t.Fatal(out, err, scanErr)
	}
	return key, id
}

// awaitStatus waits until a request with the key gets a status and a code at the gateway.
func awaitStatus(t *testing.T, g *harness.Gateway, key string, status int, code string) {
	t.Helper()
	harness.Eventually(t, fmt.Sprint("status ", status), func() error {
		if a := g.Fetch("/v1/models", "authorization: Bearer "+key); a.StatusCode != status || a.Code() != code {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
	wantAll(t, "every way", asks(g, "authorization: Bearer "+key), status, code)
}

// TestE2E_B4_KeysOfRunTimeAtTwoGateways makes, lists and revokes keys at one of two gateways that
// share a Redis. The other one follows.
func TestE2E_B4_KeysOfRunTimeAtTwoGateways(t *testing.T) {
	t.Parallel()
	config := "\nauth: {mode: keys}\ntenants: [{name: acme}]\nredis: " + redistest.URL(redistest.Start(t)) + small
	one, two := harness.Start(t, config), harness.Start(t, config)
	key, id := newKeyBy(t, one, "--name", "ci")
	for _, g := range []*harness.Gateway{one, two} {
		awaitStatus(t, g, key, 200, "")
	}
	admin := strings.TrimPrefix(two.Admin, "http://")
	if out, err := two.RunCommand("keys", "list", "--admin", admin); err != nil || !strings.Contains(out, id) || !strings.Contains(out, "ci") {
		t.Errorf("list: %s, %v", out, err)
	}
	short, _ := newKeyBy(t, one, "--expires", "5s")
	awaitStatus(t, two, short, 200, "")
	awaitStatus(t, two, short, 401, "expired_api_key")
	if out, err := two.RunCommand("keys", "revoke", id, "--admin", admin); err != nil {
		t.Fatal(out, err)
	}
	for _, g := range []*harness.Gateway{one, two} {
		awaitStatus(t, g, key, 401, "invalid_api_key")
	}
	if text := one.LogText() + two.LogText(); strings.Contains(text, key) || strings.Contains(text, short) || !strings.Contains(text, "/api/v1/keys") {
		t.Error("the audit line is missing, or a log has a key")
	}
}

// TestE2E_B4_KeysOutliveARestart keeps keys in the state directory, as hashes.
func TestE2E_B4_KeysOutliveARestart(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "\nauth: {mode: keys}\ntenants: [{name: acme}]\n"+small)
	key, _ := newKeyBy(t, g)
	awaitStatus(t, g, key, 200, "")
	g.Kill()
	g.Launch()
	g.AwaitReady()
	awaitStatus(t, g, key, 200, "")
	text, err := os.ReadFile(filepath.Join(g.Dir, "keys.json"))
	if err != nil || strings.Contains(string(text), key) || !strings.Contains(string(text), "sha256:") {
		t.Errorf("%s, %v", text, err)
	}
	for body, want := range map[string]string{
		`{"tenant":"nobody"}`: "tenant", `{"tenant":"acme","expires":"2001-01-01T00:00:00Z"}`: "expires", `{"tenant":"acme","model":"x"}`: "model",
		`{"tenant":"acme","models":["chat","none"]}`: "none", `{"tenant":"acme","name":"sk-secret"}`: "name",
	} {
		a := (&harness.Gateway{T: t, URL: g.Admin}).Post("/api/v1/keys", body)
		if a.StatusCode != 400 || !strings.Contains(string(a.Content), want) {
			t.Errorf("%s: %v", body, a)
		}
	}
}

// twoModels are models that a key may be kept from.
const twoModels = small + `  - {name: other, engine: sim, task: text-generation, variables: {prefill_rate: 0}}
`

// TestE2E_B4_AKeyHasModelsOfItsOwn makes a key with models at one of two gateways, and has one in
// the file. Each is kept from the other model, by every way.
func TestE2E_B4_AKeyHasModelsOfItsOwn(t *testing.T) {
	t.Parallel()
	config := "\nauth: {mode: keys}\ntenants: [{name: acme, keys: [{hash: '" + authz.HashKey("fixed") + "', name: fixed, models: [chat]}]}]\nredis: " +
		redistest.URL(redistest.Start(t)) + twoModels
	one, two := harness.Start(t, config), harness.Start(t, config)
	made, id := newKeyBy(t, one, "--models", "chat", "--name", "narrow")
	whole, _ := newKeyBy(t, two)
	for _, g := range []*harness.Gateway{one, two} {
		awaitStatus(t, g, made, 200, "")
		awaitStatus(t, g, whole, 200, "")
		for key, want := range map[string]int{made: 404, "fixed": 404, whole: 200} {
			header := "authorization: Bearer " + key
			for _, body := range []string{`{"model":"other","messages":[{"role":"user","content":"x"}],"max_tokens":1}`,
				`{"model":"other","messages":[{"role":"user","content":"x"}],"max_tokens":1,"stream":true,"heartbeat_ms":1000}`} {
				if a := g.Post("/v1/chat/completions", body, header); a.StatusCode != want || want == 404 && a.Code() != "model_not_found" {
					t.Errorf("%s: %v, want %d", body, a, want)
				}
			}
			if list := string(g.Fetch("/v1/models", header).Content); strings.Contains(list, `"other"`) != (want == 200) || !strings.Contains(list, `"chat"`) {
				t.Errorf("models: %s", list)
			}
		}
	}
	fixed := authz.FileKeyID(authz.HashKey("fixed"))
	harness.Eventually(t, "the other gateway knows the last use", func() error {
		out, err := two.RunCommand("keys", "list", "--admin", strings.TrimPrefix(two.Admin, "http://"))
		for _, want := range []string{"acme/" + id + " +narrow +chat .*" + time.Now().UTC().Format("2006-01-02"), "acme/" + fixed + " +fixed +chat .* file"} {
			if err != nil || !regexp.MustCompile(want).MatchString(out) {
				return fmt.Errorf("%s is not in %s, %v", want, out, err)
			}
		}
		return nil
	})
	out, err := two.RunCommand("keys", "revoke", fixed, "--admin", strings.TrimPrefix(two.Admin, "http://"))
	if err == nil || !strings.Contains(out, "remove its hash") {
		t.Errorf("a key of the file was revoked: %s, %v", out, err)
	}
}

// TestE2E_B4_TheLastUseAndTheLedgerNameAKeyAlike uses a key at one of two gateways. The other one
// lists the use, and the ledger names the key as the list does.
func TestE2E_B4_TheLastUseAndTheLedgerNameAKeyAlike(t *testing.T) {
	t.Parallel()
	config := "\nauth: {mode: keys}\ntenants: [{name: acme}]\nredis: " + redistest.URL(redistest.Start(t)) + small
	one, two := harness.Start(t, config), harness.Start(t, config)
	key, _ := newKeyBy(t, one, "--name", "ci")
	type shown struct {
		UsageKey string    `json:"usage_key"`
		LastUsed time.Time `json:"last_used"`
	}
	list := func(g *harness.Gateway) shown { // zero while the gateway does not know the key
		var found struct{ Keys []shown }
		a := (&harness.Gateway{T: t, URL: g.Admin}).Fetch("/api/v1/keys")
		if err := json.Unmarshal(a.Content, &found); err != nil {
			t.Fatal(a, err)
		}
		return append(found.Keys, shown{})[0]
	}
	if !list(one).LastUsed.IsZero() {
		t.Error("a new key was used")
	}
	start := time.Now().Add(-time.Minute)
	awaitStatus(t, one, key, 200, "")
	harness.Eventually(t, "the last use at the other gateway", func() error {
		if at := list(two).LastUsed; !at.After(start) {
			return fmt.Errorf("last used %v", at)
		}
		return nil
	})
	harness.Eventually(t, "the key in the ledger", func() error {
		a := (&harness.Gateway{T: t, URL: one.Admin}).Fetch("/api/v1/usage?group_by=key")
		if !strings.Contains(string(a.Content), `"`+list(one).UsageKey+`"`) {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
}
