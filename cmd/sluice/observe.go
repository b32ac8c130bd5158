package main

import (
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/engines/upstream"
	"github.com/sluice-gateway/sluice/extproc"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

// journal writes what extproc tells into the list of requests and the metrics.
type journal struct {
	requests *telemetry.Requests
	metrics  *telemetry.Metrics
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
	// settle is told of the end of requests that began before since
	settle func(dispatch.Place)
	since  time.Time
}

func (o observer) observe(e telemetry.Entry) {
	o.record(e)
	if e.Moved() {
		o.decisions.Moved(e.RequestID, e.Upstream)
		return
	}
	if !e.Interim && e.Log == headers.LogRequests && e.Model != "" && e.Start.Before(o.since) {
		o.settle(dispatch.Place{Model: e.Model, Address: e.Upstream})
	}
	if fault := blame(e); fault != "" && e.Replica != "" {
		o.upstreams.Failed(e.Replica, fault)
	}
}

// blame says what the replica did wrong; empty when nothing. What the client did (it left) is not the replica's doing. The log of
// attempts tells of broken connections, at once and of each replica that was tried; that of requests tells of answers.
func blame(e telemetry.Entry) string {
	switch {
	case e.Log == headers.LogRequests && e.Status >= 500 && e.Details == "via_upstream":
		return "answered " + strconv.Itoa(e.Status)
	case e.Log == headers.LogAttempts && e.HasFlag("UF"):
		return "refused a connection"
	case e.Log == headers.LogAttempts && (e.HasFlag("UC") || e.HasFlag("UR") || e.HasFlag("UPE")):
		return "broke a response off"
	}
	return ""
}
