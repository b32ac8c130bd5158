package relay

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// noEvent is the number of the last event that a client has seen if it has seen none.
const noEvent = -1

// startOrJoin starts a generation for the call, or joins the one that already runs under its
// request id. pending may be nil; if started is false, the caller has to cancel it. after is the
// number of the last event that the client has seen: a client that wants to continue a stream
// starts none.
func (r *Relay) startOrJoin(c *Call, pending *dispatch.Pending, after int64) (g *generation, started bool, fault *openai.Error) {
	if r.ctx.Err() != nil {
		return nil, false, openai.Stopping()
	}
	if !c.isNamed() {
		g = r.newGeneration(c, pending)
		r.start(g)
		return g, true, nil
	}
	key, sum := c.key(), c.fingerprint()
	create := func() *generation { return r.newGeneration(c, pending) }
	g, started, err := r.named.Claim(key, sum, create)
	if err == nil && !started && after == noEvent && g.mayRestart() {
		r.named.Forget(key, g)
		g, started, err = r.named.Claim(key, sum, create)
	}
	switch {
	case errors.Is(err, replay.ErrConflict):
		return nil, false, &openai.Error{Code: openai.CodeRequestIDConflict, Param: "request_id",
			Message: "Another request with this request_id had another body."}
	case err != nil:
		return nil, false, openai.Errorf(openai.CodeQueueFull, "Too many requests with a request_id are running.")
	}
	if started && after != noEvent {
		r.named.Forget(key, g)
		g.cancel(errLeft)
		fault = notFoundFault()
	}
	if started {
		r.start(g) // a generation that was cancelled cancels its pending dispatch
	}
	return g, started, fault
}

// mayRestart reports whether a repeated start of the same request begins a new generation. It does
// if this one was left by its client, or has failed in a way that a second try may not.
func (g *generation) mayRestart() bool {
	if errors.Is(context.Cause(g.ctx), errLeft) {
		return true
	}
	select {
	case <-g.done:
	default:
		return false
	}
	if g.answer != nil {
		return (&openai.Error{Status: g.answer.Status}).Retryable()
	}
	return g.result.Fault != nil && g.result.Fault.Retryable()
}

// expire keeps a named generation that has ended for clients that come back, for Policy.Resume. A
// generation that its client has left for that long is forgotten at once, and so is every
// generation when the gateway stops.
func (g *generation) expire() {
	if g.moved {
		return // giveUpID has done it
	}
	r, key := g.relay, g.call.key()
	if g.forgotten.Load() {
		g.answer.release()
	}
	if g.policy.Resume == 0 || r.ctx.Err() != nil || errors.Is(context.Cause(g.ctx), errLeft) {
		r.named.Forget(key, g)
		r.releaseID(key, g)
		return
	}
	r.named.Expire(key, g, g.policy.Resume)
	if r.config.Peers != nil {
		time.AfterFunc(g.policy.Resume, func() { r.releaseID(key, g) })
	}
}

// giveUpID forgets a generation whose call the successor carries. It does so before the clients
// learn of it, who then start the call there.
func (g *generation) giveUpID() {
	if g.call.isNamed() {
		g.relay.named.Forget(g.call.key(), g)
		g.relay.releaseID(g.call.key(), g)
	}
}

// claimLease is how long a request id stays ours without renewal. Package peers renews it in time.
const claimLease = time.Minute

// claimID claims the call's request id among the gateways. mine is false when the gateway owner
// runs the request.
func (r *Relay) claimID(ctx context.Context, c *Call) (owner string, mine bool) {
	if !c.isNamed() || r.config.Peers == nil || r.isRetired() { // the successor claims it
		return "", true
	}
	if _, ok := r.named.Find(c.key()); ok {
		return "", true
	}
	owner, mine, _ = r.config.Peers.Claim(ctx, c.Tenant.Name, c.Scan.RequestID, claimLease) // on an error the id is ours
	if mine {
		r.config.Peers.Keep(c.Tenant.Name, c.Scan.RequestID)
	}
	return owner, mine
}

// releaseID releases a request id for all gateways, unless another generation than g has it now.
func (r *Relay) releaseID(key replay.Key, g *generation) {
	if r.config.Peers == nil {
		return
	}
	if current, ok := r.named.Find(key); ok && current != g {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r.config.Peers.Release(ctx, key.Tenant, key.ID)
}
