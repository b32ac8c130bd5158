package admission

// pool is several models that a request may go to alike. Its members share the tokens by deficit round robin as long as they have
// room: a member earns weight × quantum when the cursor comes to it and it could serve, and never by being asked. One that could not
// keeps what it has.
type pool struct {
	name    string
	models  []string
	members []*member
	// spare is how many of them may have one more lease.
	spare int
	queue queue
	// quiet: its models are being asked one after the other, and before that is done nobody is told to wait.
	quiet bool
	// cursor is the member whose visit it is; visiting says that it has had this visit's credit.
	cursor   int
	visiting bool
	// quantum of this round; largest is the largest cost lately, which the next round's will be.
	quantum, largest int64
	// lightest is the least weight of the members, which earns one quantum a visit.
	lightest int64
}

// member is a model's place in a pool.
type member struct {
	pool    *pool
	gate    *gate
	deficit int64
	tags    [bands]int64
}

// quantumLoss is what part of the largest cost is forgotten with each request, so that one large request does not make all later
// rounds coarse.
const quantumLoss = 64

// offer goes round the members, in their fair order, until one takes a request of this cost, and returns that one. able says whether a
// member has room; take makes it serve, and may fail. Each is asked at most once. If nobody takes it, nothing has changed but
// what able ones have earned.
func (p *pool) offer(cost int64, able, take func(*gate) bool) *member {
	p.largest = max(p.largest-(p.largest+quantumLoss-1)/quantumLoss, cost)
	cursor, visiting, quantum := p.cursor, p.visiting, p.quantum
	known := make([]answer, len(p.members))
	for unable := 0; unable < len(p.members); p.leave() {
		if p.cursor >= len(p.members) {
			p.cursor, p.visiting = 0, false
		}
		if p.quantum == 0 || p.cursor == 0 && !p.visiting {
			p.quantum = p.largest
		}
		m, is := p.members[p.cursor], &known[p.cursor]
		if *is == unasked {
			*is = answered(able(m.gate))
			unable += int(*is & 1)
		}
		credit := p.credit(m)
		switch {
		case *is == no:
		case m.deficit+credit < cost:
			m.deficit += credit
		case take(m.gate):
			m.deficit += credit - cost
			p.visiting = true
			return m
		default:
			*is = no
			unable++
		}
	}
	p.cursor, p.visiting, p.quantum = cursor, visiting, quantum
	return nil
}

type answer uint8

const (
	unasked answer = iota
	no
	yes
)

func answered(ok bool) answer {
	if ok {
		return yes
	}
	return no
}

func (p *pool) leave() { p.cursor, p.visiting = p.cursor+1, false }

// credit is what a visit of m would add now.
func (p *pool) credit(m *member) int64 {
	if p.visiting {
		return 0
	}
	full := p.quantum * m.gate.book.limits.weight() / p.lightest
	// A member that was kept from serving in the midst of its visits does not save up more than two of them.
	return max(min(full, 2*full-m.deficit), 0)
}

func (p *pool) has(g *gate) bool {
	for _, m := range p.members {
		if m.gate == g {
			return true
		}
	}
	return false
}

// fits reports whether any member's bucket can ever hold so many tokens.
func (p *pool) fits(tokens int) bool {
	for _, m := range p.members {
		if m.gate.book.fits(tokens) {
			return true
		}
	}
	return false
}

// PoolStats returns what waits for any model of the pool.
func (c *Controller) PoolStats(name string) Stats {
	c.mu.Lock()
	defer c.unlock()
	p, ok := c.pools[name]
	if !ok {
		return Stats{Tokens: -1}
	}
	return Stats{Queued: p.queue.length, QueuedBytes: p.queue.bytes, Tokens: -1}
}
