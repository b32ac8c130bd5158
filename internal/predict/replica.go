// Package predict predicts the time to the first token of a request at each replica of a model, and
// chooses the replica with the least. internal/dispatch calls it for each pick.
//
// The prediction has three parts: the uncached tokens that wait at the replica, those of the
// request itself, and the rates of the replica. What waits is known from what the replica was
// given: a virtual queue drains at the learned rate, and each first token corrects it. Rates are
// learned from first tokens, per replica, with the model's rates as the guess.
//
// No function reads a clock, so that a simulation can run the same code in virtual time.
package predict

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/internal/steady"
)

// Model holds what the replicas of a model have in common. Its methods are safe for concurrent use.
type Model struct {
	mu sync.Mutex
	// fit and guess give the rates; guarded by mu
	fit   fit
	guess Rates
	rates Rates
	// version counts the changes of rates.
	version atomic.Uint64
}

// NewModel returns a model of which the guess alone is known.
func NewModel(guess Rates) *Model {
	return &Model{guess: guess, rates: guess, fit: fit{halfLife: halfLife}}
}

// SetGuess replaces the guess.
func (m *Model) SetGuess(guess Rates) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.guess != guess {
		m.guess = guess
		m.rates = m.fit.rates(guess, trustInGuess)
		m.version.Add(1)
	}
}

// Rates returns the rates of the usual replica.
func (m *Model) Rates() Rates {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rates
}

func (m *Model) learn(s Sample, now time.Time) Rates {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fit.learn(s, m.rates, now)
	m.rates = m.fit.rates(m.guess, trustInGuess)
	m.version.Add(1)
	return m.rates
}

// firstToken is a first token of the past.
type firstToken struct {
	at time.Time
	// mark is Replica.added after its request.
	mark float64
}

// firstTokens are the latest first tokens, in no order.
type firstTokens [64]firstToken

// add replaces the one of the earliest request.
func (x *firstTokens) add(f firstToken) {
	earliest := 0
	for i := range x {
		if x[i].mark < x[earliest].mark {
			earliest = i
		}
	}
	x[earliest] = f
}

// Replica is the prefill queue of one replica. Its methods are safe for concurrent use, and call
// nothing that locks but its Model.
type Replica struct {
	model *Model
	// idle is what Predict needs to know of a replica that has nothing to compute.
	idle idleReplica

	mu    sync.Mutex
	fit   fit
	rates Rates
	// version is that of the model's rates, which the replica has until its own first sample;
	// guarded by mu
	version uint64
	// refreshed is when the rates were computed last; guarded by mu
	refreshed time.Time
	// waiting are the uncached tokens of this gateway's requests that the replica has not computed
	// yet, as far as is known, and remote those of other gateways. Both are as of at; guarded by mu
	waiting, remote float64
	at              time.Time
	// pending are the uncached tokens, and unconfirmed the number, of the requests without a known
	// first token. waiting is never more than pending; guarded by mu
	pending     float64
	unconfirmed int
	// added are all tokens that were ever added, to tell which came after a request. queue has
	// added after each request that waits or is computed, in order; guarded by mu
	added float64
	queue []float64
	// recent are the latest first tokens; guarded by mu
	recent firstTokens
	// decodes is the number of generating requests at the last Begin, usual the decayed mean of
	// the uncached tokens of a request; guarded by mu
	decodes, usual float64
	// gateways has the tokens of each other gateway; guarded by mu
	gateways map[string]float64
	// foreignTokens and foreignRunning are work that no gateway has sent, as of foreignAt; guarded
	// by mu
	foreignTokens, foreignRunning float64
	foreignAt                     time.Time
}

// NewReplica returns an idle replica with the rates of the model.
func NewReplica(m *Model) *Replica {
	return &Replica{model: m, rates: m.Rates(), fit: fit{halfLife: replicaHalfLife}}
}

// refreshEvery is how often the rates of a replica without new samples are computed again, because
// its samples fade.
const refreshEvery = 5 * time.Second

// idleReplica has the rates of a replica that has nothing to compute. Predict reads them without a
// lock, because a pick asks about all replicas and most of them are idle.
type idleReplica struct {
	// valid says that the replica is idle. own says that the rates are the replica's own; otherwise
	// they are those of the model in this version.
	valid, own atomic.Bool
	version    atomic.Uint64
	// until is when the rates have to be computed again, by steady.Nanos.
	until atomic.Int64
	// base, token and decode are the bits of Rates.
	base, token, decode atomic.Uint64
}

// publishLocked makes the rates readable without the lock if the replica has nothing to compute.
func (r *Replica) publishLocked() {
	if len(r.queue) > 0 || r.waiting+r.remote+r.foreignTokens+r.foreignRunning > 0 {
		r.idle.valid.Store(false)
		return
	}
	r.idle.base.Store(math.Float64bits(r.rates.Base))
	r.idle.token.Store(math.Float64bits(r.rates.Token))
	r.idle.decode.Store(math.Float64bits(r.rates.Decode))
	r.idle.own.Store(r.fit.samples > 0)
	r.idle.version.Store(r.version)
	r.idle.until.Store(steady.Nanos(r.refreshed.Add(refreshEvery)))
	r.idle.valid.Store(true)
}

// ratesIfIdle returns the rates of a replica that has nothing to compute; false means that it may
// have something. A change that is under way may mix old and new rates.
func (r *Replica) ratesIfIdle(now time.Time) (Rates, bool) {
	i := &r.idle
	switch {
	case !i.valid.Load():
		return Rates{}, false
	case i.own.Load() && steady.Nanos(now) >= i.until.Load():
		return Rates{}, false
	case !i.own.Load() && i.version.Load() != r.model.version.Load():
		return Rates{}, false
	}
	return Rates{Base: math.Float64frombits(i.base.Load()), Token: math.Float64frombits(i.token.Load()),
		Decode: math.Float64frombits(i.decode.Load())}, true
}

// Prediction is what is expected of a request at a replica.
type Prediction struct {
	// TTFT is the expected time to the first token. Own is the part of it in which the replica
	// computes the request's own tokens.
	TTFT, Own time.Duration
	// Queued is the number of requests whose tokens the replica has yet to compute. Those of other
	// gateways are estimated from their tokens.
	Queued float64
	// Waiting are the uncached tokens that the replica computes before the request's own.
	Waiting float64
	// Rate is the number of tokens that the replica computes a second.
	Rate float64
}

// advanceLocked drains the queue up to now.
func (r *Replica) advanceLocked(now time.Time) {
	r.refreshLocked(now)
	if now.Sub(r.foreignAt) > foreignFor {
		r.foreignTokens, r.foreignRunning = 0, 0
	}
	passed := now.Sub(r.at)
	if passed <= 0 {
		return
	}
	r.at = now
	total := r.waiting + r.remote
	if total <= 0 {
		return
	}
	left := max(0, 1-passed.Seconds()/(total*r.rates.perToken(r.decodes)))
	r.waiting, r.remote = r.waiting*left, r.remote*left
	r.shortenLocked()
}

// refreshLocked computes the rates again if that was long ago. Without new samples they return to
// those of the model.
func (r *Replica) refreshLocked(now time.Time) {
	if r.fit.samples == 0 || now.Sub(r.refreshed) < refreshEvery {
		return
	}
	r.refreshed = now
	r.fit.decay(now)
	r.rates = r.fit.rates(r.model.Rates(), trustInModel)
}

// shortenLocked removes the requests from the queue whose tokens have been computed.
func (r *Replica) shortenLocked() {
	const rounding = 0.5 // tokens
	n := 0
	for n < len(r.queue) && r.queue[n] <= r.added-r.waiting+rounding {
		n++
	}
	r.queue = slices.Delete(r.queue, 0, n)
}

// Predict predicts the first token of a request of so many uncached tokens, when load requests are
// at the replica.
func (r *Replica) Predict(now time.Time, load int, uncached float64) Prediction {
	if rates, idle := r.ratesIfIdle(now); idle {
		return rates.predict(0, uncached, float64(load))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advanceLocked(now)
	p := r.predictLocked(load, uncached)
	if len(r.queue) == 0 {
		r.publishLocked()
	}
	return p
}

// predict returns the prediction of a request of so many uncached tokens, when waiting tokens are
// computed before and so many requests generate.
func (r Rates) predict(waiting, uncached, decodes float64) Prediction {
	perToken := r.perToken(decodes)
	return Prediction{
		TTFT:    duration(r.Base + (waiting+uncached)*perToken),
		Own:     duration(uncached * perToken),
		Waiting: waiting,
		Rate:    1 / perToken,
	}
}

func (r *Replica) predictLocked(load int, uncached float64) Prediction {
	if r.fit.samples == 0 {
		if v := r.model.version.Load(); v != r.version {
			r.version, r.rates = v, r.model.Rates()
		}
	}
	p := r.rates.predict(r.waiting+r.remote+r.foreignTokens, uncached, r.decodesLocked(load))
	p.Queued = r.queuedLocked()
	return p
}

// queuedLocked returns the number of requests that wait or are computed.
func (r *Replica) queuedLocked() float64 {
	return float64(len(r.queue)) + (r.remote+r.foreignTokens)/max(r.usual, minTokens)
}

func duration(seconds float64) time.Duration {
	return time.Duration(min(seconds, longest) * float64(time.Second))
}

// decodesLocked returns how many of the requests at the replica generate: those that do not wait.
func (r *Replica) decodesLocked(load int) float64 {
	return max(float64(load-len(r.queue)), 0) + r.foreignRunning
}

// Waiting returns the uncached tokens of this gateway's requests that the replica has yet to
// compute.
func (r *Replica) Waiting(now time.Time) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advanceLocked(now)
	return r.waiting
}

// Queued returns the number of this gateway's requests that wait at the replica or are computed, as
// far as is known.
func (r *Replica) Queued(now time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advanceLocked(now)
	return len(r.queue)
}

// Pending returns the uncached tokens of this gateway's requests that have no known first token.
func (r *Replica) Pending() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending
}

// SetRemote sets the tokens that wait at the replica for another gateway's requests. 0 forgets the
// gateway.
func (r *Replica) SetRemote(now time.Time, gateway string, tokens float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.publishLocked()
	r.advanceLocked(now)
	if tokens > 0 {
		if r.gateways == nil {
			r.gateways = map[string]float64{}
		}
		r.gateways[gateway] = tokens
	} else {
		delete(r.gateways, gateway)
	}
	r.remote = 0
	for _, n := range r.gateways {
		r.remote += n
	}
}

// foreignFor is how long the word of an engine about work of others holds.
const foreignFor = 15 * time.Second

// SetForeign sets the work that no gateway has sent to the replica: tokens that wait, and requests
// that run. It is forgotten after 15 s.
func (r *Replica) SetForeign(now time.Time, tokens, running float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.publishLocked()
	r.foreignTokens, r.foreignRunning, r.foreignAt = max(tokens, 0), max(running, 0), now
}

// Foreign returns the waiting tokens that no gateway has sent.
func (r *Replica) Foreign() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.foreignTokens
}

// Work is one request at a replica, from Begin to End or Leave. The zero value is no request. One
// goroutine at a time may use it.
type Work struct {
	// Prediction is what was predicted when the request was given to the replica.
	Prediction
	// Uncached are the request's own tokens that the replica had to compute.
	Uncached float64

	replica *Replica
	began   time.Time
	decodes float64
	// mark is Replica.added after the request. ahead are the tokens before the request of which
	// it was not known whether they had been computed, others what waited for other gateways.
	mark, ahead, others float64
	// left says that the request is not in the queue any more, learned that its first token has
	// taught.
	left, learned bool
}

// Begin gives a request to the replica. The caller calls Leave or End when the request
// has ended.
func (r *Replica) Begin(now time.Time, load int, uncached float64) Work {
	uncached = max(uncached, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.publishLocked()
	r.advanceLocked(now)
	w := Work{Prediction: r.predictLocked(load, uncached), Uncached: uncached, replica: r, began: now}
	w.decodes, w.ahead, w.others = r.decodesLocked(load), r.pending, r.remote+r.foreignTokens
	r.decodes = w.decodes
	r.added += uncached
	w.mark = r.added
	r.queue = append(r.queue, r.added)
	r.usual = cmp.Or(r.usual, uncached)
	r.usual = uncached + memory*(r.usual-uncached)
	r.waiting += uncached
	r.pending += uncached
	r.unconfirmed++
	return w
}

// Outcome is what is known of a request that has ended.
type Outcome struct {
	// TTFT is how long the first token took, counted from Begin; 0 means not known.
	TTFT time.Duration
	// Uncached are the tokens that the replica really had to compute; negative means not known.
	Uncached float64
}

// FirstToken reports that the request has its first token now.
func (w *Work) FirstToken(now time.Time) {
	w.End(now, Outcome{TTFT: now.Sub(w.began), Uncached: w.Uncached})
}

// Leave reports that the request is no longer at the replica.
func (w *Work) Leave(now time.Time) {
	if w.replica == nil || w.left {
		return
	}
	w.replica.mu.Lock()
	defer w.replica.mu.Unlock()
	w.leaveLocked(now)
}

// leaveLocked removes the request from the queue. The lock is that of the replica.
func (w *Work) leaveLocked(now time.Time) {
	r := w.replica
	r.advanceLocked(now)
	if w.left {
		return
	}
	w.left = true
	r.pending = max(r.pending-w.Uncached, 0)
	if r.unconfirmed--; r.unconfirmed == 0 {
		r.pending = 0 // without the errors of the sums
	}
	r.waiting = min(r.waiting, r.pending)
	r.shortenLocked()
}

// End reports what is known of a request that has ended, also after Leave. The first token teaches
// once: after FirstToken or another End with a time nothing more is learned.
func (w *Work) End(now time.Time, o Outcome) {
	if w.replica == nil || w.learned {
		return
	}
	if o.TTFT <= 0 {
		w.Leave(now)
		return
	}
	w.learned = true
	s := w.observe(now, o)
	guess := w.replica.model.learn(s, now)
	r := w.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fit.learn(s, r.rates, now)
	r.rates, r.refreshed = r.fit.rates(guess, trustInModel), now
	r.publishLocked()
}

// observe corrects the queue by the first token of the request, and returns the sample that it is.
func (w *Work) observe(now time.Time, o Outcome) Sample {
	if o.Uncached < 0 {
		o.Uncached = w.Uncached
	}
	r := w.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	w.leaveLocked(now)
	first := firstToken{at: w.began.Add(o.TTFT), mark: w.mark}
	waited, doubt := r.waitedLocked(w)
	r.correctLocked(first, now)
	r.recent.add(first)
	r.shortenLocked()
	tokens := max(o.Uncached+waited, 1)
	return Sample{Tokens: tokens, Doubt: min(doubt/tokens, 1), Decodes: w.decodes, Seconds: o.TTFT.Seconds()}
}

// correctLocked corrects the queue after a first token. What the replica was given before that
// request was computed then, and since then no more than the rate allows.
func (r *Replica) correctLocked(f firstToken, now time.Time) {
	left := r.added - f.mark
	computed := now.Sub(f.at).Seconds() / r.rates.perToken(r.decodes)
	r.waiting = min(max(r.waiting, left-computed, 0), left, r.pending)
}

// waitedLocked returns the tokens that the request waited for, as far as is known after its first
// token, and how many of them are in doubt. What was predicted is corrected by the first tokens of
// other requests.
func (r *Replica) waitedLocked(w *Work) (waited, doubt float64) {
	before, least, most := w.mark-w.Uncached, 0.0, w.ahead
	guess, perToken := w.Waiting-w.others, r.rates.perToken(w.decodes)
	for _, f := range r.recent {
		switch ago := w.began.Sub(f.at).Seconds(); {
		case f.mark > before || f.mark == 0:
		case ago >= 0: // the other was computed when the request came
			most = min(most, before-f.mark)
		default: // the other was computed while the request waited
			least = max(least, before-f.mark)
			guess = min(guess, before-f.mark-ago/perToken)
		}
	}
	return max(min(guess, most), least) + w.others, max(most-least, 0) + w.others
}
