package admission

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket/wsjson"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// budgetModels are a native and a managed model of one upstream. A token costs one.
const budgetModels = `
redis: %s
models:
  - {name: chat, launcher: upstream, upstreams: ["http://%s"], prices: {prompt: 1000000, completion: 1000000}}
  - {name: managed, launcher: upstream, upstreams: [{url: "http://%s", model: chat}], stream: {mode: managed}, prices: {prompt: 1000000, completion: 1000000}}
`

// wantBudget fails unless an answer has a status, and says how far a budget is used.
func wantBudget(a *harness.Answer, status int, reached string) error {
	if got := a.Header.Get("x-sluice-budget"); a.StatusCode != status || !strings.HasPrefix(got, reached) || reached == "" && got != "" {
		return fmt.Errorf("%s with budget %q, want %d and %q", a, got, status, reached)
	}
	if status == http.StatusTooManyRequests {
		after, _ := strconv.Atoi(a.Header.Get("retry-after"))
		if a.Code() != "insufficient_quota" || a.Header.Get("x-should-retry") != "false" || after < 1 {
			return fmt.Errorf("%s, retry after %d s", a, after)
		}
	}
	return nil
}

// Two gateways warn of a tenant's soft bound and refuse at its hard one, by what both have counted.
// They do so over a kill -9, until a reload raises the budget.
func TestE2E_B3_BudgetsOfTwoGateways(t *testing.T) {
	t.Parallel()
	engine := harness.Start(t, "\nmodels: [{name: chat, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 1ms}}]\n")
	address := engine.Replicas()["chat-0"].Address
	redis := redistest.URL(redistest.Start(t))
	tenants, key := tenantsOf(map[string]string{
		"acme": ", budgets: [{per: month, of: cost, soft: 100, hard: 1500}]",
		"beta": "",
	})
	text := tenants + fmt.Sprintf(budgetModels, redis, address, address)
	one, two := harness.Start(t, text), harness.Start(t, text)
	ask := func(g *harness.Gateway, model string) *harness.Answer {
		return g.Post("/v1/chat/completions", harness.ChatBody(model, model == "managed", 50, "one two three"), key["acme"])
	}
	await := func(what string, status int, reached string, gateways ...*harness.Gateway) {
		t.Helper()
		for _, g := range gateways {
			for _, model := range []string{"chat", "managed"} {
				harness.Eventually(t, what, func() error { return wantBudget(ask(g, model), status, reached) })
			}
		}
	}
	if err := wantBudget(ask(one, "chat"), 200, ""); err != nil {
		t.Fatal(err)
	}
	ask(one, "chat")
	reached := func(reason string) {
		t.Helper()
		harness.Eventually(t, reason+" bound at the other gateway", func() error {
			c := two.AwaitCondition(condition.BudgetReached, "tenant acme, cost per month")
			if c.Reason != reason {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	}
	reached("Soft") // without a request, which would use the budget up
	if err := wantBudget(ask(two, "managed"), 200, "tenant;per=month;of=cost;used="); err != nil {
		t.Error(err)
	}
	await("the hard bound", 429, "tenant;per=month;of=cost;used=", one, two)
	if err := wantBudget(two.Post("/v1/chat/completions", harness.ChatBody("chat", false, 5, "hello"), key["beta"]), 200, ""); err != nil {
		t.Error(err)
	}
	ws := two.Realtime(strings.TrimPrefix(key["acme"], "Authorization: Bearer "))
	harness.SendMessage(t, ws, harness.Message{"type": "start", "model": "chat", "messages": []harness.Message{{"role": "user", "content": "x"}}})
	for refused := false; !refused; {
		var m harness.Message
		if err := wsjson.Read(t.Context(), ws, &m); err != nil {
			t.Fatal(err)
		}
		refused = strings.Contains(fmt.Sprint(m), "insufficient_quota")
	}
	one.Kill()
	one.Launch()
	one.AwaitReady()
	await("the hard bound after a kill", 429, "tenant;per=month;of=cost;used=", one)
	table, err := one.RunCommand("usage", "-c", one.Config, "--by", "tenant")
	if err != nil || !strings.Contains(table, "BUDGET OF") || !strings.Contains(table, "hard") {
		t.Errorf("%v\n%s", err, table)
	}
	reached("Hard")
	raised := strings.Replace(text, "soft: 100, hard: 1500", "soft: 100000, hard: 100000", 1)
	for _, g := range []*harness.Gateway{one, two} {
		g.Configure(raised)
	}
	await("the raised budget", 200, "", one, two)
}
