package admission

import "slices"

// pool is a set of models of which any may serve a request. While several members have room, they
// share the tokens by deficit round robin. A member gets a credit of weight × quantum when the
// cursor comes to it and it can serve, and never because a request asks. A member that cannot serve
// keeps its deficit.
type pool struct {
	models      []string
	memberships []*membership
	// gatesWithFreeLease counts the members that have a free lease.
	gatesWithFreeLease int
	queue              queue
	// deferNewcomers is true while the members are asked one after the other. Until that is done,
	// no newcomer is told to wait.
	deferNewcomers bool
	// cursor is the index of the member of the current visit. credited says that the member has had
	// the credit of this visit.
	cursor   int
	credited bool
	// quantum is that of the current round. largestCost is the largest cost lately, which the next
	// round takes as its quantum.
	quantum, largestCost int64
	// minWeight is the smallest weight of the members. A member of that weight gets one quantum a
	// visit.
	minWeight int64
}

// membership is the state of one model in one pool.
type membership struct {
	pool       *pool
	gate       *gate
	deficit    int64
	finishTags [bands]int64
}

// costDecay is the part of largestCost that each request takes off, so that one large request does
// not make all later rounds coarse.
const costDecay = 64

// pick visits the members in their fair order until one takes a request of this cost, and returns
// that member. canServe reports whether a member has room. reserve makes it take the request, and
// may fail. Each is called at most once for a member. If nobody takes the request, pick returns nil
// and changes only the deficits.
func (p *pool) pick(cost int64, canServe, reserve func(*gate) bool) *membership {
	p.largestCost = max(p.largestCost-(p.largestCost+costDecay-1)/costDecay, cost)
	cursor, credited, quantum := p.cursor, p.credited, p.quantum
	answers := make([]memberAnswer, len(p.memberships))
	for unableCount := 0; unableCount < len(p.memberships); p.nextMember() {
		if p.cursor >= len(p.memberships) {
			p.cursor, p.credited = 0, false
		}
		if p.quantum == 0 || p.cursor == 0 && !p.credited {
			p.quantum = p.largestCost
		}
		m, answer := p.memberships[p.cursor], &answers[p.cursor]
		if *answer == unasked {
			if *answer = yes; !canServe(m.gate) {
				*answer = no
				unableCount++
			}
		}
		credit := p.credit(m)
		switch {
		case *answer == no:
		case m.deficit+credit < cost:
			m.deficit += credit
		case reserve(m.gate):
			m.deficit += credit - cost
			p.credited = true
			return m
		default:
			*answer = no
			unableCount++
		}
	}
	p.cursor, p.credited, p.quantum = cursor, credited, quantum
	return nil
}

type memberAnswer uint8

const (
	unasked memberAnswer = iota
	no
	yes
)

func (p *pool) nextMember() { p.cursor, p.credited = p.cursor+1, false }

// credit is what a visit of m would add now.
func (p *pool) credit(m *membership) int64 {
	if p.credited {
		return 0
	}
	full := p.quantum * m.gate.usage.limits.weight() / p.minWeight
	// A member that could not serve during a visit saves up at most two credits.
	return max(min(full, 2*full-m.deficit), 0)
}

func (p *pool) hasMember(g *gate) bool {
	return slices.ContainsFunc(p.memberships, func(m *membership) bool { return m.gate == g })
}

// fits reports whether the bucket of any member can ever hold what the request needs.
func (p *pool) fits(a *arrival) bool {
	return slices.ContainsFunc(p.memberships, func(m *membership) bool { return a.fits(m.gate.usage.limits.TokensPerMinute) })
}

// tokensPerMinute returns the greatest limit of the pool's models; 0: one has none.
func (p *pool) tokensPerMinute() (greatest int) {
	for _, m := range p.memberships {
		limit := m.gate.usage.limits.TokensPerMinute
		if limit <= 0 {
			return 0
		}
		greatest = max(greatest, limit)
	}
	return greatest
}

// PoolStats returns the state of the pool's own queue. Tokens is -1.
func (c *Controller) PoolStats(name string) Stats {
	c.mu.Lock()
	defer c.unlockAndRun()
	p, ok := c.pools[name]
	if !ok {
		return Stats{Tokens: -1}
	}
	return Stats{Queued: p.queue.length, AtTenantLimits: p.queue.parkedCount(), QueuedBytes: p.queue.bytes, Tokens: -1}
}
