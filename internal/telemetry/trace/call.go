package trace

import (
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-gateway/sluice/internal/request"
)

// Inject settles whether a request that Envoy alone is to carry is traced, by the traceparent
// header that its client has sent (empty: none). It returns the header that the engine is to get in
// its place, for Record.SetTrace as well; empty and false when the request is not traced, and its
// header passes on as it is. Native makes the spans. It is not for requests that the relay carries:
// see Start.
func (t *Tracer) Inject(header string) (traceparent string, sampled bool) {
	if t == nil {
		return "", false
	}
	own, _, traced := t.decide(header)
	if !traced {
		return "", false
	}
	return render(own), true
}

// Native makes the spans of a request that has ended, out of its joined record. It does so for
// those that Record.SetTrace was called of with what Inject gave, and leaves those alone that the
// relay carried. It is meant for a subscriber of the request store.
func (t *Tracer) Native(q request.Summary) {
	if t == nil || q.Trace == "" || q.Route == request.RouteManaged {
		return
	}
	own, ok := parse(q.Trace)
	if !ok {
		return
	}
	client, _ := parse(q.TraceParent)
	if client.TraceID() != own.TraceID() {
		client = trace.SpanContext{} // the trace begins here
	}
	t.send(native(q, own, client))
}

// Call follows one call of the relay. Its methods are safe for concurrent use. A nil *Call, of a
// call that is not traced, does nothing, at no cost.
type Call struct {
	tracer      *Tracer
	traceparent string

	mu sync.Mutex
	// what follows is guarded by mu
	recorded recorded
	ended    bool
	// latest is when the first token came or the last step since, waiting when the first step came
	// that was not emitted yet
	latest, waiting time.Time
}

// maxPhases is more than a call has unless it is tried again and again; then its last attempt goes
// on for all that follow.
const maxPhases = 32

// Start begins the trace of a call that the relay carries, by the traceparent header that its
// client has sent (empty: none). The call waits from when it was received, until Admitted. It must
// be followed by one End. nil when the call is not traced.
func (t *Tracer) Start(b request.Arrival, header string, received time.Time) *Call {
	if t == nil {
		return nil
	}
	own, client, traced := t.decide(header)
	if !traced {
		return nil
	}
	c := &Call{tracer: t, traceparent: render(own), recorded: recorded{
		own: own, client: client, began: received, id: b.ID, path: b.Path, tenant: b.Tenant, model: b.Model, stream: b.Stream, managed: true,
	}}
	c.recorded.enter(phase{name: phaseQueue, began: received})
	return c
}

// Traceparent is the header of that name for the engine, whose spans then are below ours; empty
// when the call is not traced, and its client's own header passes on as it is.
func (c *Call) Traceparent() string {
	if c == nil {
		return ""
	}
	return c.traceparent
}

// Queued tells that the call waits again, because its attempt has failed or was preempted.
func (c *Call) Queued() { c.queue(c.now()) }

func (c *Call) queue(at time.Time) { c.enter(phase{name: phaseQueue, began: at}) }

// Admitted tells that the call leaves for this replica of the model (its own name), which works on
// so many requests with it. 0: that is not known.
func (c *Call) Admitted(model, replica string, batch int) { c.admitted(c.now(), model, replica, batch) }

func (c *Call) admitted(at time.Time, model, replica string, batch int) {
	c.enter(phase{name: phasePrefill, began: at, model: model, replica: replica, batch: batch})
}

// FirstToken tells that the first token has come.
func (c *Call) FirstToken() { c.firstToken(c.now()) }

func (c *Call) firstToken(at time.Time) { c.enter(phase{name: phaseDecode, began: at}) }

// now is the time by the tracer's clock; zero for a call that is not traced.
func (c *Call) now() time.Time {
	if c == nil {
		return time.Time{}
	}
	return c.tracer.now()
}

func (c *Call) enter(p phase) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.recorded.enter(p)
	if p.model != "" {
		c.recorded.decided = p.model
	}
	if p.name == phaseDecode {
		c.latest = p.began
	}
}

// Token tells of the n-th event of the engine, from 0, in their order. Up to 32 of those since
// FirstToken, evenly spread, become spans decode_step[n], from the step before to this one.
func (c *Call) Token(n int64) { c.step(int(n), c.now()) }

func (c *Call) step(n int, at time.Time) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	if !c.latest.IsZero() {
		c.recorded.steps.add(n, c.latest, at)
		c.latest = at
	}
	if c.waiting.IsZero() {
		c.waiting = at
	}
}

// Emitted tells of the end of the m-th write to the client, from 0, in their order. Up to 32 of a
// stream, evenly spread, become spans emit_chunk[m], from the first step since the write before to
// this write's end.
func (c *Call) Emitted(m int64) { c.emit(int(m), c.now()) }

func (c *Call) emit(m int, at time.Time) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	began := c.waiting
	if began.IsZero() {
		began = at
	}
	c.recorded.chunks.add(m, began, at)
	c.waiting = time.Time{}
}

// End ends the call, now. Calls after the first do nothing.
func (c *Call) End(o request.Outcome) {
	if c == nil {
		return
	}
	c.mu.Lock()
	ended := c.ended
	c.ended = true
	c.mu.Unlock()
	if ended {
		return
	}
	c.recorded.ended = c.tracer.now() // nobody else touches it any more
	c.recorded.setOutcome(o)
	c.tracer.send(&c.recorded)
}
