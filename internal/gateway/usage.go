package gateway

import (
	"context"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/usage"
)

// makeUsage opens the ledger in the state directory.
func (g *Gateway) makeUsage() error {
	ledger, err := usage.New(usage.Config{Dir: filepath.Join(g.dir.Path(), "usage"), Keep: g.keepUsage, Log: g.log})
	if ledger == nil {
		return err
	}
	if err != nil {
		g.log.Error("usage of the earlier run read with faults", zap.Error(err))
	}
	g.usage = ledger
	return nil
}

// keepUsage says how long the ledger keeps its rows.
func (g *Gateway) keepUsage() usage.Keep {
	u := g.config().Usage
	return usage.Keep{HourlyDays: u.HourlyDays, DailyDays: u.DailyDays}
}

// queryUsage answers a question about what was used.
func (g *Gateway) queryUsage(ctx context.Context, q usage.Question) (usage.Answer, error) {
	return g.usage.Query(ctx, q)
}

// used adds what a request has used to the ledger. See request.Subscribers.
func (g *Gateway) used(q *request.Summary) {
	if !countsUsage(q) {
		return
	}
	prompt, completion := q.PromptTokens, q.CompletionTokens
	if !q.UsageKnown {
		prompt, completion = g.estimateUsage(q)
	}
	whole := q.UsageKnown && q.Cause == "" // else the engine may have done more than it has told
	g.usage.Add(usage.Subject{Tenant: q.Tenant, Key: q.Key, Model: q.Model}, usage.OfRequest(prompt, q.CachedTokens, completion, whole), time.Now())
}

// countsUsage reports whether an engine has answered a request or worked for it. A request that
// joined another one's generation made no attempt and does not count.
func countsUsage(q *request.Summary) bool {
	if q.Tenant == "" || q.Model == "" {
		return false
	}
	answered := q.Source == headers.SourceEngine && q.Status < 400 && q.Code == "" && q.Attempts > 0
	return answered || q.UsageKnown || q.CompletionTokens > 0 || q.Abandoned
}

// estimateUsage estimates the tokens of a request whose engine has told none. What the relay has
// counted stands.
func (g *Gateway) estimateUsage(q *request.Summary) (prompt, completion int64) {
	endpoint, _ := openai.EndpointOf(q.Path)
	out := q.BytesOut
	if q.Abandoned || q.Route == request.RouteManaged {
		out = 0
	}
	prompt, completion = g.dispatcher.EstimateUsage(q.Model, endpoint, q.BytesIn, out, q.Stream)
	return max(prompt, q.PromptTokens), max(completion, q.CompletionTokens)
}
