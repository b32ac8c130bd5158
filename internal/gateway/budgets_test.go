package gateway

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/keys"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/usage"
)

func TestB3_BudgetsOfTheFile(t *testing.T) {
	hash := "sha256:1234567890abcdef1234567890abcdef1234567890abcdef1234567890abcdef"
	got := spendingBudgets(&config.Config{Tenants: []config.Tenant{{
		Name: "acme", Budgets: []config.Budget{{Per: "day", Of: "tokens", Soft: 1}},
		Keys: []config.Key{{Hash: hash, Budgets: []config.Budget{{Per: "month", Of: "cost", Hard: 2}}}},
	}}}, nil)
	want := []usage.Budget{{Tenant: "acme", Per: usage.PerDay, Of: usage.OfTokens, Soft: 1},
		{Tenant: "acme", Key: "acme/12345678", Per: usage.PerMonth, Of: usage.OfCost, Hard: 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The budgets of an expired key, and those of a key whose tenant has left the file, can refuse
// nothing. They are in no condition, no metric and no list of a tenant's budgets.
func TestB3_BudgetsOfKeysThatHaveEnded(t *testing.T) {
	const file = "auth: {mode: keys}\nmodels: [{name: x, launcher: none}]\ntenants: [{name: acme, budgets: [{per: day, hard: 1}], keys: [" +
		"{hash: 'sha256:1234567890abcdef1234567890abcdef1234567890abcdef1234567890abcdef', expires: 2001-01-01T00:00:00Z, budgets: [{per: day, hard: 1}]}]}]"
	path := t.TempDir()
	g := newGateway(t, claimed(t, path), parse(t, path, file))
	if err := g.applyFirst(); err != nil {
		t.Fatal(err)
	}
	budget := []keys.Budget{{Per: "day", Of: "tokens", Hard: 1}}
	future := time.Now().Add(time.Hour)
	g.keys.changed([]keys.Key{
		{ID: "gone", Tenant: "acme", Expires: time.Now().Add(-time.Hour), Budgets: budget}, {ID: "good", Tenant: "acme", Expires: future, Budgets: budget},
		{ID: "orphan", Tenant: "left", Budgets: budget},
	})
	for key, tenant := range map[string]string{"gone": "acme", "good": "acme", "12345678": "acme", "orphan": "left"} {
		g.usage.Add(usage.Subject{Tenant: tenant, Key: authz.KeyName(tenant, key)}, usage.OfRequest(1, 0, 1, true), time.Now())
	}
	var conditions, metrics, listed []string
	for _, c := range g.usage.conditions() {
		conditions = append(conditions, c.Subject)
	}
	for _, s := range g.gauges().Spending {
		metrics = append(metrics, s.Tenant+" "+s.Key)
	}
	for _, tenant := range g.tenants() {
		for _, b := range tenant.Budgets {
			listed = append(listed, tenant.Name+" "+b.Key)
		}
	}
	if diff := cmp.Diff([]string{"tenant acme, tokens per day", "key acme/good, tokens per day"}, conditions); diff != "" {
		t.Error("conditions:", diff)
	}
	want := []string{"acme ", "acme acme/good"}
	if diff := cmp.Diff(want, metrics); diff != "" {
		t.Error("metrics:", diff)
	}
	if diff := cmp.Diff(want, listed); diff != "" {
		t.Error("listed:", diff)
	}
}

func TestB3_WhatABudgetAnswers(t *testing.T) {
	now := time.Date(2026, 11, 23, 23, 0, 0, 0, time.UTC)
	day, month := now.Add(time.Hour), time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	soft := usage.Standing{Budget: usage.Budget{Tenant: "acme", Per: usage.PerMonth, Of: usage.OfCost, Soft: 40, Hard: 50}, Used: 41.5, Resets: month}
	hard := usage.Standing{Budget: usage.Budget{Tenant: "acme", Key: "acme/1", Per: usage.PerDay, Of: usage.OfTokens, Hard: 10}, Used: 12, Resets: day}
	text := "tenant;per=month;of=cost;used=41.5;soft=40;hard=50;resets=2026-12-01T00:00:00Z"
	reached, fault := budgetAnswer(&usage.Verdict{Reached: []usage.Standing{soft}}, nil, now)
	if reached != text || fault != nil {
		t.Error(reached, fault)
	}
	both := text + ", key;per=day;of=tokens;used=12;hard=10;resets=2026-11-24T00:00:00Z"
	reached, fault = budgetAnswer(&usage.Verdict{Reached: []usage.Standing{soft}}, &usage.Verdict{Reached: []usage.Standing{hard}, Hard: &hard}, now)
	want := &openai.Error{Code: openai.CodeInsufficientQuota, RetryAfter: time.Hour, Header: map[string]string{headers.Budget: both},
		Message: "The budget of API key acme/1 for this day is used up: 12 of 10 tokens. It begins anew at 2026-11-24T00:00:00Z."}
	if diff := cmp.Diff(want, fault); diff != "" || reached != both {
		t.Error(diff, reached)
	}
	if _, fault = budgetAnswer(nil, &usage.Verdict{Hard: &hard}, day); fault != nil {
		t.Error("refused after the budget began anew")
	}
}

// A condition tells the use and the bound with one unit, and long numbers in groups.
func TestB3_AmountsOfBudgetConditions(t *testing.T) {
	ends := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		s    usage.Standing
		want string
	}{
		{usage.Standing{Budget: usage.Budget{Tenant: "acme", Per: usage.PerDay, Of: usage.OfTokens, Hard: 100_000}, Used: 102_556, Resets: ends, Level: usage.HardReached},
			"The budget of tenant acme for this day is used up: 102,556 of 100,000 tokens. Requests are refused until 2026-11-24T00:00:00Z."},
		{usage.Standing{Budget: usage.Budget{Tenant: "acme", Per: usage.PerDay, Of: usage.OfCost, Hard: 1000}, Used: 1234.56, Resets: ends, Level: usage.HardReached},
			"The budget of tenant acme for this day is used up: 1,234.56 of 1,000. Requests are refused until 2026-11-24T00:00:00Z."},
		{usage.Standing{Budget: usage.Budget{Tenant: "acme", Per: usage.PerMonth, Of: usage.OfTokens, Soft: 999}, Used: 1_000_000, Level: usage.SoftReached},
			"The budget of tenant acme for this month is at 1,000,000 tokens. Its soft bound is 999 tokens."},
	} {
		if got := budgetCondition(&test.s).Message; got != test.want {
			t.Errorf("the message is %q, want %q", got, test.want)
		}
	}
}

// Many keys that have used up their budgets have few conditions, and hide those of no tenant.
func TestB3_ConditionsOfManyBudgets(t *testing.T) {
	standing := func(tenant, key string, level usage.Level) usage.Standing {
		return usage.Standing{Budget: usage.Budget{Tenant: tenant, Key: key, Per: usage.PerDay, Of: usage.OfTokens, Hard: 1}, Used: 1, Level: level}
	}
	var all []usage.Standing
	for i := range 3000 {
		all = append(all, standing("acme", "acme/"+strconv.Itoa(i), usage.HardReached), standing("acme", "acme/w"+strconv.Itoa(i), usage.Within))
	}
	all = append(all, standing("beta", "", usage.HardReached))
	var subjects []string
	for _, c := range budgetConditions(all) {
		subjects = append(subjects, c.Subject)
		if isKey := strings.HasPrefix(c.Subject, "key "); isKey != strings.Contains(c.Action, "a key of run time") {
			t.Errorf("%s: a budget of a key of run time cannot be raised in the file, and the action is %q", c.Subject, c.Action)
		}
	}
	if n := len(subjects); n != maxKeyConditions+2 {
		t.Errorf("%d conditions", n)
	}
	for _, subject := range []string{"key acme/0, tokens per day", "tenant beta, tokens per day", "other keys"} {
		if !slices.Contains(subjects, subject) {
			t.Errorf("no condition of %s", subject)
		}
	}
	if few := budgetConditions(all[:2]); len(few) != 1 {
		t.Errorf("%v", few)
	}
}
