package gateway

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/usage"
)

// ledger counts what requests have used, at the prices in force.
type ledger struct {
	*usage.Ledger
	// prices are those of the models that have some.
	prices atomic.Pointer[map[string]usage.Prices]
}

// makeUsage opens the ledger in the state directory.
func (g *Gateway) makeUsage() error {
	c := usage.Config{Dir: filepath.Join(g.dir.Path(), "usage"), Keep: func() usage.Keep { return usage.Keep(g.config().Usage) }, Log: g.log}
	if g.redis != nil {
		client, err := redis.NewClient(*g.redis, usageTimeout)
		if err != nil {
			return err
		}
		c.Redis = client
	}
	opened, err := usage.New(c)
	if opened == nil {
		return err
	}
	if err != nil {
		g.log.Error("usage of the earlier run read with faults", zap.Error(err))
	}
	g.usage = &ledger{Ledger: opened}
	g.usage.prices.Store(&map[string]usage.Prices{})
	return nil
}

// conditions tells which budgets are reached, and which files are damaged or cannot be read.
func (l *ledger) conditions() []condition.Condition {
	all := budgetConditions(budgetsInForce(l.Reached(), time.Now()))
	for file, err := range l.Faults() {
		all = append(all, condition.Fault(condition.UsageDamaged, file, "NotRead",
			fmt.Sprintf("The file usage/%s was not read as a whole: %s.", file, sentence(err.Error()))))
	}
	return all
}

// usageTimeout gives a round trip to Redis with many rows 5 s (redis.BackgroundTimeout). Only the
// one who asks for usage waits for it.
const usageTimeout = 1250 * time.Millisecond

// used adds what a request has used to the ledger, and to the metrics and the history if they are
// told of it only here. See request.Subscribers.
func (g *Gateway) used(q *request.Summary) {
	if q.UsedApart {
		g.addUsed(*q)
		g.succession.link.Load().Used(*q)
	}
	g.usage.addRequest(q)
}

// addRequest adds what a request has used, and later what its engine tells late.
func (l *ledger) addRequest(q *request.Summary) {
	if !countsUsage(q) {
		return
	}
	endpoint, _ := openai.EndpointOf(q.Path)
	told := q.UsageKnown || endpoint.Free() && !q.IsEstimated() // there is nothing to tell
	whole := told && q.Cause == ""                              // else the engine may have done more than it has told
	counts := usage.OfRequest(q.PromptTokens, q.CachedTokens, q.CompletionTokens, whole)
	prices, at := (*l.prices.Load())[q.Model], time.Now()
	counts.Charge(prices)
	subject := usage.Subject{Tenant: q.Tenant, Key: q.Key, Model: q.Model}
	l.Add(subject, counts, at)
	q.Late.Await(func(u request.Usage) {
		known := usage.OfRequest(u.Prompt, u.Cached, u.Completion, u.Known)
		known.Charge(prices)
		l.Add(subject, known.Minus(counts), at)
	})
}

// modelPrices returns the prices of all models that have some.
func modelPrices(c *config.Config) map[string]usage.Prices {
	all := map[string]usage.Prices{}
	for _, m := range c.Models {
		p := usage.Prices{Prompt: m.Prices.Prompt, Cached: m.Prices.Prompt, Completion: m.Prices.Completion}
		if m.Prices.Cached != nil {
			p.Cached = *m.Prices.Cached
		}
		if p != (usage.Prices{}) {
			all[m.Name] = p
		}
	}
	return all
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

// tenantQuota returns how much of each limit of a tenant is used. A tenant that has not called has
// used nothing.
func tenantQuota(l admission.TenantLimits, now admission.TenantStats) map[string]admin.LimitUse {
	all := map[string]admin.LimitUse{}
	atOnce := func(name string, used, limit int) {
		if limit > 0 {
			all[name] = admin.LimitUse{Used: int64(used), Limit: int64(limit), Remaining: int64(max(limit-used, 0))}
		}
	}
	perMinute := func(name string, limit int, a admission.Allowance) {
		if limit <= 0 {
			return
		}
		if a.Limit == 0 {
			a = admission.Allowance{Limit: int64(limit), Remaining: int64(limit)}
		}
		all[name] = admin.LimitUse{Used: a.Limit - a.Remaining, Limit: a.Limit, Remaining: a.Remaining, ResetsMS: a.Reset.Milliseconds()}
	}
	perMinute("requests_per_minute", l.RequestsPerMinute, now.Quota.Requests)
	perMinute("tokens_per_minute", l.TokensPerMinute, now.Quota.Tokens)
	atOnce("max_concurrent_streams", now.Running+now.Queued, l.MaxConcurrent)
	atOnce("max_prefill", now.Prefill, l.MaxPrefill)
	atOnce("max_queue_bytes", int(now.QueuedBytes), int(l.MaxQueueBytes))
	return all
}
