package dispatch

import "time"

// The usual time to the first token is foreseen as a straight line over the prompt tokens that the
// engine has to compute:
//
//	TTFT ≈ base + perToken × tokens × (usual share of a prompt that is not cached)
//
// Base and perToken are the least squares over what responses told, each answer counting 0.99 of
// the next, and neither is negative: where the best line falls, or begins below 0, the best of
// those that do not is taken. Prompts that were all about as long tell no line; then the time is
// taken to grow with the length. A time far above what the line says counts as 4 times that and a
// second, so that one that hung does not change much, and a model that has become slow is known for
// it after a few.

const (
	// knownFrom is how many times must have been told before anything is foreseen, boundedFrom
	// before one is taken for an outlier.
	knownFrom, boundedFrom = 3, 8
	// alike are lengths whose variance is less than this share of the square of their mean: 20 % to
	// either side.
	alike = 0.04
	// longestTTFT bounds what is learned and what is foreseen.
	longestTTFT = 10 * time.Minute
)

// prediction is what is remembered for that. The zero value has learned nothing.
type prediction struct {
	// pairs of tokens and seconds that were ever told
	pairs uint64
	// n is their weight; the others are the sums of them.
	n, x, y, xx, xy float64
	// prompt and uncached are sums of tokens.
	prompt, uncached float64
}

// learn takes in the time of a prompt, of which so many tokens were computed.
func (p *prediction) learn(tokens float64, took time.Duration) {
	y := min(took, longestTTFT).Seconds()
	if p.pairs >= boundedFrom {
		y = min(y, 4*p.line(tokens)+1)
	}
	p.pairs++
	p.n = p.n*memory + 1
	p.x = p.x*memory + tokens
	p.y = p.y*memory + y
	p.xx = p.xx*memory + tokens*tokens
	p.xy = p.xy*memory + tokens*y
}

// share takes in how much of a prompt was computed.
func (p *prediction) share(prompt, uncached int64) {
	p.prompt = p.prompt*memory + float64(prompt)
	p.uncached = p.uncached*memory + float64(uncached)
}

// computed is how many of so many prompt tokens are usually not cached.
func (p *prediction) computed(prompt float64) float64 {
	if p.prompt <= 0 {
		return prompt
	}
	return prompt * p.uncached / p.prompt
}

// line is how long so many computed tokens take, in seconds. There must be something that was
// learned.
func (p *prediction) line(tokens float64) float64 {
	meanX, meanY := p.x/p.n, p.y/p.n
	spread := p.xx/p.n - meanX*meanX
	switch {
	case meanX < 1: // nothing was to be computed
		return meanY
	case spread < alike*meanX*meanX:
		return meanY / meanX * tokens
	}
	perToken := max((p.xy/p.n-meanX*meanY)/spread, 0)
	base := meanY - perToken*meanX
	if base < 0 {
		base, perToken = 0, p.xy/p.xx
	}
	return base + perToken*tokens
}

// of is the usual time for a prompt of so many tokens; 0: not known.
func (p *prediction) of(prompt float64) time.Duration {
	if p.pairs < knownFrom {
		return 0
	}
	return time.Duration(min(p.line(p.computed(prompt)), longestTTFT.Seconds()) * float64(time.Second))
}

// firstToken is the usual time to the first token of a prompt of so many bytes; 0: not known.
func (l *estimator) firstToken(promptBytes int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttft.of(l.promptLocked(promptBytes))
}

// learnTTFTLocked learns from a response when its first token came.
func (l *estimator) learnTTFTLocked(r Response, q estimate) {
	if r.Known && r.Prompt > 0 {
		l.ttft.share(r.Prompt, max(r.Prompt-r.Cached, 0))
	}
	switch {
	case r.TTFT <= 0:
	case r.Known && r.Prompt > 0:
		l.ttft.learn(float64(max(r.Prompt-r.Cached, 0)), r.TTFT)
	default:
		l.ttft.learn(l.ttft.computed(float64(q.tokens.prompt)), r.TTFT)
	}
}
