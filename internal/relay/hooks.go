package relay

import (
	"context"
	"net/http"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// Peers are the remote gateways that share state with this gateway. A client's request id belongs
// to the gateway that runs the request.
type Peers interface {
	// Claim makes the request id ours for ttl, unless a remote gateway has it. mine is false in
	// that case, and owner is the name of that gateway. After an error the id counts as ours.
	Claim(ctx context.Context, tenant, id string, ttl time.Duration) (owner string, mine bool, err error)
	// Find returns the remote gateway that has the request id.
	Find(ctx context.Context, tenant, id string) (owner string, ok bool, err error)
	// Keep renews a request id that is ours until Release.
	Keep(tenant, id string)
	// Release gives the request id up.
	Release(ctx context.Context, tenant, id string)
	// Forward has the remote gateway owner answer the request. The error is for the client; nil:
	// a response was written.
	Forward(w http.ResponseWriter, r *http.Request, owner string) *openai.Error
}

// Trace records one call.
type Trace interface {
	// Queued records that the call waits for a ticket again.
	Queued()
	// Admitted records that the call is sent to a replica. batch is the number of requests that the
	// replica works on, with this one.
	Admitted(model, replica string, batch int)
	// Traceparent returns the header of that name for the engine. Empty: none.
	Traceparent() string
	// FirstToken records that the first token has come.
	FirstToken()
	// Token records a later token. n counts the tokens from 0.
	Token(n int64)
	// Emitted records a write of events to the client. m counts the writes from 0.
	Emitted(m int64)
	// End ends the trace.
	End(Result)
}
