package dispatch

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-gateway/sluice/internal/request"
)

// Until a model has taught better ones, tokens are estimated from these. A streamed token costs its
// whole event.
const (
	bytesPerPromptToken = 4
	bytesPerToken       = 4
	bytesPerEvent       = 180
	expectedOutput      = 256
)

// What is learned counts this much against what was known before: the last 100 requests or so
// decide.
const memory = 0.99

// initialWeight is how many tokens' worth the initial ratio counts.
const initialWeight = 1000

// ratio is bytes per token, learned from pairs of both. The zero value has learned nothing.
type ratio struct{ bytes, tokens float64 }

// of returns the ratio, where initial counts like initialWeight tokens.
func (r ratio) of(initial float64) float64 {
	return (r.bytes + initial*initialWeight) / (r.tokens + initialWeight)
}

func (r *ratio) learn(bytes, tokens int64) {
	r.bytes = r.bytes*memory + float64(bytes)
	r.tokens = r.tokens*memory + float64(tokens)
}

// maxTenants bounds the tenants whose outputs are remembered apart, for each model.
const maxTenants = 1024

// estimator estimates what requests for one model will cost, from what earlier ones have cost. The
// zero value has learned nothing.
type estimator struct {
	// asked counts requests, to look closely at some of them.
	asked atomic.Uint64

	mu sync.Mutex
	// prompt, plain and events say how many bytes of a request's text, of a response, and of a
	// streamed response are a token; guarded by mu
	prompt, plain, events ratio
	// output is the usual number of tokens of an answer, outputs that to one tenant; guarded by mu
	output  average
	outputs map[string]*average
	// ttft foresees the time to the first token; guarded by mu
	ttft prediction
	// prefixIndex has a lock of its own.
	prefixIndex prefixIndex
}

// average forgets slowly. The zero value has seen nothing.
type average struct{ sum, weight float64 }

func (a *average) add(v float64) { a.sum, a.weight = a.sum*memory+v, a.weight*memory+1 }

// of is the average, with so much weight for what to expect before.
func (a *average) of(before float64) float64 {
	const patience = 4
	return (a.sum + before*patience) / (a.weight + patience)
}

// tokenCount is what a request will probably cost.
type tokenCount struct{ prompt, output int }

func (e tokenCount) total() int { return e.prompt + e.output }

// estimate is the estimate of one request, with what is needed to learn from its response.
type estimate struct {
	tenant               string
	promptBytes, choices int
	tokens               tokenCount
}

// estimate estimates the tokens of a request: its text by the model's usual bytes per token, its
// answer by what this tenant's answers usually cost, at most what the client allows.
func (l *estimator) estimate(r *Request) estimate {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := estimate{tenant: r.Tenant, promptBytes: r.PromptBytes, choices: max(r.Choices, 1)}
	q.tokens.prompt = int(l.promptLocked(r.PromptBytes) + 0.5)
	if r.NoOutput {
		return q
	}
	usual := l.output.of(expectedOutput)
	if own := l.outputs[r.Tenant]; own != nil {
		usual = own.of(usual)
	}
	q.tokens.output = max(int(usual*float64(q.choices)+0.5), 1)
	if most := r.MaxTokens * q.choices; most > 0 {
		q.tokens.output = min(q.tokens.output, most)
	}
	return q
}

// promptLocked is how many tokens so many bytes of text are.
func (l *estimator) promptLocked(bytes int) float64 {
	return float64(bytes) / l.prompt.of(bytesPerPromptToken)
}

// Response is what is known of a response that has ended.
type Response = request.Response

// settle returns what a request has cost in the end, by the engine's own count or else by the bytes
// that came, and learns from it.
func (l *estimator) settle(r Response, q estimate) int {
	switch {
	case r.Failed && !r.Known:
		return 0
	case q.tokens.output == 0 && !r.Known:
		return q.tokens.prompt
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.learnTTFTLocked(r, q)
	if !r.Known {
		r.Prompt, r.Completion = int64(q.tokens.prompt), int64(float64(r.Bytes)/l.bytesLocked(r.Stream)+0.5)
	} else {
		l.learnLocked(r, q)
	}
	if r.Completion > 0 {
		each := float64(r.Completion) / float64(q.choices)
		l.output.add(each)
		l.ofLocked(q.tenant).add(each)
	}
	return int(r.Prompt + r.Completion)
}

// bytesLocked is what one token of a response takes.
func (l *estimator) bytesLocked(stream bool) float64 {
	if stream {
		return l.events.of(bytesPerEvent)
	}
	return l.plain.of(bytesPerToken)
}

func (l *estimator) learnLocked(r Response, q estimate) {
	if r.Prompt > 0 && q.promptBytes > 0 {
		l.prompt.learn(int64(q.promptBytes), r.Prompt)
	}
	if r.Completion > 0 && r.Stream {
		l.events.learn(r.Bytes, r.Completion)
	} else if r.Completion > 0 {
		l.plain.learn(r.Bytes, r.Completion)
	}
}

// ofLocked returns the average output for one tenant. Beyond maxTenants an arbitrary tenant's is
// dropped.
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
