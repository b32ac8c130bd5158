package gateway

import (
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

// subscribers returns who is told what happens to requests: the metrics, the request log and the
// tracer.
func (g *Gateway) subscribers() request.Subscribers {
	log := telemetry.NewRequestLog(g.log, g.options.Config.LogRequests)
	return request.Subscribers{
		Dispatched: g.dispatched,
		Retried:    g.metrics.Retried,
		Finished:   []func(request.Summary){g.metrics.Finished, log.Finished, g.streams.tracer.Native},
	}
}

// dispatched counts how long a request has waited, and what runs on its replica now.
func (g *Gateway) dispatched(model, replica string, waited time.Duration) {
	g.metrics.Waited(waited)
	on := g.dispatcher.Replica(model, replica)
	prefill := max(1, on.Prefill) // this request, if nobody tells of first tokens
	g.metrics.Dispatched(prefill, max(0, on.Load-prefill))
}

// observe draws the consequences of an entry of Envoy's access log: it is added to its request, a
// request that began before this process did is counted until it ends, and a replica that fails
// requests is taken out of rotation.
func (g *Gateway) observe(e request.Entry) {
	g.requests.Observe(e)
	if e.Start.Before(g.started) {
		g.dispatcher.ObserveRecovered(&e)
	}
	if kind, reason := dispatch.FailureOf(&e); kind != 0 && e.Replica != "" {
		g.failed(e.Replica, kind, reason)
	}
}

// failed tells the launcher that can do something about it that a request failed on a replica's
// side.
func (g *Gateway) failed(replica string, kind dispatch.Failure, reason string) {
	switch g.dispatcher.Failed(replica, kind, reason) {
	case engines.Upstream:
		g.launchers.upstream.RecordFailure(replica, reason)
	case engines.Local:
		g.launchers.local.Suspect(replica)
	}
}
