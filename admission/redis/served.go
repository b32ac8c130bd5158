package redis

import (
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

const (
	// queryFor is how long after its last claim a tenant's use at other gateways is asked for.
	// queryLimit bounds the pairs of model and tenant in one heartbeat.
	queryFor   = 10 * time.Second
	queryLimit = 512
)

// servedTokens counts the tokens that a tenant was granted of a model.
type servedTokens struct {
	// local is what this process was granted since total was last read.
	local int64
	// total is what all gateways were granted, as last read; below 0 before that.
	total int64
	// claimed is when the tenant last had a claim here.
	claimed time.Time
}

// recordClaimLocked records a claim, and whether it was granted.
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

// servedQuery asks for the tokens of one model, for the tenants with claims here.
type servedQuery struct {
	model   string
	tenants []string
	// local is servedTokens.local when the query was made.
	local []int64
}

// servedQueriesLocked returns what to ask the store for, and forgets tenants without recent claims.
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

// reportServed tells the subscriber what other gateways were granted.
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
			if byOthers := total - t.total - i.local[j]; t.total >= 0 && byOthers > 0 {
				all = append(all, news{i.model, tenant, byOthers})
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
