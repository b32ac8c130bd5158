package relay

import (
	"context"
	"net/http"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// Reasons for which a call is tried at another replica, as the metrics have them.
const (
	reasonConnect   = "connect"
	reasonReset     = "reset"
	reason5xx       = "5xx"
	reasonTTFT      = "ttft_timeout"
	reasonPreempted = "preempted"
)

// RoundTripper sends a request to a replica.
type RoundTripper interface {
	RoundTrip(*http.Request) (*http.Response, error)
}

// Peers are the other gateways that share their state with this one. A client's request id belongs to the gateway that runs it.
type Peers interface {
	// Claim makes the id ours unless another gateway has it, whose name it gives then.
	Claim(ctx context.Context, tenant, id string, ttl time.Duration) (owner string, mine bool, err error)
	// Find says which other gateway has the id.
	Find(ctx context.Context, tenant, id string) (owner string, ok bool, err error)
	// Keep holds an id that is ours until it is released.
	Keep(tenant, id string)
	// Release gives the id up.
	Release(ctx context.Context, tenant, id string)
	// Forward has the other gateway answer.
	Forward(w http.ResponseWriter, r *http.Request, owner string) *openai.Error
}

// Tracer follows calls.
type Tracer interface {
	// Begin begins the trace of a call; nil when it is not followed.
	Begin(c *Call) Trace
}

// Trace follows one call.
type Trace interface {
	// Queued: the call waits again.
	Queued()
	// Admitted: the call leaves for this replica, which works on so many requests with it.
	Admitted(model, replica string, batch int)
	// Traceparent is the header of that name for the engine.
	Traceparent() string
	// FirstToken has come.
	FirstToken()
	// Token is the n-th, from 0, read from the engine.
	Token(n int64)
	// Emitted is the m-th write to the client, from 0.
	Emitted(m int64)
	// End of the call.
	End(Result)
}
