package relay

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// generation is one call at work: it waits for its turn, has a replica answer, and gives what comes to a fan. One goroutine does that; those
// who listen have their own.
type generation struct {
	relay *Relay
	// call is the generation's own copy, whose body and headers go when no replica can need them again. Only the goroutine that does the
	// work looks at those.
	call      *Call
	broadcast *replay.Broadcast
	policy    Policy
	// asked is what dispatch is asked each time; pending is a dispatch that had begun before.
	asked   dispatch.Request
	pending *dispatch.Pending
	// tried is how many replicas were
	tried int

	// ctx ends with the call; its cause says why.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// answered is closed when there is an answer that is no stream.
	answered chan struct{}
	answer   *Answer
	// done is closed when all is over, and result is what has become of it.
	done   chan struct{}
	result Result

	// mu may be taken under the locks of the fan and its listeners, and not the other way round.
	mu sync.Mutex
	// phase of the call, and the wait it is in, for who asks; guarded by mu
	phase Phase
	watch *dispatch.Wait
	// so far: what is known of the call while it runs; guarded by mu
	soFar Result
	// header is what the responses' headers say of it; guarded by mu
	header map[string]string
	// idle is the grace of a call that nobody listens to; guarded by mu
	idle *time.Timer

	tracer Trace
	// room is how the ticket in hand is asked to make room; nil: it is not
	room *preemption
}

// Why a call ended before its end. They are causes of a generation's context.
var (
	errClosing   = errors.New("the gateway goes")
	errLeft      = errors.New("the client left")
	errSlow      = errors.New("the client reads too slowly")
	errCancelled = errors.New("the call was cancelled")
	errTimeout   = errors.New("the client's own timeout")
	errTooLong   = errors.New("the longest time a response may take")
)

// Causes of the end of a stream, as the metrics have them.
const (
	causeClient     = "client"
	causeEngine     = "engine"
	causeTimeout    = "timeout"
	causeSlow       = "slow_client"
	causeCancelled  = "cancelled"
	causeModeration = "moderation"
	causeGateway    = "gateway"
)

// open begins the call, or finds the one that already runs under its name: for a client that knows the events up to after, -1: none. A call
// is not begun for one that wants to go on with it.
func (r *Relay) open(c *Call, pending *dispatch.Pending, after int64) (g *generation, fresh bool, fault *openai.Error) {
	if r.life.Err() != nil {
		return nil, false, closing()
	}
	if c.Scan.RequestID == "" {
		g = r.prepare(c, pending)
		r.start(g)
		return g, true, nil
	}
	key, sum := c.key(), fingerprint(c)
	begin := func() *generation { return r.prepare(c, pending) }
	g, fresh, err := r.named.Claim(key, sum, begin)
	if err == nil && !fresh && after < 0 && g.spent() {
		r.named.Forget(key, g)
		g, fresh, err = r.named.Claim(key, sum, begin)
	}
	switch {
	case errors.Is(err, replay.ErrConflict):
		return nil, false, &openai.Error{Code: openai.CodeRequestIDConflict, Param: "request_id",
			Message: "Another request with this request_id had another body."}
	case err != nil:
		return nil, false, openai.Errorf(openai.CodeQueueFull, "Too many requests with a request_id are running.")
	}
	if fresh && after >= 0 {
		r.named.Forget(key, g)
		g.cancel(errLeft)
		fault = notFound()
	}
	if fresh {
		r.start(g)
	}
	return g, fresh, fault
}

// key is the name that the client has given the call.
func (c *Call) key() replay.Key { return replay.Key{Tenant: c.Tenant.Name, ID: c.Scan.RequestID} }

// spent says that a start which is repeated is to begin anew: the call before came to nothing, or to a fault that a second try may not have.
func (g *generation) spent() bool {
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

// logBytes bounds what is kept of a call that its client has named, in bytes: some thousand tokens, from the first while they fit, so that a
// start which is repeated late has all of it.
const logBytes = 1 << 20

// fingerprint tells one body from another under the same request id. Where it goes to counts too.
func fingerprint(c *Call) [32]byte {
	h := sha256.New()
	h.Write([]byte(c.Path))
	h.Write([]byte{0})
	h.Write(c.Body)
	return [32]byte(h.Sum(nil))
}

// prepare makes a generation that has not begun.
func (r *Relay) prepare(c *Call, pending *dispatch.Pending) *generation {
	own := *c
	g := &generation{relay: r, call: &own, pending: pending, phase: Queued,
		answered: make(chan struct{}), done: make(chan struct{})}
	if pending != nil {
		g.watch = pending.Progress()
	}
	g.ctx, g.cancel = context.WithCancelCause(r.life)
	g.policy = r.policyOf(c)
	limits := replay.Limits{}
	if c.Scan.RequestID != "" {
		limits = replay.Limits{LogBytes: logBytes}
	}
	g.broadcast = replay.NewBroadcast(limits)
	g.broadcast.OnIdle(g.listened)
	g.asked = own.Asked()
	if r.config.Tracer != nil {
		g.tracer = r.config.Tracer.Begin(c)
	}
	return g
}

// letGo lets go of what only a further attempt would need.
func (g *generation) letGo() {
	g.call.Body, g.call.Header, g.asked.Key, g.asked.Keys = nil, nil, nil, nil
}

// policyOf is the policy of the model that the call names; of a pool that of its first one.
func (r *Relay) policyOf(c *Call) Policy {
	rules := r.rules.Load()
	f := r.config.Dispatcher.Foresee(&dispatch.Request{Model: c.Scan.Model, Tenant: c.Tenant.Name, Allowed: c.Tenant.Allows})
	if len(f.Models) > 0 {
		return rules.policy(f.Models[0])
	}
	return rules.policy(c.Scan.Model)
}

// Asked is what dispatch is asked for the call. The request id is left out: the relay itself sees to it that it runs once.
func (c *Call) Asked() dispatch.Request {
	asked := dispatch.NewRequest(dispatch.Caller{Tenant: c.Tenant, Priority: c.Priority, Task: c.Task}, &c.Scan, c.Body)
	asked.ID = ""
	return *asked
}

// listened is told when nobody listens any more, and when somebody does again. A call that its client has named goes on for a while.
func (g *generation) listened(idle bool) {
	forgiving := g.call.Scan.RequestID != "" && g.policy.Resume > 0
	if idle && !forgiving {
		g.leave()
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle != nil {
		g.idle.Stop()
		g.idle = nil
	}
	if idle {
		g.idle = time.AfterFunc(g.policy.Resume, g.leave)
	}
}

// leave ends the call, unless somebody has come meanwhile.
func (g *generation) leave() {
	if g.broadcast.Subscribers() == 0 {
		g.cancel(errLeft)
	}
}

// enter notes what the call waits for now.
func (g *generation) enter(p Phase, w *dispatch.Wait) {
	g.mu.Lock()
	g.phase, g.watch = p, w
	g.mu.Unlock()
}

// progress is what the call waits for.
func (g *generation) progress() Progress {
	g.mu.Lock()
	p := Progress{Phase: g.phase, Waited: time.Since(g.call.Received)}
	watch := g.watch
	g.mu.Unlock()
	if p.Phase == Queued && watch != nil {
		var starting bool
		if p.Position, starting, p.Note = watch.Look(g.relay.config.Dispatcher); starting {
			p.Phase = Starting
		}
	}
	return p
}

// note keeps what is known so far, for who leaves before the end.
func (g *generation) note(change func(*Result)) {
	g.mu.Lock()
	change(&g.soFar)
	g.mu.Unlock()
}

func (g *generation) sofar() Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.soFar
}

// run is the whole life of the call.
func (g *generation) run() {
	if g.call.Scan.RequestID != "" {
		defer g.expire()
	}
	defer close(g.done)
	g.result = g.work()
	g.letGo()
	g.cancel(nil)
	if g.tracer != nil && g.call.Scan.RequestID != "" {
		g.tracer.End(g.result) // that of another call ends with its client
	}
	switch {
	case g.answer != nil:
		close(g.answered)
		g.broadcast.Close(nil)
	case g.result.Fault != nil:
		g.broadcast.Close(g.result.Fault)
	default:
		g.broadcast.Close(nil)
	}
}

// expire keeps a call that has ended for who comes back. Nobody comes back to one that was left long enough ago, or to a gateway that goes.
func (g *generation) expire() {
	r, key := g.relay, g.call.key()
	if g.policy.Resume == 0 || r.life.Err() != nil || errors.Is(context.Cause(g.ctx), errLeft) {
		r.named.Forget(key, g)
		r.released(key, g)
		return
	}
	r.named.Expire(key, g, g.policy.Resume)
	if r.config.Peers != nil {
		time.AfterFunc(g.policy.Resume, func() { r.released(key, g) })
	}
}

// closing is what clients are told when the gateway goes.
func closing() *openai.Error {
	return openai.Errorf(openai.CodeGatewayUnavailable, "The gateway is stopping.")
}
