package request

import (
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Outcome is how a request has ended that the relay carried. What is not known is zero.
type Outcome struct {
	// Model by its own name, and Replica that answered or was tried last.
	Model, Replica string
	// Fault is what the client is to be told; nil when all went well. Told says that the engine has
	// told it itself, in an event that the client has had.
	Fault *openai.Error
	Told  bool
	// Finish is the finish_reason that came last.
	Finish string
	// Cause says why a stream that had begun ended before its end: CauseClient and so on; empty
	// when it did not.
	Cause string
	// TTFT is from the receipt of the request to the first token. Held is the part of it before the
	// request left for a replica. Decode is from the first token to the last. 0: there was none.
	TTFT, Held, Decode time.Duration
	// Usage is what the response has cost. It is zero for a request that joined another one's
	// generation: tokens are counted once. UsedElsewhere says that it is not counted for this
	// request: another process counts it, or the generation does at its end.
	Usage         Usage
	UsedElsewhere bool
	// Late is Cost.Late.
	Late *LateUsage
	// Attempts is how many replicas were tried.
	Attempts int
	// Answered says that bytes of an engine reached the client.
	Answered bool
}

// Code is the code of the error that the client was told, before its stream or in it; empty: none.
func (o *Outcome) Code() string {
	if o.Fault == nil {
		return ""
	}
	return string(o.Fault.Code)
}

// status is what the HTTP status of the response would be if the request had a response of its own.
// It is that of its error, unless that came after tokens. It is 0 if its client has left.
func (o *Outcome) status() int {
	switch {
	case o.Cause == CauseClient || o.Fault == nil && !o.Answered:
		return 0
	case o.Answered:
		return 200
	}
	return o.Fault.HTTPStatus()
}

// outcome returns the Outcome of a managed request of which another process has told.
func (q *Summary) outcome() *Outcome {
	o := &Outcome{Model: q.Model, Replica: q.Replica, Finish: q.FinishReason, Cause: q.Cause, TTFT: q.FirstByte, Held: q.Waited, Decode: q.Decode,
		Usage: q.Usage(), UsedElsewhere: q.UsedApart, Attempts: q.Attempts, Answered: q.Source == headers.SourceEngine}
	if q.Code != "" {
		o.Fault = &openai.Error{Code: openai.Code(q.Code)}
	}
	return o
}

// abandoned reports whether the client left or the time was over when a replica was at work and had
// not begun to answer.
func (o *Outcome) abandoned() bool {
	return !o.Answered && o.Attempts > 0 && (o.Cause == CauseClient || o.Cause == CauseTimeout || o.Cause == CauseCancelled)
}

// Estimate fills in the tokens of a response that no engine has counted, or only in part. A
// response that has failed has used none.
func (o *Outcome) Estimate(c Cost) {
	o.Late = c.Late
	if c.Doubted {
		o.Usage = c.Usage
		return
	}
	o.Usage.Known = o.Usage.Known && !c.Partial
	if o.Usage.Known || !o.Answered && !o.abandoned() {
		return
	}
	o.Usage.Prompt = max(o.Usage.Prompt, c.Usage.Prompt)
	o.Usage.Completion = max(o.Usage.Completion, c.Usage.Completion)
}

// usage is Usage as it is counted. An engine that told the relay its counts told the cached tokens
// too, unless they are more than the prompt: see UsageOf.
func (o *Outcome) usage() Usage {
	u := o.Usage
	u.CachedKnown = u.CachedKnown || u.Known
	if u.Cached > u.Prompt {
		u.Cached, u.CachedKnown = 0, false
	}
	return u
}

// Usage is what a response has cost, in tokens.
type Usage struct {
	// Prompt and Completion count tokens. A response without a completion, an embedding say, has 0
	// of those.
	Prompt, Completion int64
	// Known says that the engine told the counts and that its response was read for them to the
	// end. Else Completion counts the events that had something of the answer, or is an estimate;
	// and Prompt is an estimate, or 0.
	Known bool
	// OnlyTotal says that the engine told the total alone, which is in Prompt. The counts are true
	// of an endpoint without output.
	OnlyTotal bool
	// Cached counts those of Prompt that the engine had in its cache; 0 unless CachedKnown, because
	// not every engine says.
	Cached      int64
	CachedKnown bool
}

// MaxTokens is more than any response can have; a greater count of an engine is ignored.
const MaxTokens = 1 << 40

// TotalUsage returns the usage of an engine that has told the total alone. It is the zero value if
// that cannot be true.
func TotalUsage(total int64) Usage {
	u := UsageOf(total, 0, -1)
	u.OnlyTotal = u.Known
	return u
}

// UsageOf returns the usage that an engine has told. It is the zero value if a count cannot be
// true. cached is not known if it is negative, or if it is more than prompt.
func UsageOf(prompt, completion, cached int64) Usage {
	if prompt < 0 || completion < 0 || prompt > MaxTokens || completion > MaxTokens {
		return Usage{}
	}
	u := Usage{Prompt: prompt, Completion: completion, Known: true}
	if cached >= 0 && cached <= prompt {
		u.Cached, u.CachedKnown = cached, true
	}
	return u
}
