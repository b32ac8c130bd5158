package gateway

import (
	"net/http"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/news"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

// subscribers returns the funcs that are called for events of requests: those of the metrics, the
// ledger, the access log, the log of picks and the tracer.
func (g *Gateway) subscribers() request.Subscribers {
	if !observes() {
		return request.Subscribers{CostOf: g.dispatcher.CostOfRecovered, Finished: []func(request.Summary){g.streams.tracer.Native}}
	}
	return request.Subscribers{
		Dispatched: g.dispatched,
		Retried:    g.retried,
		CostOf:     g.dispatcher.CostOfRecovered,
		Lost:       g.dispatcher.ObserveRecovered,
		Lives:      g.isHeard,
		Used:       g.used,
		Elsewhere:  func(q request.Summary) { g.succession.link.Load().Ended(q, false) },
		Begun:      g.carried.Begun,
		Finished: []func(request.Summary){
			g.finished, func(q request.Summary) { g.succession.link.Load().Ended(q, true) }, g.traffic.Finished, g.events.Finished,
			g.requestLog.Finished, g.streams.tracer.Native,
		},
		FinishedDelay: finishedDelay,
		Picked:        telemetry.PickLog(g.log),
	}
}

// isHeard reports whether the Envoy with this pid runs, or whether another process gets the access
// log.
func (g *Gateway) isHeard(pid int) bool { return g.decisions.Retired() || process.Runs(pid) }

// finishedDelay is how long the metrics, the history, the events and the access log wait for a
// request that has ended, to be told of several together. A scrape of the metrics and a sample of
// the history have them told before.
const finishedDelay = 100 * time.Millisecond

// scrape serves the metrics with all requests that have left or ended before.
func (g *Gateway) scrape(metrics http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.requests.TellFinished()
		g.tellDepartures()
		metrics.ServeHTTP(w, r)
	})
}

// observes reports whether requests are counted, logged and kept. With SLUICE_OBSERVE=off in the
// environment they are not, so that a benchmark tells what all of it costs (internal/bench).
func observes() bool { return os.Getenv("SLUICE_OBSERVE") != "off" }

// samples reports whether Envoy reads a sample of the responses. With SLUICE_OBSERVE=off or
// SLUICE_OBSERVE=unsampled in the environment it does not.
func samples() bool { return observes() && os.Getenv("SLUICE_OBSERVE") != "unsampled" }

// accessLogConfig says where the access log goes.
func (g *Gateway) accessLogConfig() telemetry.AccessLogConfig {
	a := g.options.Config.AccessLog
	c := telemetry.AccessLogConfig{To: telemetry.Sink(a.To), Path: a.Path, MaxSize: int64(a.MaxSize), MaxFiles: a.MaxFiles, Sample: a.Sample,
		Endpoint: a.Endpoint, Version: g.options.Version, Log: g.log}
	switch a.To {
	case config.AccessLogOff:
		c.To = ""
	case config.AccessLogAuto:
		c.To = telemetry.SinkStdout
		if g.options.Console != nil {
			c.To = telemetry.SinkConsole
		}
	case config.AccessLogOTLP:
		c.Headers = collectorHeaders(os.Getenv("OTEL_EXPORTER_OTLP_HEADERS"))
	}
	return c
}

// loaded returns the replicas that have become ready after a start between two snapshots. A replica
// that was adopted when it was ready already is not among them.
func loaded(before, after *engines.Snapshot) []engines.Replica {
	var all []engines.Replica
	for name, m := range after.Models {
		old := before.Models[name]
		if old == m || old == nil {
			continue
		}
		for _, r := range m.Replicas {
			if was := old.Replica(r.ID); r.State == engines.Ready && was != nil && r.LoadTime > 0 && was.LoadTime != r.LoadTime {
				all = append(all, r)
			}
		}
	}
	return all
}

// observe processes an entry of Envoy's access log. It adds the entry to its request. The end of a
// request that an earlier process has decided is reported to the dispatcher. A failure of a replica
// is reported, so that a failing replica gets no requests for a while.
func (g *Gateway) observe(e request.Entry) {
	begun := g.requests.Observe(e)
	if !begun && beganBefore(&e, g.started) { // this process may decide one that began before it
		g.dispatcher.ObserveRecovered(&e)
	}
	if kind, reason := dispatch.FailureOf(&e); kind != 0 && e.Replica != "" {
		g.failed(e.Model, e.Replica, kind, reason)
	}
	if dispatch.ClosesOf(&e) {
		g.dispatcher.LearnCloseDelimited(e.Model, e.Replica)
	}
	if dispatch.RestOf(&e) {
		g.dispatcher.Rest(e.Replica, e.RetryAfter)
	}
}

// beganBefore reports whether the request of an entry that has just come began before a moment. If
// the clock of the machine was set back in between, only its duration tells.
func beganBefore(e *request.Entry, moment time.Time) bool {
	return e.Start.Before(moment) || e.Duration > time.Since(moment)
}

// failed reports that a request has failed because of its replica. The dispatcher and, if it can
// check the replica, the replica's launcher learn of the failure.
//
// A server that refuses a connection fails for all of its models, otherwise for the model alone.
// A replica that is stuck is restarted, unless someone else runs it.
func (g *Gateway) failed(model, replica string, kind dispatch.Failure, reason string) {
	if kind == dispatch.Stuck {
		g.operator.restartStuck(model, replica)
	}
	silent := kind == dispatch.Silent || kind == dispatch.Stuck
	switch g.dispatcher.Failed(replica, kind, reason) {
	case engines.Upstream:
		if kind == dispatch.Connect {
			model = ""
		}
		g.launchers.upstream.RecordFailure(replica, model, reason)
	case engines.Local:
		g.launchers.local.Suspect(replica, silent)
		if g.launchers.joined != nil && silent {
			for _, n := range g.launchers.joined.Nodes() { // one of them may run it
				n.Suspect(replica)
			}
		}
	case engines.Ray:
		g.launchers.ray.Suspect(replica, silent)
	}
}

// doubted logs that a replica has told a usage that cannot be true.
func (g *Gateway) doubted(model, replica string, prompt, completion int64) {
	g.log.Warn("usage of an engine not believed, its responses are charged by their size", zap.String("model", model),
		zap.String("replica", replica), zap.Int64("prompt_tokens", prompt), zap.Int64("completion_tokens", completion))
}

// tellNews tells the dispatcher what the engine of a replica says.
func (g *Gateway) tellNews(replica string, n news.News) {
	g.dispatcher.SetEngineNews(replica, dispatch.EngineNews{
		Running: max(0, n.Running), Waiting: max(0, n.Waiting), CacheTokens: n.CacheTokens,
		PrefillRate: n.PrefillRate, Engine: n.Engine, Slots: n.Slots, UsualSlots: n.UsualSlots,
	})
}
