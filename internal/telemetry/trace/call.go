package trace

import (
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-gateway/sluice/internal/request"
)

// Inject decides whether a native request is traced, from the traceparent header of its client
// (empty: none). It returns the traceparent header for the engine, which the caller also passes to
// Record.SetTrace. It returns false if the request is not traced; the client's header then passes
// unchanged. Native makes the spans when the request has ended. For managed requests, use Start.
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

// Native makes the spans of a native request that has ended, from its joined record. It skips a
// request without the header of Inject in Record.SetTrace, and managed requests. It is a subscriber
// of the request store.
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
		client = trace.SpanContext{} // Sluice began the trace
	}
	t.send(native(q, own, client))
}

// Call traces one call of the relay. Its methods are safe for concurrent use. A nil *Call stands
// for a call that is not traced and does nothing, at no cost.
type Call struct {
	tracer      *Tracer
	traceparent string

	mu sync.Mutex
	// mu guards the following fields
	recorded recorded
	ended    bool
	// latest is the time of the first token or of the last step after it. waiting is the time of
	// the first step that was not emitted yet.
	latest, waiting time.Time
}

// maxPhases bounds the phases of a call with many attempts. The last phase then lasts until the end
// of the call.
const maxPhases = 32

// Start starts the trace of a managed call, from the traceparent header of its client (empty:
// none). The phase queue lasts from received until Admitted. The caller must call End once. Start
// returns nil if the call is not traced.
func (t *Tracer) Start(b request.Arrival, header string, received time.Time) *Call {
	if t == nil {
		return nil
	}
	own, client, traced := t.decide(header)
	if !traced {
		return nil
	}
	c := &Call{tracer: t, traceparent: render(own), recorded: recorded{
		own: own, client: client, began: received, id: b.ID, clientID: b.ClientID, path: b.Path, tenant: b.Tenant, model: b.Model,
		stream: b.Stream, managed: true,
	}}
	c.recorded.enter(phase{name: phaseQueue, began: received})
	return c
}

// Traceparent returns the traceparent header for the engine, which makes the engine's spans
// children of the call's span. It is empty if the call is not traced; the client's header then
// passes unchanged.
func (c *Call) Traceparent() string {
	if c == nil {
		return ""
	}
	return c.traceparent
}

// Queued records that the call waits again, because its attempt has failed or was preempted.
func (c *Call) Queued() { c.enter(phase{name: phaseQueue}) }

// Admitted records that the call was sent to this replica of the model. batch is the number of
// requests on the replica, this one included; 0 means not known.
func (c *Call) Admitted(model, replica string, batch int) {
	c.enter(phase{name: phasePrefill, model: model, replica: replica, batch: batch})
}

// FirstToken records the arrival of the first token.
func (c *Call) FirstToken() { c.enter(phase{name: phaseDecode}) }

// enter records that a phase begins now.
func (c *Call) enter(p phase) {
	if c == nil {
		return
	}
	p.began = c.tracer.now()
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

// Token records the n-th event of the engine, from 0, in order. Up to 32 events after FirstToken,
// evenly spread, become spans decode_step[n]. Such a span lasts from the previous event to this
// one.
func (c *Call) Token(n int64) {
	if c == nil {
		return
	}
	at := c.tracer.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	if !c.latest.IsZero() {
		c.recorded.steps.add(int(n), c.latest, at)
		c.latest = at
	}
	if c.waiting.IsZero() {
		c.waiting = at
	}
}

// Emitted records the end of the m-th write to the client, from 0, in order. Up to 32 writes,
// evenly spread, become spans emit_chunk[m]. Such a span lasts from the first event after the
// previous write to the end of this write.
func (c *Call) Emitted(m int64) {
	if c == nil {
		return
	}
	at := c.tracer.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	began := c.waiting
	if began.IsZero() {
		began = at
	}
	c.recorded.chunks.add(int(m), began, at)
	c.waiting = time.Time{}
}

// End ends the trace of the call now and sends its spans. Further calls do nothing.
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
	c.recorded.ended = c.tracer.now() // no other method changes recorded after ended
	c.recorded.setOutcome(o)
	c.tracer.send(&c.recorded)
}
