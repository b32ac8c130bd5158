// Package relay carries what Envoy alone cannot: managed streams. Envoy brings a request to the relay, which admits it through
// internal/dispatch as any other, calls the replica, reads every event that comes back, and hands them on. So it can say something while
// the client would hear nothing, end a stream as the client asked for, try another replica until the first token, keep the last
// events for a client that comes back, merge tokens for a client that reads slowly, and stop what a rule forbids.
//
// A Call is one generation, whichever protocol asked for it; a Sink is who hears of it: an HTTP response here, a WebSocket in
// internal/relay/realtime, a gRPC stream in internal/relay/grpcapi. Between the two stands a fan (internal/relay/replay): who has read an
// event writes it to a client that takes it at once, and puts it into a queue for one that does not, so that neither waits for the other longer
// than a queue is long.
package relay

import (
	"net/http"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Call is one generation that somebody asks for. It is not changed once it is given to the relay.
type Call struct {
	// RequestID is Envoy's own id of the request, for the log. The client's is Scan.RequestID.
	RequestID string
	Tenant    *authz.Tenant
	Priority  admission.Priority
	// Path is the path that the engine is asked at, with its query: "/v1/chat/completions".
	Path string
	// Header is what of the client's headers the engine gets.
	Header http.Header
	// Body is the request's body as the client sent it, and Scan what was read of it.
	Body []byte
	Scan openai.Request
	// Task is the task of the client's that the request belongs to; empty: none.
	Task string
	// Received is when the request came: its timeouts count from there.
	Received time.Time
	// Patient says that a consumer who takes no events holds the engine up, after the queue's soft limit, where another one would have its
	// events merged and be given up. It is for protocols in which the client says how much it wants.
	Patient bool
	// Foreseen says that the client will have to wait, so that it is told at once.
	Foreseen bool
	// EmptyChunks says that heartbeats are to be chunks without content, for a client that cannot read comments.
	EmptyChunks bool
	// Turn says that the call is one of several on a connection, and has no request of its own at Envoy.
	Turn bool
	// Entry is told what becomes of the call; nil: nobody is.
	Entry Entry
}

// Entry follows one call in the journal.
type Entry = request.Follower

// Sink hears of one call. Its methods are called one after the other. An error means that nobody is there any more: nothing else
// follows, and the call ends.
type Sink interface {
	// Answer is a whole answer that is no stream: what the engine said to a request for none, or its refusal. Only End follows.
	Answer(*Answer) error
	// Event is the next event of the stream, whole, in the form of server-sent events with its blank line; several that
	// waited may have been merged into one. number is its number from 0, of merged ones the last. The bytes hold until it returns.
	Event(raw []byte, number uint64) error
	// Flush says that nothing else is there at the moment.
	Flush() error
	// Silence says that nothing has come for the interval of heartbeats, or that a wait is foreseen, and what is waited for.
	Silence(Progress) error
	// End is the last call. Its fault is nil when the stream, or the answer, was whole.
	End(Result) error
}

// Answer is an HTTP response of an engine.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Phase is what a call waits for.
type Phase string

// The phases of a call, in their order.
const (
	// Queued: for its turn.
	Queued Phase = "queued"
	// Starting: for a replica that is being started.
	Starting Phase = "starting"
	// Prefill: for the first token.
	Prefill Phase = "prefill"
	// Decode: for the next token.
	Decode Phase = "decode"
)

// Progress is what a call waits for, in words for its client.
type Progress struct {
	Phase Phase
	// Position in the queue, from 1; 0: not known.
	Position int
	// Waited is how long the call has taken so far.
	Waited time.Duration
	// Note is what the replica that starts has said last; empty: nothing. It never holds a line break.
	Note string
}

// Result is how a call ended.
type Result = request.Outcome

// Usage is what a call has cost, in tokens.
type Usage = request.Usage
