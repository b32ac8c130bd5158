package edge

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	} {
		a := (&harness.Gateway{T: t, URL: g.Admin}).Post("/api/v1/keys", body)
		if a.StatusCode != 400 || !strings.Contains(string(a.Content), want) {
			t.Errorf("%s: %v", body, a)
		}
	}
}
