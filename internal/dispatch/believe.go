package dispatch

import (
	"time"

	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/steady"
)

// An engine with a fault may tell any number of tokens. A number that cannot be true is not
// charged: it would keep the tenant waiting for an hour, or use up its budget. The bounds are so
// wide that no engine exceeds them that counts.

const (
	// addedPrompt bounds the tokens that an engine adds to the text of a prompt, by its template
	// and by tools of its own. It also bounds those of an image, a sound or a file. addedHistory
	// bounds those of the conversation that a request continues, and those of the turns in which an
	// engine calls tools itself. The prompt of such a request is then the sum of the prompts of all
	// turns.
	addedPrompt  = 1 << 20
	addedHistory = 1 << 23
	// firstCompletion and completionRate bound the tokens of one answer: those that may come at
	// once, and those of each second.
	firstCompletion = 1 << 17
	completionRate  = 1 << 16
	// mostAnswers is how many answers a request may have of which nobody knows the number.
	mostAnswers = 128
)

// mostPrompt returns the greatest prompt that an engine can make of a request, in tokens. No token
// is shorter than a byte. A request for scores has its query read with each of its texts.
func mostPrompt(r *Request) int64 {
	bytes := int64(max(r.PromptBytes, 0))
	if r.NoOutput {
		bytes = min(bytes+1024, 1<<20)
		bytes *= bytes
	}
	most := bytes + int64(1+max(r.MediaParts, 0))*addedPrompt
	if r.Previous != "" || r.Endpoint.OfResponses() || r.Endpoint.OfMessages() {
		most += addedHistory
	}
	return min(most*int64(max(r.Choices, 1)), request.MaxTokens)
}

// believes reports whether the usage that the engine has told of a response can be true, after the
// replica was at work on it for so long. A usage that nobody has told is believed.
func (q *estimate) believes(r Response, took time.Duration) bool {
	if !r.Known {
		return true
	}
	each := int64(firstCompletion + completionRate*max(took, 0).Seconds())
	return r.Prompt <= q.mostPrompt && r.Completion <= each*int64(max(q.choices, 1))
}

// believed returns what is known of a response without a usage that cannot be true, and whether the
// engine has told such a usage.
func (q *estimate) believed(r Response, took time.Duration) (_ Response, doubted bool) {
	if q.believes(r, took) {
		return r, false
	}
	return untold(r), true
}

// untold returns what is known of a response without the usage that its engine has told.
func untold(r Response) Response {
	r.Known, r.Prompt, r.Completion, r.Cached = false, 0, 0, 0
	return r
}

// doubtInterval is the time after which Config.Doubted is called again for a replica.
const doubtInterval = time.Minute

// doubt tells Config.Doubted of a usage that cannot be true.
func (d *Dispatcher) doubt(model string, at *replica, r Response, now time.Time) {
	last, nanos := at.doubtedAt.Load(), steady.Nanos(now)
	if last != 0 && nanos-last < int64(doubtInterval) || !at.doubtedAt.CompareAndSwap(last, nanos) {
		return
	}
	d.config.Doubted(model, at.id, r.Prompt, r.Completion)
}
