package request

import (
	"time"

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
	// TTFT is from the receipt of the request to the first token, Held the part of it before the
	// request left for a replica, Decode from the first token to the last. 0: there was none.
	TTFT, Held, Decode time.Duration
	// Usage is what the response has cost. It is zero for a request that joined another one's
	// generation: tokens are counted once.
	Usage Usage
	// Attempts is how many replicas were tried.
	Attempts int
	// Answered says that bytes of an engine reached the client.
	Answered bool
}

// Usage is what a response has cost, in tokens.
type Usage struct {
	// Prompt and Completion count tokens. A response without a completion, an embedding say, has 0
	// of those.
	Prompt, Completion int64
	// Cached counts those of Prompt that the engine had in its cache.
	Cached int64
	// Known says that the engine has told the counts. Else Completion counts the events of a
	// managed stream that had something of the answer, and the others are 0.
	Known bool
}
