package gateway

import (
	"context"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/upstream"
	"github.com/sluice-gateway/sluice/extproc"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
	"github.com/sluice-gateway/sluice/internal/telemetry"
	"github.com/sluice-gateway/sluice/internal/telemetry/trace"
)

// journal writes what extproc tells into the list of requests and the metrics.
type journal struct {
	requests *telemetry.Requests
	metrics  *telemetry.Metrics
	// dispatcher knows what runs on a replica
	dispatcher *dispatch.Dispatcher
}

func (j journal) Begin(b extproc.Begun) extproc.Entry {
	return entry{j, j.requests.Begin(telemetry.Begun{
		ID: b.RequestID, Method: "POST", Path: b.Path, Tenant: b.Tenant, Model: b.Model, Stream: b.Stream, Bytes: b.Bytes})}
}

type entry struct {
	journal
	live *telemetry.Live
}

func (e entry) Decided(model, replica string, waited time.Duration) {
	e.live.Decided(model, replica, waited)
	e.metrics.Waited(waited)
	on := e.dispatcher.Replica(model, replica)
	prefill := max(1, on.Prefill) // this one, if nobody tells of first tokens
	e.metrics.Dispatched(prefill, max(0, on.Load-prefill))
}

func (e entry) Ended(fault *openai.Error) {
	if fault == nil {
		e.live.End(0, "")
		return
	}
	e.live.End(fault.HTTPStatus(), string(fault.Code))
}

// observer draws the consequences of what Envoy reports: the slot of a retried request moves on, an upstream that fails is
// taken out of rotation, and everything is counted.
type observer struct {
	// record counts an entry and keeps it for the operator
	record    func(telemetry.Entry)
	decisions *extproc.Server
	upstreams *upstream.Launcher
	replicas  *local.Launcher
	// dispatcher is told of failures, and of requests that began before since
	dispatcher *dispatch.Dispatcher
	since      time.Time
}

func (o observer) observe(e telemetry.Entry) {
	o.record(e)
	if e.Moved() {
		o.decisions.Moved(e.RequestID, e.Upstream)
		return
	}
	if e.Log == headers.LogRequests && e.Model != "" {
		o.account(e)
	}
	if kind, reason := blame(e); kind != 0 && e.Replica != "" {
		o.failed(e.Replica, kind, reason)
	}
}

// failed tells whoever can do something about it that a request failed on a replica's side.
func (o observer) failed(replica string, kind dispatch.Failure, reason string) {
	switch o.dispatcher.Failed(replica, kind, reason) {
	case engines.Upstream:
		o.upstreams.RecordFailure(replica, reason)
	case engines.Local:
		o.replicas.Suspect(replica)
	}
}

// account settles what a request has cost. One of before a restart is counted until it ends, against its tenant too as soon as an entry has
// told whose it is.
func (o observer) account(e telemetry.Entry) {
	switch old := e.Start.Before(o.since); {
	case old && e.Interim:
		o.dispatcher.Recognize(running(e))
	case old:
		o.dispatcher.SettleOne(running(e))
	case !e.Interim:
		o.decisions.Settled(e.RequestID, dispatch.Response{
			Bytes: e.BytesOut, Stream: e.Streamed, Failed: e.Status == 0 || e.Status >= 400,
			Prompt: e.Usage.Prompt, Completion: e.Usage.Completion, Cached: e.Usage.Cached, Known: e.Usage.Known, TTFT: firstToken(e),
		})
	}
}

// firstToken is the time from a streamed request's leaving for its replica to the first byte of the response; 0 when it is not known.
func firstToken(e telemetry.Entry) time.Duration {
	if !e.Streamed || e.UpstreamDuration == 0 || e.FirstByte == 0 {
		return 0
	}
	return max(0, e.FirstByte-(e.LastByte-e.UpstreamDuration))
}

func running(e telemetry.Entry) dispatch.Running {
	tokens, _ := strconv.Atoi(e.Notes[headers.MetadataTokens]) // 0 where nothing was noted
	return dispatch.Running{Place: dispatch.Place{Model: e.Model, Address: e.Upstream}, Request: e.RequestID,
		Tenant: e.Notes[headers.MetadataTenant], Lease: e.Notes[headers.MetadataLease], Tokens: tokens}
}

// blame says what the replica did wrong; 0 when nothing. What the client did (it left) is not the replica's doing. The log of
// attempts tells of broken connections, at once and of each replica that was tried; that of requests tells of answers.
func blame(e telemetry.Entry) (kind dispatch.Failure, reason string) {
	switch {
	case e.Log == headers.LogRequests && !e.Interim && e.Details == "via_upstream":
		return dispatch.Answered(e.Status), "answered " + strconv.Itoa(e.Status)
	case e.Log == headers.LogAttempts && e.HasFlag("UF"):
		return dispatch.Connect, "refused a connection"
	case e.Log == headers.LogAttempts && (e.HasFlag("UC") || e.HasFlag("UR") || e.HasFlag("UPE")):
		return dispatch.Reset, "broke a response off"
	}
	return 0, ""
}

// turns has the relay carry calls that did not come by ext_proc: they are in the journal too.
type turns struct {
	relay   *relay.Relay
	journal journal
	tracer  *trace.Tracer
}

// Generate implements realtime.Generator and llmv1.Generator.
func (t turns) Generate(ctx context.Context, c *relay.Call, sink relay.Sink) {
	live := t.journal.requests.Begin(telemetry.Begun{ID: c.RequestID, Method: "POST", Path: c.Path, Tenant: c.Tenant.Name, Model: c.Scan.Model,
		Stream: c.Scan.Stream, Bytes: len(c.Body), Turn: c.Turn})
	c.Entry = entry{t.journal, live}
	t.relay.Generate(ctx, c, sink)
	live.End(0, "")
}

// Traced implements extproc.Entry.
func (e entry) Traced(own, client string) { e.live.Trace(own, client) }

// Carried implements stream.Entry.
func (e entry) Carried(r relay.Result) { e.live.Carried(carried(r)) }

// carried is a result as the figures have it.
func carried(r relay.Result) telemetry.Carried {
	c := telemetry.Carried{
		Model: r.Model, Replica: r.Replica, FirstToken: r.TTFT, Held: r.Held, Decode: r.Decode, FinishReason: r.Finish, Cause: r.Cause,
		Attempts: r.Attempts, Answered: r.Answered,
		Usage: telemetry.Usage{Prompt: r.Usage.Prompt, Completion: r.Usage.Completion, Known: r.Usage.Known, Cached: r.Usage.Cached,
			CachedKnown: r.Usage.Known},
	}
	if r.Fault != nil {
		c.Code, c.Status = string(r.Fault.Code), r.Fault.HTTPStatus()
	}
	return c
}

// calls is the relay's view of the tracer.
type calls struct{ tracer *trace.Tracer }

// Begin implements stream.Tracer.
func (t calls) Begin(c *relay.Call) relay.Trace {
	call := t.tracer.Start(telemetry.Begun{ID: c.RequestID, Method: "POST", Path: c.Path, Tenant: c.Tenant.Name, Model: c.Scan.Model,
		Stream: c.Scan.Stream, Bytes: len(c.Body)}, c.Header.Get("traceparent"), c.Received)
	if call == nil {
		return nil
	}
	if e, ok := c.Entry.(entry); ok {
		e.live.Trace(call.Traceparent(), c.Header.Get("traceparent"))
	}
	return spans{call}
}

// spans are one call's.
type spans struct{ call *trace.Call }

func (s spans) Admitted(model, replica string, batch int) {
	s.call.Admitted(time.Now(), model, replica, batch)
}
func (s spans) Queued()             { s.call.Queue(time.Now()) }
func (s spans) Traceparent() string { return s.call.Traceparent() }
func (s spans) FirstToken()         { s.call.FirstToken(time.Now()) }
func (s spans) Token(n int64)       { s.call.Step(int(n), time.Now()) }
func (s spans) Emitted(m int64)     { s.call.Emit(int(m), time.Now()) }
func (s spans) End(r relay.Result)  { s.call.End(carried(r)) }
