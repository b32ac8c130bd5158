package dispatch

import "time"

// The usual time to the first token (TTFT) is predicted as a straight line over the prompt tokens
// that the engine has to compute:
//
//	TTFT ≈ base + perToken × tokens × (usual share of a prompt that is not cached)
//
// Base and perToken are a least-squares fit over the responses so far, in which each response
// weighs 0.99 of the next one. Neither may be negative: if the best line falls or begins below 0,
// the best line without a negative value is used. If all prompts were about equally long, they
// determine no line; the time is then assumed to be proportional to the length. A time far above
// the line counts as 4 times the line plus one second. So one request that hung changes little, and
// a model that became slow is recognised after a few requests.

const (
	// minPairs is how many responses must be known before a time is predicted. minPairsForBound is
	// how many must be known before a long time is cut to the bound for outliers.
	minPairs, minPairsForBound = 3, 8
	// similarVariance is the variance of prompt lengths, as a share of the square of their mean,
	// below which the lengths count as equal. 0.04 is 20 % to either side.
	similarVariance = 0.04
	// longestTTFT bounds the times that are learned and the times that are predicted.
	longestTTFT = 10 * time.Minute
)

// prediction predicts the time to the first token of a model. The zero value has learned nothing.
type prediction struct {
	// pairs counts the pairs of tokens and seconds that were learned
	pairs uint64
	// n is the decayed number of pairs. The others are decayed sums over tokens (x) and seconds
	// (y).
	n, x, y, xx, xy float64
	// prompt and uncached are decayed sums of prompt tokens: all, and those not in the engine's
	// cache.
	prompt, uncached float64
}

// learn adds one observation: the engine computed so many tokens of a prompt in the time took.
func (p *prediction) learn(tokens float64, took time.Duration) {
	y := min(took, longestTTFT).Seconds()
	if p.pairs >= minPairsForBound {
		y = min(y, 4*p.line(tokens)+1)
	}
	p.pairs++
	p.n = p.n*memory + 1
	p.x = p.x*memory + tokens
	p.y = p.y*memory + y
	p.xx = p.xx*memory + tokens*tokens
	p.xy = p.xy*memory + tokens*y
}

// learnShare adds one observation of how many tokens of a prompt were not cached.
func (p *prediction) learnShare(prompt, uncached int64) {
	p.prompt = p.prompt*memory + float64(prompt)
	p.uncached = p.uncached*memory + float64(uncached)
}

// uncachedTokens returns how many tokens of a prompt are usually not cached.
func (p *prediction) uncachedTokens(prompt float64) float64 {
	if p.prompt <= 0 {
		return prompt
	}
	return prompt * p.uncached / p.prompt
}

// line returns the predicted seconds for so many computed tokens. The caller makes sure that there
// is at least one pair.
func (p *prediction) line(tokens float64) float64 {
	meanX, meanY := p.x/p.n, p.y/p.n
	spread := p.xx/p.n - meanX*meanX
	switch {
	case meanX < 1: // the prompts were all in the cache
		return meanY
	case spread < similarVariance*meanX*meanX:
		return meanY / meanX * tokens
	}
	perToken := max((p.xy/p.n-meanX*meanY)/spread, 0)
	base := meanY - perToken*meanX
	if base < 0 {
		base, perToken = 0, p.xy/p.xx
	}
	return base + perToken*tokens
}

// predict returns the usual time for a prompt of so many tokens. 0 means not known.
func (p *prediction) predict(prompt float64) time.Duration {
	if p.pairs < minPairs {
		return 0
	}
	return time.Duration(min(p.line(p.uncachedTokens(prompt)), longestTTFT.Seconds()) * float64(time.Second))
}

// firstToken returns the usual time to the first token of a prompt of so many bytes. 0 means not
// known.
func (l *estimator) firstToken(promptBytes int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttft.predict(l.promptLocked(promptBytes))
}

// learnTTFTLocked learns the time to the first token from a response.
func (l *estimator) learnTTFTLocked(r Response, q estimate) {
	if r.Known && r.Prompt > 0 {
		l.ttft.learnShare(r.Prompt, max(r.Prompt-r.Cached, 0))
	}
	switch {
	case r.TTFT <= 0:
	case r.Known && r.Prompt > 0:
		l.ttft.learn(float64(max(r.Prompt-r.Cached, 0)), r.TTFT)
	default:
		l.ttft.learn(l.ttft.uncachedTokens(float64(q.tokens.prompt)), r.TTFT)
	}
}
