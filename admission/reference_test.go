package admission

import (
	"math"
	"math/big"
	"slices"
	"time"
)

// reference is what the package promises to one tenant, written a second time and as plainly as
// possible: slices, exact fractions, one event after the other. Its clock is its own; advance lets
// happen what happens by itself until then.
type reference struct {
	limits   Limits
	now      time.Duration // since the start, in whole microseconds
	tokens   *big.Rat      // in the bucket at now
	slots    int           // free on the replicas
	maxBytes int
	inFlight []*expectedCall
	waiting  []*expectedCall
	admitted []int // ids in order
}

// expectedCall is one request and its expected outcome.
type expectedCall struct {
	id             int
	tokens, bytes  int
	slot           bool // the request needs one
	came, deadline time.Duration
	ended          bool
	err            error
	at             time.Duration
}

func newReference(l Limits, slots, maxBytes int) *reference {
	r := &reference{slots: slots, maxBytes: maxBytes, tokens: new(big.Rat)}
	r.limit(l)
	return r
}

func (r *reference) end(a *expectedCall, err error) {
	a.ended, a.err, a.at = true, err, r.now
}

// tokenWait is the time until so many tokens are there, in whole microseconds.
func (r *reference) tokenWait(tokens int) time.Duration {
	missing := new(big.Rat).Sub(big.NewRat(int64(tokens), 1), r.tokens)
	if r.limits.TokensPerMinute == 0 || missing.Sign() <= 0 {
		return 0
	}
	micros := missing.Mul(missing, big.NewRat(60_000_000, int64(r.limits.TokensPerMinute)))
	up := new(big.Int).Add(micros.Num(), new(big.Int).Sub(micros.Denom(), big.NewInt(1)))
	return time.Duration(up.Div(up, micros.Denom()).Int64()) * time.Microsecond
}

// goes reports whether a request could be admitted now.
func (r *reference) goes(a *expectedCall) bool {
	return (r.limits.MaxConcurrent == 0 || len(r.inFlight) < r.limits.MaxConcurrent) &&
		r.tokenWait(a.tokens) == 0 && (!a.slot || r.slots > 0)
}

func (r *reference) admit(a *expectedCall) {
	r.inFlight = append(r.inFlight, a)
	r.admitted = append(r.admitted, a.id)
	if r.limits.TokensPerMinute > 0 {
		r.tokens.Sub(r.tokens, big.NewRat(int64(a.tokens), 1))
	}
	if a.slot {
		r.slots--
	}
	r.end(a, nil)
}

// admitNext admits from the front of the queue while it can.
func (r *reference) admitNext() {
	for len(r.waiting) > 0 && r.goes(r.waiting[0]) {
		a := r.waiting[0]
		r.waiting = r.waiting[1:]
		r.admit(a)
	}
}

// checkTokenWait is the error of a request whose tokens, behind those of others, come too late.
func (r *reference) checkTokenWait(a *expectedCall, before []*expectedCall) error {
	if r.limits.TokensPerMinute > 0 && a.tokens > r.limits.TokensPerMinute {
		return ErrNeverFits
	}
	sum := a.tokens
	for _, b := range before {
		sum += b.tokens
	}
	if wait := r.tokenWait(sum); wait > a.deadline-r.now {
		return errTokensTooLate(wait)
	}
	return nil
}

func (r *reference) queuedBytes() int {
	sum := 0
	for _, a := range r.waiting {
		sum += a.bytes
	}
	return sum
}

func (r *reference) ask(a *expectedCall) {
	never := r.limits.TokensPerMinute > 0 && a.tokens > r.limits.TokensPerMinute
	switch hopeless := r.checkTokenWait(a, r.waiting); {
	case never:
		r.end(a, ErrNeverFits)
	case len(r.waiting) == 0 && r.goes(a):
		r.admit(a)
	case hopeless != nil:
		r.end(a, hopeless)
	case len(r.waiting) >= r.limits.MaxQueue, r.queuedBytes()+a.bytes > r.maxBytes:
		r.end(a, errQueueFull)
	default:
		r.waiting = append(r.waiting, a)
	}
}

func (r *reference) cancel(a *expectedCall, err error) {
	r.waiting = slices.DeleteFunc(r.waiting, func(b *expectedCall) bool { return a == b })
	r.end(a, err)
	r.admitNext()
}

func (r *reference) release(a *expectedCall) {
	r.inFlight = slices.DeleteFunc(r.inFlight, func(b *expectedCall) bool { return a == b })
	if a.slot {
		r.slots++
	}
	r.admitNext()
}

// limit changes the limits. They differ from those before.
func (r *reference) limit(l Limits) {
	size := big.NewRat(int64(l.TokensPerMinute), 1)
	if r.limits.TokensPerMinute == 0 || r.tokens.Cmp(size) > 0 {
		r.tokens.Set(size)
	}
	r.limits = l
	var stay []*expectedCall
	for _, a := range r.waiting {
		if err := r.checkTokenWait(a, stay); err != nil {
			r.end(a, err)
		} else {
			stay = append(stay, a)
		}
	}
	r.waiting = stay
	r.admitNext()
}

// remove fails all waiters.
func (r *reference) remove() {
	for _, a := range r.waiting {
		r.end(a, ErrRemoved)
	}
	r.waiting = nil
}

// advance moves the clock from one timed event to the next: a deadline, or the tokens of the head.
func (r *reference) advance(until time.Duration) {
	for {
		next, late := until, (*expectedCall)(nil)
		for _, a := range r.waiting {
			if a.deadline <= next {
				next, late = a.deadline, a
			}
		}
		if len(r.waiting) > 0 {
			if wait := r.tokenWait(r.waiting[0].tokens); wait > 0 && r.now+wait < next {
				next, late = r.now+wait, nil
			}
		}
		gain := big.NewRat(int64(r.limits.TokensPerMinute)*(next-r.now).Microseconds(), 60_000_000)
		size := big.NewRat(int64(r.limits.TokensPerMinute), 1)
		if r.tokens.Add(r.tokens, gain); r.tokens.Cmp(size) > 0 {
			r.tokens.Set(size)
		}
		r.now = next
		if late != nil {
			r.cancel(late, ErrTimeout)
			continue
		}
		r.admitNext()
		if r.now == until {
			return
		}
	}
}

// stats is what the Controller should report.
func (r *reference) stats() Stats {
	tokens, _ := r.tokens.Float64()
	if r.limits.TokensPerMinute == 0 {
		tokens = -1
	}
	hasFreeLease := r.limits.MaxConcurrent == 0 || len(r.inFlight) < r.limits.MaxConcurrent
	lacks := len(r.waiting) > 0 && hasFreeLease && r.tokenWait(r.waiting[0].tokens) > 0
	return Stats{
		InFlight: len(r.inFlight), Queued: len(r.waiting), LacksTokens: lacks, QueuedBytes: int64(r.queuedBytes()), Tokens: tokens, Share: len(r.inFlight),
	}
}

// sameStats compares up to the rounding of a float.
func sameStats(a, b Stats) bool {
	far := math.Abs(a.Tokens-b.Tokens) > 1e-6
	a.Tokens, b.Tokens = 0, 0
	return a == b && !far
}

// sameOutcome compares what the Controller and the reference say about a request.
func sameOutcome(got outcome, want *expectedCall) bool {
	if !got.ended || !want.ended {
		return got.ended == want.ended
	}
	return sameError(got.err, want.err) && got.after == want.at-want.came
}
