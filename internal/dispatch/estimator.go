package dispatch

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-gateway/sluice/internal/predict"
	"github.com/sluice-gateway/sluice/internal/prefix"
	"github.com/sluice-gateway/sluice/internal/request"
)

// These defaults estimate tokens until the model's responses have taught better ratios. A streamed
// token takes one whole event.
const (
	bytesPerPromptToken = 4
	bytesPerToken       = 4
	bytesPerEvent       = 180
	expectedOutput      = 256
	// tokensPerMedia is what an image, a sound or a file is taken for.
	tokensPerMedia = 512
)

// memory is the weight of earlier observations against a new one: about the last 100 requests
// decide.
const memory = 0.99

// initialWeight is the weight of the default ratio, in tokens.
const initialWeight = 1000

// ratio is a learned number of bytes per token. The zero value has learned nothing.
type ratio struct{ bytes, tokens float64 }

// of returns the ratio, in which the default initial weighs initialWeight tokens.
func (r ratio) of(initial float64) float64 {
	return (r.bytes + initial*initialWeight) / (r.tokens + initialWeight)
}

func (r *ratio) learn(bytes, tokens int64) {
	r.bytes = r.bytes*memory + float64(bytes)
	r.tokens = r.tokens*memory + float64(tokens)
}

// maxSkew bounds how far one response may move a ratio from its default, up or down. Otherwise a
// client could make its own requests, or those of others, seem to cost what it likes. Runs of
// spaces in prompts would do it, or probabilities beside each streamed token.
const maxSkew = 4

// learnBounded is learn with a number of bytes that is plausible for the tokens.
func (r *ratio) learnBounded(bytes, tokens int64, initial int64) {
	r.learn(min(max(bytes, tokens*initial/maxSkew), tokens*initial*maxSkew), tokens)
}

// maxTenants bounds the tenants whose outputs are learned separately, for each model.
const maxTenants = 1024

// estimator estimates the tokens of requests for one model from the usage of earlier requests. The
// zero value has learned nothing.
type estimator struct {
	// admitted counts the granted requests. asked counts those of them that nothing but the
	// interval asks to measure. One in measureEvery is measured.
	admitted, asked atomic.Uint64
	// sampler says which responses Envoy reads.
	sampler sampler
	// refused counts the requests that were refused because no replica was ready and none of them
	// waits.
	refused atomic.Uint64
	// loadTime is how long a replica took lately from its start until it was ready, in nanoseconds;
	// 0 means that it is not known.
	loadTime atomic.Int64

	mu sync.Mutex
	// prompt, plain and events are the bytes per token of a request's text, of a plain response,
	// and of a streamed response; guarded by mu
	prompt, plain, events ratio
	// output is the average number of tokens of one answer, outputs the same per tenant; guarded by
	// mu
	output  average
	outputs map[string]*average
	// ttft predicts the time to the first token; guarded by mu
	ttft prediction
	// recent has the predictions of recent picks. It has a lock of its own.
	recent predict.Recent
	// sessions and index say which replica has served a session and has the beginning of a prompt,
	// rates how fast replicas are. Each has a lock of its own. index and rates are never nil.
	sessions sessionTable
	index    *prefix.Index
	rates    *predict.Model
	// hot has the beginnings that requests wait for. It has a lock of its own.
	hot predict.Hot
	// toldRate is the rate that an engine has told; 0: none has. Guarded by Dispatcher.mu.
	toldRate float64
	// slots are the replicas in the index, by id; guarded by Dispatcher.mu
	slots map[string]*indexSlot
	// reportsCached says that the engine has told of cached tokens. Until then 0 means nothing.
	reportsCached atomic.Bool
}

// average is an average that decays with each new value. The zero value has no values.
type average struct{ sum, weight float64 }

func (a *average) add(v float64) { a.sum, a.weight = a.sum*memory+v, a.weight*memory+1 }

// of returns the average, in which the expected value before weighs like four values.
func (a *average) of(before float64) float64 {
	const weight = 4
	return (a.sum + before*weight) / (a.weight + weight)
}

// tokenCount is the estimated number of tokens of a request.
type tokenCount struct{ prompt, output int }

func (e tokenCount) total() int { return e.prompt + e.output }

// estimate is the estimate of one request, with the fields that correct needs to learn from the
// response.
type estimate struct {
	tenant               string
	promptBytes, choices int
	tokens               tokenCount
	// maxOutput is the client's bound on the output, in tokens; 0 means none.
	maxOutput int
	// mostPrompt is the greatest prompt that an engine can make of the request, in tokens.
	mostPrompt int64
	// fixed says that the estimate stands unless the engine reports its usage, and teaches nothing:
	// the bytes of the answer are no text.
	fixed bool
	// background says that the output is at least the estimate unless the engine reports its usage,
	// because the answer may come before the response. Without a usage it teaches nothing.
	background bool
}

// guessed returns how many tokens of the estimate are a guess of the answer.
func (q *estimate) guessed() int {
	if q.fixed {
		return 0
	}
	return q.tokens.output
}

// estimate estimates the tokens of a request. The prompt follows from its bytes and the model's
// bytes per token. The output is the tenant's average output, at most what the client allows.
func (l *estimator) estimate(r *Request) estimate {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := estimate{tenant: r.Tenant, promptBytes: r.PromptBytes, choices: max(r.Choices, 1), fixed: r.Free || r.MediaOutput > 0,
		background: r.Background, mostPrompt: mostPrompt(r)}
	if r.Free {
		return q
	}
	q.tokens.prompt = int(l.promptLocked(r.PromptBytes)+0.5) + r.MediaParts*tokensPerMedia
	if r.MediaParts > 0 {
		q.promptBytes = 0 // the prompt teaches nothing about text
	}
	if r.NoOutput {
		return q
	}
	if r.MediaOutput > 0 {
		q.tokens.output = r.MediaOutput
		return q
	}
	usual := l.output.of(expectedOutput)
	if own := l.outputs[r.Tenant]; own != nil {
		usual = own.of(usual)
	}
	q.tokens.output = max(int(usual*float64(q.choices)+0.5), 1)
	if q.maxOutput = r.MaxTokens * q.choices; q.maxOutput > 0 {
		q.tokens.output = min(q.tokens.output, q.maxOutput)
	}
	return q
}

// promptLocked returns the estimated tokens of so many bytes of text.
func (l *estimator) promptLocked(bytes int) float64 {
	return float64(bytes) / l.prompt.of(bytesPerPromptToken)
}

// Response is what is known of a response that has ended.
type Response = request.Response

// maxLearned is the longest answer, in tokens, that teaches how long answers are. One count of an
// engine beyond it would be the guess for a hundred requests.
const maxLearned = 1 << 18

// plausible returns r without a token count that cannot be true: one below zero, one beyond
// request.MaxTokens, or one of no tokens at all.
func plausible(r Response) Response {
	if r.Prompt < 0 || r.Completion < 0 || r.Prompt > request.MaxTokens || r.Completion > request.MaxTokens || r.Prompt+r.Completion == 0 {
		r.Known, r.Prompt, r.Completion = false, 0, 0
	}
	return r
}

// correct returns the real number of tokens of a request and learns from its response.
func (l *estimator) correct(r Response, q estimate) int {
	r = plausible(r)
	cost := l.cost(r, q)
	if q.fixed || !r.Known && (r.Failed || q.background || q.tokens.output == 0) {
		return cost
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.learnTTFTLocked(r, q)
	completion := r.Completion
	switch {
	case r.Known:
		l.learnLocked(r, q)
	case r.Completion > 0:
		l.learnOutputLocked(r)
	default:
		completion = int64(cost - q.tokens.prompt)
	}
	if completion > 0 {
		l.learnLengthLocked(completion, &q)
	}
	return cost
}

// learnLengthLocked learns how long the answers of a response were, in tokens.
func (l *estimator) learnLengthLocked(completion int64, q *estimate) {
	each := min(float64(completion)/float64(q.choices), maxLearned)
	l.output.add(each)
	l.ofLocked(q.tenant).add(each)
}

// cost returns the real number of tokens of a request. The engine's count decides; without one, the
// counted events of the response, or else its bytes. Of a response that nobody waited for to begin,
// the estimate stands, because the engine has worked for it. Any other failed response without a
// count costs nothing.
func (l *estimator) cost(r Response, q estimate) int {
	r = plausible(r)
	switch {
	case r.Known:
		return int(r.Prompt + r.Completion)
	case r.Abandoned:
		return q.tokens.total()
	case r.Failed:
		return 0
	case q.tokens.output == 0, q.fixed:
		return q.tokens.total()
	}
	return q.tokens.prompt + l.outputOf(r, q)
}

// outputOf returns the tokens of a response that no engine has counted: its counted events, or else
// what its bytes suggest, up to the client's bound. Of a response in the background it is at least
// the estimate.
func (l *estimator) outputOf(r Response, q estimate) int {
	if q.background {
		return max(q.tokens.output, int(r.Completion))
	}
	if r.Completion > 0 {
		return int(r.Completion)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	output := int(float64(r.Bytes)/l.bytesLocked(r.Stream) + 0.5)
	if q.maxOutput > 0 {
		output = min(output, q.maxOutput)
	}
	return output
}

// lengthShare is the share of the client's bound that an estimated output must reach to count as
// cut off by the bound.
const lengthShare = 0.95

// costOf returns what a response has cost, for operators and for the ledger. A response that nobody
// waited for to begin has cost its prompt. Any other failed response has cost nothing.
func (l *estimator) costOf(r Response, q estimate) (c request.Cost) {
	r = plausible(r)
	c.Usage = request.Usage{Prompt: r.Prompt, Completion: r.Completion, Cached: r.Cached, Known: r.Known}
	if !r.Known {
		c.Usage = l.usageOf(r, q)
	}
	if q.tokens.output > 0 && !q.fixed && !r.Failed && (r.Known || !q.background) {
		c.Finish = "stop"
		if bound := float64(q.maxOutput); bound > 0 && float64(c.Usage.Completion) >= lengthShare*bound {
			c.Finish = "length"
		}
	}
	return c
}

// usageOf estimates what a response has used that no engine has counted.
func (l *estimator) usageOf(r Response, q estimate) (u request.Usage) {
	if r.Failed && !r.Abandoned {
		return u
	}
	u.Prompt = int64(q.tokens.prompt)
	switch {
	case r.Failed || q.tokens.output == 0:
	case q.fixed:
		u.Completion = int64(q.tokens.output)
	default:
		u.Completion = int64(l.outputOf(r, q))
	}
	return u
}

// bytesLocked returns the bytes per token of a response.
func (l *estimator) bytesLocked(stream bool) float64 {
	if stream {
		return l.events.of(bytesPerEvent)
	}
	return l.plain.of(bytesPerToken)
}

// learnLocked updates the bytes per token from a response whose usage is known.
func (l *estimator) learnLocked(r Response, q estimate) {
	if r.Prompt > 0 && q.promptBytes > 0 {
		l.prompt.learnBounded(int64(q.promptBytes), r.Prompt, bytesPerPromptToken)
	}
	l.learnOutputLocked(r)
}

// learnOutputLocked updates the bytes per token from a response whose output was counted.
func (l *estimator) learnOutputLocked(r Response) {
	if r.Completion > 0 && r.Stream {
		l.events.learnBounded(r.Bytes, r.Completion, bytesPerEvent)
	} else if r.Completion > 0 {
		l.plain.learn(r.Bytes, r.Completion)
	}
}

// ofLocked returns the average output for one tenant. If there are maxTenants, it first drops an
// arbitrary one.
func (l *estimator) ofLocked(tenant string) *average {
	if own := l.outputs[tenant]; own != nil {
		return own
	}
	if l.outputs == nil {
		l.outputs = map[string]*average{}
	}
	for name := range l.outputs {
		if len(l.outputs) < maxTenants {
			break
		}
		delete(l.outputs, name)
	}
	own := new(average)
	l.outputs[tenant] = own
	return own
}
