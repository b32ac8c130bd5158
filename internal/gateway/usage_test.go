package gateway

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/usage"
)

func TestB3_CachedTokensCostWhatOthersDoUnlessTheyHaveAPrice(t *testing.T) {
	own := 0.0
	got := modelPrices(&config.Config{Models: []config.Model{
		{Name: "a", Prices: config.Prices{Prompt: 2, Completion: 3}},
		{Name: "b", Prices: config.Prices{Prompt: 2, Cached: &own}},
		{Name: "free"},
	}})
	want := map[string]usage.Prices{"a": {Prompt: 2, Cached: 2, Completion: 3}, "b": {Prompt: 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestO4_WhatIsUsedOfEachLimit(t *testing.T) {
	limits := admission.TenantLimits{RequestsPerMinute: 60, TokensPerMinute: 1000, MaxConcurrent: 4, MaxPrefill: 1}
	now := admission.TenantStats{Running: 3, Queued: 2, Prefill: 1,
		Quota: admission.Quota{Requests: admission.Allowance{Limit: 60, Remaining: 20, Reset: 40 * time.Second}}}
	want := map[string]admin.LimitUse{
		"requests_per_minute":    {Used: 40, Limit: 60, Remaining: 20, ResetsMS: 40_000},
		"tokens_per_minute":      {Limit: 1000, Remaining: 1000}, // the tenant has not been charged yet
		"max_concurrent_streams": {Used: 5, Limit: 4},
		"max_prefill":            {Used: 1, Limit: 1},
	}
	if diff := cmp.Diff(want, tenantQuota(limits, now)); diff != "" {
		t.Error(diff)
	}
}

func TestB3_WhatCounts(t *testing.T) {
	answered := request.Summary{Tenant: "acme", Model: "chat", Source: headers.SourceEngine, Status: 200, Attempts: 1}
	with := func(change func(*request.Summary)) request.Summary {
		q := answered
		change(&q)
		return q
	}
	for name, c := range map[string]struct {
		request request.Summary
		counts  bool
	}{
		"an answer":               {answered, true},
		"without a tenant":        {with(func(q *request.Summary) { q.Tenant = "" }), false},
		"an engine's error":       {with(func(q *request.Summary) { q.Status = 400 }), false},
		"a refusal":               {with(func(q *request.Summary) { q.Source, q.Status = headers.SourceGateway, 429 }), false},
		"another's generation":    {with(func(q *request.Summary) { q.Attempts = 0 }), false},
		"a client that left":      {with(func(q *request.Summary) { q.Source, q.Status, q.Abandoned = "", 0, true }), true},
		"an error after its work": {with(func(q *request.Summary) { q.Code, q.CompletionTokens = "upstream_truncated", 3 }), true},
	} {
		if countsUsage(&c.request) != c.counts {
			t.Errorf("%s: not %v", name, c.counts)
		}
	}
}

// TestB3_ALateUsageReplacesTheEstimate: the ledger has the usage of a response in the background,
// in whichever order the end of the request and the usage come.
func TestB3_ALateUsageReplacesTheEstimate(t *testing.T) {
	for _, usageFirst := range []bool{false, true} {
		opened, err := usage.New(usage.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		l := &ledger{Ledger: opened}
		l.prices.Store(&map[string]usage.Prices{"m": {Prompt: 1e6, Cached: 1e6, Completion: 2e6}})
		q := &request.Summary{Tenant: "t", Model: "m", Source: headers.SourceEngine, Status: 200, Attempts: 1,
			PromptTokens: 20, CompletionTokens: 256, Late: new(request.LateUsage)}
		told := request.UsageOf(10, 3, 4)
		if usageFirst {
			q.Late.Tell(told)
		}
		l.addRequest(q)
		q.Late.Tell(told)
		q.Late.Tell(request.UsageOf(99, 99, 0))
		a := l.Query(t.Context(), usage.Question{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour)})
		want := usage.OfRequest(10, 4, 3, true)
		want.Charge(usage.Prices{Prompt: 1e6, Cached: 1e6, Completion: 2e6})
		if len(a.Items) != 1 || a.Items[0].Counts != want {
			t.Errorf("usage first %v: %+v, want %+v", usageFirst, a.Items, want)
		}
	}
}

// TestB3_TokenizingIsNoEstimate: the model computes nothing for these requests, so that there are
// no tokens which the engine has not told.
func TestB3_TokenizingIsNoEstimate(t *testing.T) {
	opened, err := usage.New(usage.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{Ledger: opened}
	l.prices.Store(&map[string]usage.Prices{})
	answered := request.Summary{Tenant: "t", Model: "m", Source: headers.SourceEngine, Status: 200, Attempts: 1, Late: new(request.LateUsage)}
	for _, path := range []string{"/tokenize", "/v1/detokenize", "/v1/messages/count_tokens?beta=true", "/v1/audio/speech"} {
		q := answered
		q.Path = path
		l.addRequest(&q)
	}
	a := l.Query(t.Context(), usage.Question{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour)})
	if want := (usage.Counts{Requests: 4, EstimatedRequests: 1}); len(a.Items) != 1 || a.Items[0].Counts != want {
		t.Errorf("%+v, want %+v", a.Items, want)
	}
}
