package gateway

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/usage"
)

func TestB3_BudgetsOfTheFile(t *testing.T) {
	hash := "sha256:1234567890abcdef1234567890abcdef1234567890abcdef1234567890abcdef"
	got := spendingBudgets(&config.Config{Tenants: []config.Tenant{{
		Name: "acme", Budgets: []config.Budget{{Per: "day", Of: "tokens", Soft: 1}},
		Keys: []config.Key{{Hash: hash, Budgets: []config.Budget{{Per: "month", Of: "cost", Hard: 2}}}},
	}}})
	want := []usage.Budget{{Tenant: "acme", Per: usage.PerDay, Of: usage.OfTokens, Soft: 1},
		{Tenant: "acme", Key: "acme/12345678", Per: usage.PerMonth, Of: usage.OfCost, Hard: 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
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
		Message: "The budget of API key acme/1 for this day is used up: 12 tokens of 10 tokens. It begins anew at 2026-11-24T00:00:00Z."}
	if diff := cmp.Diff(want, fault); diff != "" || reached != both {
		t.Error(diff, reached)
	}
	if _, fault = budgetAnswer(nil, &usage.Verdict{Hard: &hard}, day); fault != nil {
		t.Error("refused after the budget began anew")
	}
}
