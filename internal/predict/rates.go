package predict

import (
	"math"
	"time"
)

// Rates say how long an engine takes for a prompt. The zero value is an engine that takes no time.
//
// An engine computes the prompts of all its requests in turn, and gives each running request a
// token in between. So the time of a token of a prompt grows with the number of running requests:
//
//	time to the first token = Base + tokens × (Token + Decode × running requests)
type Rates struct {
	// Base is the time of a prompt without any token to compute, in seconds.
	Base float64
	// Token is the time of one uncached token, in seconds.
	Token float64
	// Decode is what each request that generates adds to the time of one uncached token, in
	// seconds.
	Decode float64
}

// DefaultRates are those of an engine of which nothing is known.
var DefaultRates = Rates{Base: 0.02, Token: 1.0 / 5000}

// PrefillRate returns the rates of an engine that computes so many tokens of prompts a second. 0
// and less stand for DefaultRates.
func PrefillRate(tokens float64) Rates {
	r := DefaultRates
	if tokens > 0 {
		r.Token = 1 / tokens
	}
	return r
}

// minToken is the least time of a token. It keeps the rate of an engine finite.
const minToken = 1e-7

// perToken returns the time of one token beside so many running requests.
func (r Rates) perToken(decodes float64) float64 { return max(r.Token+r.Decode*decodes, minToken) }

// seconds returns the time to the first token after so many uncached tokens.
func (r Rates) seconds(tokens, decodes float64) float64 {
	return r.Base + tokens*r.perToken(decodes)
}

// Sample is one observed first token.
type Sample struct {
	// Tokens are the uncached tokens that the engine had to compute: the request's own and those
	// that waited before it.
	Tokens float64
	// Decodes is the number of requests that were generating.
	Decodes float64
	// Seconds is how long the first token took.
	Seconds float64
	// Doubt is the share of Tokens that is a guess.
	Doubt float64
}

// weight is how much the sample counts.
func (s *Sample) weight() float64 {
	certain := max(1-s.Doubt, leastCertain)
	return certain * certain
}

const (
	// leastCertain is the share of a sample's tokens that always counts as certain.
	leastCertain = 0.05
	// trustInModel is the trust of a replica in what all replicas of its model have taught. With
	// less, replicas that are equal look different at first, and with more, one that is slower is
	// recognised late. The model itself trusts its guess once.
	trustInModel, trustInGuess = 4, 1
	// memory is the weight of earlier samples against a new one: about the last 100 decide.
	memory = 0.99
	// halfLife is the time after which the samples of a model weigh half, and replicaHalfLife that
	// of one replica. Without news the rates so return to the guess. The second is short, because a
	// replica that is believed to be slow gets no requests, and so could never show that it is not.
	halfLife        = 10 * time.Minute
	replicaHalfLife = time.Minute
	// The guess counts as three samples: of no tokens, of the usual number but at least minTokens,
	// and of that beside usualDecodes running requests.
	minTokens    = 256
	usualDecodes = 16
	// minSamplesForBound is the number of samples after which a long time is cut to the bound for
	// outliers: outlierFactor times what was expected, and outlierSlack more, in seconds.
	minSamplesForBound = 8
	outlierFactor      = 4
	outlierSlack       = 1
	// longest bounds the times that are learned, in seconds.
	longest = 600
	// precision is the time, in seconds, beside which a relative error counts less.
	precision = 0.05
)

// fit learns Rates from samples by decayed least squares of the relative error. The guess counts as
// a few samples more, so that the result is always defined. The zero value has learned nothing.
type fit struct {
	// xx and xy are the weighted sums of products of 1, tokens, and tokens × decodes, with each
	// other and with the seconds.
	xx [3][3]float64
	xy [3]float64
	// count, tokens and seconds are decayed sums over the samples. samples counts all.
	count, tokens, seconds float64
	samples                int
	// halfLife is the time after which samples weigh half; 0 means never.
	halfLife time.Duration
	// at is when the sums were last decayed.
	at time.Time
}

// learn adds a sample. current are the rates before it.
func (f *fit) learn(s Sample, current Rates, now time.Time) {
	f.decay(now)
	expected := current.seconds(s.Tokens, s.Decodes)
	y := min(max(s.Seconds, 0), longest)
	if f.samples >= minSamplesForBound {
		y = min(y, outlierFactor*expected+outlierSlack)
	}
	f.samples++
	weight := s.weight()
	f.scale(1 - (1-memory)*weight) // a doubtful sample must not push out a good one
	f.count, f.tokens, f.seconds = f.count+weight, f.tokens+weight*s.Tokens, f.seconds+weight*y
	f.add(s, y, max(y, expected), weight)
}

// decay lowers the weight of all samples with the time since the last call.
func (f *fit) decay(now time.Time) {
	if passed := now.Sub(f.at); !f.at.IsZero() && passed > time.Second && f.halfLife > 0 {
		f.scale(math.Exp2(-float64(passed) / float64(f.halfLife)))
	} else if !f.at.IsZero() {
		return
	}
	f.at = now
}

func (f *fit) scale(by float64) {
	for i := range f.xx {
		for j := range f.xx {
			f.xx[i][j] *= by
		}
		f.xy[i] *= by
	}
	f.count, f.tokens, f.seconds = f.count*by, f.tokens*by, f.seconds*by
}

// add adds a sample of y seconds to the sums. Its error counts relative to so many seconds.
func (f *fit) add(s Sample, y, relativeTo, weight float64) {
	weight /= (relativeTo + precision) * (relativeTo + precision)
	x := [3]float64{1, s.Tokens, s.Tokens * s.Decodes}
	for i := range x {
		for j := range x {
			f.xx[i][j] += weight * x[i] * x[j]
		}
		f.xy[i] += weight * x[i] * y
	}
}

// rates returns what was learned, beside the guess. Each of the samples that stand for the guess
// counts as often as trust says.
func (f *fit) rates(guess Rates, trust float64) Rates {
	g := *f
	tokens, seconds := float64(minTokens), 0.0
	if f.count > 0 {
		tokens, seconds = max(tokens, f.tokens/f.count), f.seconds/f.count
	}
	for _, s := range [...]Sample{{}, {Tokens: tokens}, {Tokens: tokens, Decodes: usualDecodes}} {
		y := guess.seconds(s.Tokens, s.Decodes)
		g.add(s, y, max(y, seconds), trust)
	}
	x := g.solve([3]bool{true, true, true})
	return Rates{Base: x[0], Token: max(x[1], 0), Decode: x[2]}
}

// solve returns the best values without a negative one. It leaves out the most negative one until
// there is none.
func (f *fit) solve(use [3]bool) [3]float64 {
	for {
		x := f.solveUsed(use)
		worst := -1
		for i, v := range x {
			if v < 0 && (worst < 0 || v*f.xx[i][i] < x[worst]*f.xx[worst][worst]) {
				worst = i
			}
		}
		if worst < 0 {
			return x
		}
		use[worst] = false
	}
}

// solveUsed solves the equations of the values that are used by elimination. The others are 0.
func (f *fit) solveUsed(use [3]bool) (x [3]float64) {
	a, b := f.xx, f.xy
	for i := range a {
		if !use[i] {
			a[i] = [3]float64{}
			a[i][i], b[i] = 1, 0
		}
	}
	for i := range a {
		for j := i + 1; j < len(a); j++ {
			if a[i][i] == 0 {
				continue
			}
			by := a[j][i] / a[i][i]
			for k := range a {
				a[j][k] -= by * a[i][k]
			}
			b[j] -= by * b[i]
		}
	}
	for i := len(a) - 1; i >= 0; i-- {
		sum := b[i]
		for k := i + 1; k < len(a); k++ {
			sum -= a[i][k] * x[k]
		}
		if a[i][i] > 0 {
			x[i] = sum / a[i][i]
		}
	}
	return x
}
