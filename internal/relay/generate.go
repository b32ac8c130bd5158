package relay

import (
	"context"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Generate runs the call to its end and tells the sink of it, or joins the one that already runs under its request id, here or at another
// gateway. ctx ends when the client has left.
func (r *Relay) Generate(ctx context.Context, c *Call, sink Sink) {
	own := *c
	if owner, mine := r.claim(ctx, &own); !mine {
		r.abroad(ctx, &own, owner, sink)
		return
	}
	r.generate(ctx, &own, nil, listening{sink: sink, after: -1})
}

// listening is how somebody listens to a call.
type listening struct {
	sink Sink
	// after is the number of the last event that is known already; -1: none.
	after int64
	// foreseen: the client has waited for so long that it should hear something at once.
	foreseen bool
}

// generate is Generate for a call that is changed: its body goes when the generation has it.
func (r *Relay) generate(ctx context.Context, c *Call, pending *dispatch.Pending, how listening) {
	g, fresh, fault := r.open(c, pending, how.after)
	if pending != nil && !fresh {
		pending.Cancel()
	}
	c.Body, c.Header = nil, nil
	if fault != nil {
		if c.Scan.RequestID != "" {
			r.released(c.key(), nil)
		}
		r.conclude(c, how.sink, Result{Fault: fault})
		return
	}
	result := g.listen(ctx, how)
	if fresh && g.tracer != nil && c.Scan.RequestID == "" {
		g.tracer.End(result)
	}
	if !fresh {
		result = Result{Model: result.Model, Replica: result.Replica, Fault: result.Fault, Told: result.Told, Finish: result.Finish, Cause: result.Cause}
	}
	if c.Entry != nil {
		c.Entry.Carried(result)
	}
}

// conclude ends a call that has not begun.
func (r *Relay) conclude(c *Call, sink Sink, result Result) {
	_ = sink.End(result) // there is nothing to stop
	if c.Entry != nil {
		c.Entry.Carried(result)
	}
}

// listen tells a sink of a call until either ends, and says how the call has ended, as far as this sink is concerned.
func (g *generation) listen(ctx context.Context, how listening) Result {
	defer g.relay.listens()()
	l, err := g.broadcast.Subscribe(how.after)
	if err != nil {
		fault := openai.Errorf(openai.CodeRequestIDConflict, "The events after the last one that was seen are not kept any more.")
		_ = how.sink.End(Result{Fault: fault}) // nobody else is concerned
		return Result{Fault: fault}
	}
	defer l.Unsubscribe()
	e := ear{generation: g, listener: l, sink: how.sink}
	if s, ok := how.sink.(beginner); ok {
		s.begins(g)
	}
	return e.follow(ctx, how.foreseen)
}

// beginner is a sink that wants to know the call.
type beginner interface{ begins(*generation) }
