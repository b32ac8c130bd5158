package redis

import (
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

const (
	// interestFor is how long after its last claim a tenant's service elsewhere is asked for, and interestLimit for how many pairs of
	// model and tenant at once.
	queryFor   = 10 * time.Second
	queryLimit = 512
)

// servedTokens is what a tenant had of a model.
type servedTokens struct {
	// here is what this process granted since total was first read.
	local int64
	// total is what all gateways granted, as last read; below 0 before that.
	total int64
	// claimed is when the tenant last asked here.
	claimed time.Time
}

// activeLocked notes a claim, and what it was granted.
func (s *Store) recordClaimLocked(c admission.Claim, granted bool) {
	tenants := s.served[c.Model]
	if tenants == nil {
		tenants = map[string]*servedTokens{}
		s.served[c.Model] = tenants
	}
	t := tenants[c.Tenant]
	if t == nil {
		t = &servedTokens{total: -1}
		tenants[c.Tenant] = t
	}
	t.claimed = time.Now()
	if granted {
		t.local += max(c.Tokens, 0)
	}
}

// interest is one model whose tenants ask here.
type servedQuery struct {
	model   string
	tenants []string
	// here is what each was granted here before the question.
	local []int64
}

// interestLocked chooses what to ask the store for, and forgets who has not asked for long.
func (s *Store) servedQueriesLocked(now time.Time) []servedQuery {
	var out []servedQuery
	room := queryLimit
	for model, tenants := range s.served {
		i := servedQuery{model: model}
		for tenant, t := range tenants {
			switch {
			case now.Sub(t.claimed) >= queryFor:
				delete(tenants, tenant)
			case room > 0 && s.status.Gateways > 1:
				room--
				i.tenants = append(i.tenants, tenant)
				i.local = append(i.local, t.local)
			}
		}
		if len(tenants) == 0 {
			delete(s.served, model)
		}
		if len(i.tenants) > 0 {
			out = append(out, i)
		}
	}
	return out
}

func appendServedQueries(args []any, asked []servedQuery) []any {
	args = append(args, len(asked))
	for _, i := range asked {
		args = append(args, i.model, len(i.tenants))
		for _, t := range i.tenants {
			args = append(args, t)
		}
	}
	return args
}

// servedElsewhere tells the listener what others served.
func (s *Store) reportServed(asked []servedQuery, totals []int64) {
	type news struct {
		model, tenant string
		tokens        int64
	}
	var all []news
	s.mu.Lock()
	for _, i := range asked {
		for j, tenant := range i.tenants {
			t := s.served[i.model][tenant]
			if len(totals) == 0 || t == nil {
				break
			}
			total := totals[0]
			totals = totals[1:]
			if elsewhere := total - t.total - i.local[j]; t.total >= 0 && elsewhere > 0 {
				all = append(all, news{i.model, tenant, elsewhere})
			}
			t.total = total
			t.local -= i.local[j]
		}
	}
	subscriber := s.subscriber
	s.mu.Unlock()
	if subscriber == nil {
		return
	}
	for _, n := range all {
		subscriber.TokensServed(n.model, n.tenant, n.tokens)
	}
}
