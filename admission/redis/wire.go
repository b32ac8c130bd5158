package redis

import (
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// maxTokens is the largest bucket; larger ones are taken for that, as they are in process.
const maxTokens = (1<<63 - 1) / 60_000_000 / 2

// askedModel and askedTenant are the limits that claims name, each once in a turn.
type askedModel struct {
	name        string
	max, tokens int64
}

type askedTenant struct {
	name                              string
	requests, tokens, max, maxPrefill int64
}

// form collects the claims of a turn.
type claimTable struct {
	models  []askedModel
	tenants []askedTenant
	modelAt map[askedModel]int
	tenant  map[askedTenant]int
	claims  []any
	count   int
}

func clampLimit(n int) int64 { return min(max(int64(n), 0), maxTokens) }

func (f *claimTable) model(c admission.Claim) int {
	m := askedModel{c.Model, clampLimit(c.Limits.MaxConcurrent), clampLimit(c.Limits.TokensPerMinute)}
	i, ok := f.modelAt[m]
	if !ok {
		f.models = append(f.models, m)
		i = len(f.models)
		f.modelAt[m] = i
	}
	return i
}

func (f *claimTable) tenantOf(c admission.Claim) int {
	l := c.TenantLimits
	t := askedTenant{c.Tenant, clampLimit(l.RequestsPerMinute), clampLimit(l.TokensPerMinute), clampLimit(l.MaxConcurrent), clampLimit(l.MaxPrefill)}
	i, ok := f.tenant[t]
	if !ok {
		f.tenants = append(f.tenants, t)
		i = len(f.tenants)
		f.tenant[t] = i
	}
	return i
}

func (f *claimTable) add(c admission.Claim, first bool) {
	var taskMillis int64
	key := ""
	if c.Task != nil {
		taskMillis, key = max(c.Task.Lease.Milliseconds(), 1), c.Task.Key
	}
	f.claims = append(f.claims, c.ID, f.model(c), f.tenantOf(c), c.Replica, clampLimit(c.ReplicaLimit), min(max(c.Tokens, 0), maxTokens),
		boolArg(c.Prefill), boolArg(first), taskMillis, key)
	f.count++
}

func newClaimTable(parts []callPart) *claimTable {
	f := &claimTable{modelAt: map[askedModel]int{}, tenant: map[askedTenant]int{}}
	for _, p := range parts {
		for i, c := range p.claims {
			f.add(c, i == 0)
		}
	}
	return f
}

// args is the part of a script's arguments that the claims are.
func (f *claimTable) args(args []any) []any {
	args = append(args, len(f.models))
	for _, m := range f.models {
		args = append(args, m.name, m.max, m.tokens)
	}
	args = append(args, len(f.tenants))
	for _, t := range f.tenants {
		args = append(args, t.name, t.requests, t.tokens, t.max, t.maxPrefill)
	}
	return append(append(args, f.count), f.claims...)
}

func boolArg(b bool) int {
	if b {
		return 1
	}
	return 0
}

// args is a change as the script reads it.
func (c change) args(args []any, now time.Time) []any {
	claim := c.claim
	back := min(max(c.tokens, -maxTokens), maxTokens)
	owed, requests := c.owed(now)
	owed = min(max(owed, 0), maxTokens)
	args = append(args, string(c.kind))
	switch c.kind {
	case leaseEnded:
		return append(args, claim.ID, claim.Model, claim.Tenant, claim.Replica, boolArg(claim.Prefill), back, c.requests, owed,
			requests, boolArg(claim.Task != nil))
	case firstToken:
		return append(args, claim.ID, claim.Tenant)
	case bucketsCorrected:
		return append(args, claim.Model, claim.Tenant, back)
	case bucketLevel:
		return append(args, string(c.bucket.kind), c.bucket.name, c.level.size, c.level.at(now))
	}
	var taskMillis int64
	key := ""
	if claim.Task != nil {
		key = claim.Task.Key
		if taskMillis = c.expires.Sub(now).Milliseconds(); taskMillis <= 0 {
			taskMillis = -1 // it has expired untold: it only costs
		}
	}
	return append(args, claim.ID, claim.Model, claim.Tenant, claim.Replica, boolArg(claim.Prefill), min(max(claim.Tokens, 0), maxTokens),
		owed, requests, taskMillis, key)
}

// bucketName is a bucket: of a model's tokens 'm', of a tenant's tokens 't' or its requests 'r'.
type bucketName struct {
	kind byte
	name string
}

// level is how full a bucket of so many tokens a minute was.
type level struct {
	size, tokens int64
	seen         time.Time
}

// at is how full the bucket is now, if nobody else has taken any.
func (l level) at(now time.Time) int64 {
	elapsed := now.Sub(l.seen)
	if elapsed >= 2*refillTime {
		return l.size
	}
	return min(l.size, l.tokens+int64(float64(l.size)*elapsed.Minutes()))
}
