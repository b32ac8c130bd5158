package relay

import (
	"context"
	"net/http"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// Forwarder has another gateway, or another process of this gateway, answer a request. The error is
// for the client; nil: a response was written.
type Forwarder func(w http.ResponseWriter, r *http.Request) *openai.Error

// Retire gives the calls that wait for a replica, and all later ones, to the process that has
// replaced this one. Its [Relay.PeerHandler] answers to. Streams that have begun go on here. Call
// Retire before dispatch.Dispatcher.Retire, which ends the waits of this process.
func (r *Relay) Retire(to Forwarder) { r.successor.Store(&to) }

func (r *Relay) isRetired() bool { return r.successor.Load() != nil }

// Carries reports whether the relay carries a call.
func (r *Relay) Carries() bool { return r.carrying.Load() > 0 }

// Keeps reports whether the relay keeps a call that a client may resume.
func (r *Relay) Keeps() bool { return r.named.Len() > 0 }

// Owns reports whether a call of the tenant with this request id is carried or kept here.
func (r *Relay) Owns(tenant, id string) bool {
	_, ok := r.named.Find(replay.Key{Tenant: tenant, ID: id})
	return ok
}

// forwardMoved has the successor carry the call of a generation that has waited here in vain, for
// one of its clients. c is that client's own call. trace is the generation's if that client has
// started it, else nil: the trace ends with the outcome at the successor.
func (r *Relay) forwardMoved(ctx context.Context, c *Call, g *generation, trace Trace, sink Sink) {
	call := *g.call
	call.Entry = c.Entry
	r.forwardCall(ctx, &call, remote{forward: *r.successor.Load(), trace: trace}, sink)
}

// isElsewhere has the other process of this gateway answer a request that Envoy has sent to the
// wrong one. It returns false if there is no such process.
func (r *Relay) isElsewhere(w http.ResponseWriter, req *http.Request) bool {
	return r.config.Elsewhere != nil && r.config.Elsewhere(r.timed(w), req)
}
