package edge

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A key of run time has a budget of its own at two gateways, over a kill -9. Other keys of its
// tenant are not bounded.
func TestE2E_B3_B4_AKeyOfRunTimeHasABudget(t *testing.T) {
	t.Parallel()
	config := "\nauth: {mode: keys}\ntenants: [{name: acme}]\nredis: " + redistest.URL(redistest.Start(t)) +
		strings.Replace(small, "engine: sim", "engine: sim\n    prices: {prompt: 1}", 1)
	one, two := harness.Start(t, config), harness.Start(t, config)
	made, id := newKeyBy(t, one, "--tokens-per-day", "100", "--cost-per-month", "5")
	free, freeID := newKeyBy(t, one)
	for _, id := range []string{id, freeID} {
		awaitKey(t, two, id)
	}
	ask := func(g *harness.Gateway, key string) *harness.Answer {
		return g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 30, "x"), "authorization: Bearer "+key)
	}
	refused := func() error {
		for _, g := range []*harness.Gateway{one, two} {
			if a := ask(g, made); a.StatusCode != 429 || a.Code() != "insufficient_quota" ||
				!strings.HasPrefix(a.Header.Get("x-sluice-budget"), "key;per=day;of=tokens;used=") {
				return fmt.Errorf("%v, %v", a, a.Header)
			}
		}
		return nil
	}
	if a := ask(two, made); a.StatusCode != 200 {
		t.Errorf("the first request: %v", a)
	}
	harness.Eventually(t, "refusals at both gateways", refused)
	one.Kill()
	one.Launch()
	one.AwaitReady()
	harness.Eventually(t, "refusals after a kill", refused)
	for _, g := range []*harness.Gateway{one, two} {
		if a := ask(g, free); a.StatusCode != 200 || a.Header.Get("x-sluice-budget") != "" {
			t.Errorf("another key: %v, %v", a, a.Header)
		}
	}
	table, err := two.RunCommand("keys", "list", "--admin", strings.TrimPrefix(two.Admin, "http://"))
	if err != nil || !strings.Contains(table, "100 tok/day, 5 cost/month") {
		t.Errorf("%v\n%s", err, table)
	}
	a := (&harness.Gateway{T: t, URL: two.Admin}).Post("/api/v1/keys", `{"tenant":"acme","budgets":[{"per":"day","soft":2,"hard":1}]}`)
	if a.StatusCode != 400 || !strings.Contains(string(a.Content), "budgets[0].soft must not be above hard, which is 1.") {
		t.Errorf("a wrong budget: %v", a)
	}
}

// A key of the file ends by itself, for requests and for a WebSocket that is open.
func TestE2E_B4_AKeyOfTheFileEnds(t *testing.T) {
	t.Parallel()
	end := time.Now().Add(5 * time.Second).UTC().Truncate(time.Second)
	g := harness.Start(t, "\nauth: {mode: keys}\ntenants: [{name: acme, keys: [{hash: '"+authz.HashKey("short")+"', expires: "+
		end.Format(time.RFC3339)+"}, '"+authz.HashKey("long")+"']}]"+small)
	if a := g.Fetch("/v1/models", "authorization: Bearer short"); time.Now().Before(end) && a.StatusCode != 200 {
		t.Errorf("before its end: %v", a)
	}
	awaitStatus(t, g, "short", 401, "expired_api_key")
	g.Fetch("/v1/models", "authorization: Bearer short") // ext_authz refuses it
	harness.Eventually(t, "the code of what ext_authz has refused", func() error {
		rows := g.AdminText("/api/v1/requests?limit=100")
		if strings.Contains(rows, `"code":"invalid_api_key"`) || !strings.Contains(rows, `"path":"/v1/models"`) ||
			!strings.Contains(rows, `"code":"expired_api_key"`) {
			return errors.New(rows)
		}
		return nil
	})
	if time.Now().Before(end) {
		t.Error("the key ended early")
	}
	awaitStatus(t, g, "long", 200, "")
	table, err := g.RunCommand("keys", "list", "--admin", strings.TrimPrefix(g.Admin, "http://"))
	if err != nil || !strings.Contains(table, end.Format(time.RFC3339)) {
		t.Errorf("%v\n%s", err, table)
	}
}
