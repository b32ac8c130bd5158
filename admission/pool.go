package admission

// pool is several models that a request may go to alike. Its members share the tokens by deficit round robin as long as they have
// room: a member earns weight × quantum when the cursor comes to it and it could serve, and never by being asked. One that could not
// keeps what it has.
type pool struct {
	name        string
	models      []string
	memberships []*membership
	// spare is how many of them may have one more lease.
	gatesWithFreeLease int
	queue              queue
	// quiet: its models are being asked one after the other, and before that is done nobody is told to wait.
	deferNewcomers bool
	// cursor is the member whose visit it is; visiting says that it has had this visit's credit.
	cursor   int
	credited bool
	// quantum of this round; largest is the largest cost lately, which the next round's will be.
	quantum, largestCost int64
	// lightest is the least weight of the members, which earns one quantum a visit.
	minWeight int64
}

// member is a model's place in a pool.
type membership struct {
	pool       *pool
	gate       *gate
	deficit    int64
	finishTags [bands]int64
}

// quantumLoss is what part of the largest cost is forgotten with each request, so that one large request does not make all later
// rounds coarse.
const costDecay = 64

// offer goes round the members, in their fair order, until one takes a request of this cost, and returns that one. able says whether a
// member has room; take makes it serve, and may fail. Each is asked at most once. If nobody takes it, nothing has changed but
// what able ones have earned.
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
			*answer = answerOf(canServe(m.gate))
			unableCount += int(*answer & 1)
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

func answerOf(ok bool) memberAnswer {
	if ok {
		return yes
	}
	return no
}

func (p *pool) nextMember() { p.cursor, p.credited = p.cursor+1, false }

// credit is what a visit of m would add now.
func (p *pool) credit(m *membership) int64 {
	if p.credited {
		return 0
	}
	full := p.quantum * m.gate.usage.limits.weight() / p.minWeight
	// A member that was kept from serving in the midst of its visits does not save up more than two of them.
	return max(min(full, 2*full-m.deficit), 0)
}

func (p *pool) hasMember(g *gate) bool {
	for _, m := range p.memberships {
		if m.gate == g {
			return true
		}
	}
	return false
}

// fits reports whether any member's bucket can ever hold so many tokens.
func (p *pool) fits(tokens int) bool {
	for _, m := range p.memberships {
		if m.gate.usage.fits(tokens) {
			return true
		}
	}
	return false
}

// PoolStats returns what waits for any model of the pool.
func (c *Controller) PoolStats(name string) Stats {
	c.mu.Lock()
	defer c.unlockAndRun()
	p, ok := c.pools[name]
	if !ok {
		return Stats{Tokens: -1}
	}
	return Stats{Queued: p.queue.length, QueuedBytes: p.queue.bytes, Tokens: -1}
}
