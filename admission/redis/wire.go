package redis

import (
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// maxTokens is the size of the largest bucket. A larger limit counts as this one, as it does in
// process.
const maxTokens = (1<<63 - 1) / 60_000_000 / 2

// modelLimits and tenantLimits are the limits that a claim carries, in the order in which the
// script reads them.
var (
	modelLimits  = admission.SharedLimits(admission.ModelScope)
	tenantLimits = admission.SharedLimits(admission.TenantScope)
)

// maxSharedLimits is at least the length of modelLimits and of tenantLimits.
const maxSharedLimits = 8

// limitSet is the values of the shared limits of one model or one tenant. It is comparable.
type limitSet struct {
	name   string
	values [maxSharedLimits]int64
}

func (s *limitSet) value(name string, limits []admission.Limit) int64 {
	for i := range limits {
		if limits[i].Name == name {
			return s.values[i]
		}
	}
	return 0
}

// claimTable collects the claims of one sync. The script gets each set of limits once.
type claimTable struct {
	models  []limitSet
	tenants []limitSet
	// modelAt and tenantAt are positions in models and tenants, counted from 1 as in Lua.
	modelAt, tenantAt map[limitSet]int
	claims            []any
	count             int
}

// clampLimit keeps a limit within the numbers that the script can count with.
func clampLimit(n int64) int64 { return min(max(n, 0), maxTokens) }

func (f *claimTable) model(c admission.Claim) int {
	m := limitSet{name: c.Model}
	for i := range modelLimits {
		m.values[i] = clampLimit(modelLimits[i].OfModel(&c.Limits))
	}
	return position(m, f.modelAt, &f.models)
}

func (f *claimTable) tenant(c admission.Claim) int {
	t := limitSet{name: c.Tenant}
	for i := range tenantLimits {
		t.values[i] = clampLimit(tenantLimits[i].OfTenant(&c.TenantLimits))
	}
	return position(t, f.tenantAt, &f.tenants)
}

// position returns the position of a set of limits in a list. It appends a set that is not there.
func position(s limitSet, at map[limitSet]int, list *[]limitSet) int {
	i, ok := at[s]
	if !ok {
		*list = append(*list, s)
		i = len(*list)
		at[s] = i
	}
	return i
}

func (f *claimTable) add(c admission.Claim, first bool) {
	var taskMillis, lifeMillis int64
	key := ""
	if c.Task != nil {
		taskMillis, lifeMillis, key = max(c.Task.Lease.Milliseconds(), 1), c.Task.Lifetime.Milliseconds(), c.Task.Key
	}
	f.claims = append(f.claims, c.ID, f.model(c), f.tenant(c), c.Replica, clampLimit(int64(c.ReplicaLimit)), min(max(c.Tokens, 0), maxTokens),
		boolArg(c.Prefill), boolArg(first), taskMillis, lifeMillis, key, c.UnderTask)
	f.count++
}

func newClaimTable(parts []callPart) *claimTable {
	f := &claimTable{modelAt: map[limitSet]int{}, tenantAt: map[limitSet]int{}}
	for _, p := range parts {
		for i, c := range p.claims {
			f.add(c, i == 0)
		}
	}
	return f
}

// args appends the arguments of the claims. sync.lua describes them.
func (f *claimTable) args(args []any) []any {
	args = appendLimits(args, f.models, len(modelLimits))
	args = appendLimits(args, f.tenants, len(tenantLimits))
	return append(append(args, f.count), f.claims...)
}

func appendLimits(args []any, sets []limitSet, values int) []any {
	args = append(args, len(sets))
	for _, s := range sets {
		args = append(args, s.name)
		for _, v := range s.values[:values] {
			args = append(args, v)
		}
	}
	return args
}

func boolArg(b bool) int {
	if b {
		return 1
	}
	return 0
}

// args appends the arguments of the change. changes in sync.lua reads them.
func (c change) args(args []any, now time.Time) []any {
	claim := c.claim
	back := min(max(c.tokens, -maxTokens), maxTokens)
	owed, requests := c.owed(now)
	owed = min(max(owed, 0), maxTokens)
	args = append(args, string(c.kind))
	switch c.kind {
	case leaseEnded:
		return append(args, claim.ID, claim.Model, claim.Tenant, claim.Replica, boolArg(claim.Prefill), back, c.requests, owed,
			requests, boolArg(claim.Task != nil), claim.UnderTask)
	case slotMoved:
		return append(args, claim.ID, claim.Model, c.from, claim.Replica)
	case firstToken:
		return append(args, claim.ID, claim.Tenant)
	case bucketsCorrected:
		return append(args, claim.Model, claim.Tenant, back, claim.UnderTask)
	case bucketLevel:
		return append(args, string(c.bucket.kind), c.bucket.name, c.level.size, c.level.at(now))
	}
	var taskMillis, lifeMillis int64
	key := ""
	if claim.Task != nil {
		key, lifeMillis = claim.Task.Key, c.until.Sub(now).Milliseconds()
		if taskMillis = c.expires.Sub(now).Milliseconds(); taskMillis <= 0 {
			// the task expired before it was reported: its buckets are still charged
			taskMillis = -1
		}
	}
	return append(args, claim.ID, claim.Model, claim.Tenant, claim.Replica, boolArg(claim.Prefill), min(max(claim.Tokens, 0), maxTokens),
		owed, requests, taskMillis, lifeMillis, key, claim.UnderTask)
}

// bucketName names a bucket: 'm' for a model's tokens, 't' for a tenant's tokens, 'r' for its
// requests.
type bucketName struct {
	kind byte
	name string
}

// level is how full a bucket of size tokens per minute was at the time seen.
type level struct {
	size, tokens int64
	seen         time.Time
}

// at returns how full the bucket is now, if nobody else was charged.
func (l level) at(now time.Time) int64 {
	return min(l.size, l.tokens+int64(float64(l.size)*now.Sub(l.seen).Minutes()))
}
