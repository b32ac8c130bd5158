package gateway

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/relay"
	"github.com/sluice-gateway/sluice/internal/relay/grpcapi"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
	"github.com/sluice-gateway/sluice/internal/relay/peers"
	"github.com/sluice-gateway/sluice/internal/relay/realtime"
	"github.com/sluice-gateway/sluice/internal/telemetry"
	"github.com/sluice-gateway/sluice/internal/telemetry/trace"
)

// This file makes the relay of managed streams, and what speaks to it beside Envoy's plain requests.

func (g *gateway) makeRelay(c *config.Config) error {
	tracer, err := g.makeTracer(c)
	if err := errors.Join(err, g.makePeers(c)); err != nil {
		return err
	}
	g.tracer = tracer
	parts := relay.Config{Dispatcher: g.dispatcher, Failed: g.failed, Retried: g.metrics.Retried, Gap: g.metrics.Gap, Workers: new(grpcapi.Workers),
		ReplicaHeader: func() bool { return g.current().ReplicaHeader }, Log: g.log}
	if tracer != nil {
		parts.Tracer = calls{tracer}
	}
	if g.peers != nil {
		parts.Peers = g.peers
	}
	g.relay = relay.New(parts)
	turns := turns{g.relay, journal{g.requests, g.metrics, g.dispatcher}, tracer}
	g.realtime = &realtime.Handler{Generator: turns, Tenants: g.auth.Tenant, Valid: g.auth.Valid, CheckOrigin: c.Auth.Mode == config.AuthNone,
		Heartbeat: shortestHeartbeat(c), Log: g.log}
	g.llm = &grpcapi.Server{Generator: turns, Tenants: g.auth.Tenant, ReplicaHeader: parts.ReplicaHeader}
	return nil
}

// shortestHeartbeat is the one of all models that a WebSocket, which may have turns of any, goes by.
func shortestHeartbeat(c *config.Config) time.Duration {
	d := config.DiscoveredModel().Stream.Heartbeat
	for _, m := range c.Models {
		d = min(d, m.Stream.Heartbeat)
	}
	return d
}

func (g *gateway) makeTracer(c *config.Config) (*trace.Tracer, error) {
	if c.Tracing == nil {
		return nil, nil
	}
	return trace.New(trace.Config{Endpoint: c.Tracing.Endpoint, Sample: c.Tracing.Sample, Version: g.settings.Version, Log: g.log,
		Headers: collectorHeaders(os.Getenv("OTEL_EXPORTER_OTLP_HEADERS"))})
}

// collectorHeaders reads the variable by which OpenTelemetry's exporters are told a credential: name=value,name=value, values escaped as in
// URLs.
func collectorHeaders(text string) map[string]string {
	all := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(pair, "=")
		if plain, err := url.PathUnescape(strings.TrimSpace(value)); ok && err == nil {
			all[strings.TrimSpace(name)] = plain
		}
	}
	return all
}

// failed draws the consequences of a failure that the relay has seen; of others the access log tells.
func (g *gateway) failed(replica string, kind dispatch.Failure, reason string) {
	observer{upstreams: g.upstream, replicas: g.local, dispatcher: g.dispatcher}.failed(replica, kind, reason)
}

// streamRules are the file's words on streams.
func streamRules(c *config.Config) *relay.Rules {
	rules := &relay.Rules{Default: streamPolicy(config.DiscoveredModel()), Models: map[string]relay.Policy{}}
	for _, m := range c.Models {
		rules.Models[m.Name] = streamPolicy(m)
	}
	for _, m := range c.Moderation {
		rules.Moderation = append(rules.Moderation, relay.Moderation{Models: m.Models, Tenants: m.Tenants, Rule: moderationRule(m)})
	}
	return rules
}

func streamPolicy(m config.Model) relay.Policy {
	s := m.Stream
	p := relay.Policy{
		Mode: relay.Mode(s.Mode), Heartbeat: s.Heartbeat, EmptyChunks: s.HeartbeatAs == config.HeartbeatChunk, Resume: s.Resume,
		TTFTTimeout: s.TTFTTimeout, StallTimeout: s.StallTimeout, InjectUsage: s.InjectUsage, Sample: s.Sample,
		GRPC: m.Protocol == config.ProtocolGRPC,
	}
	if m.RerankAPI == config.RerankTEI {
		p.Rerank = relay.RerankTEI
	}
	return p
}

func moderationRule(m config.Moderation) moderation.Rule {
	r := moderation.Rule{Name: m.Name, Literals: m.Literals, Patterns: m.Compiled, IgnoreCase: m.IgnoreCase, Window: int(m.Window)}
	if m.Hook != nil {
		r.Hook = &moderation.Hook{URL: m.Hook.URL, Timeout: m.Hook.Timeout, FailOpen: m.Hook.OnFailure == config.Allow, Every: int(m.Hook.Every)}
	}
	return r
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

// handOverPatience is how long clients have to take the news that the gateway is handed over.
const handOverPatience = 2 * time.Second

// stopStreams tells the clients of all calls that the gateway goes, and waits until they have been told.
func (g *gateway) stopStreams(patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	g.realtime.Close(ctx)
	g.relay.Close(ctx)
}

// lastWords is how long before the end of a drain clients are told of it, as long as there is an Envoy to tell them by.
const lastWords = time.Second

// drainStreams closes WebSockets as their turns end, since Envoy counts an idle one as a request that runs, and tells who is left a moment before the
// time is up. The func that it returns does so at once, and waits until all have been told.
func (g *gateway) drainStreams(timeout time.Duration) (stop func()) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout-min(lastWords, timeout/4))
	var telling sync.WaitGroup
	telling.Go(func() { g.realtime.Close(ctx) })
	telling.Go(func() {
		<-ctx.Done()
		told, cancel := context.WithTimeout(context.Background(), lastWords)
		defer cancel()
		g.relay.Close(told)
	})
	return func() {
		cancel()
		telling.Wait()
	}
}

// makePeers finds the other gateways of the same Redis.
func (g *gateway) makePeers(c *config.Config) error {
	if c.Peers == "" {
		return nil
	}
	client, err := redis.NewClient(c.Redis, 0)
	if err != nil {
		return err
	}
	g.meeting = client
	g.peers, err = peers.New(peers.Config{Redis: client, Listen: c.Peers, Log: g.log})
	return err
}

// runPeers keeps this gateway known to the others.
func (g *gateway) runPeers(ctx context.Context) error {
	return errors.Join(g.peers.Run(ctx), g.meeting.Close())
}

// servePeers answers what other gateways pass on.
func (g *gateway) servePeers(ctx context.Context) error {
	return g.peers.Serve(ctx, nil, g.relay.PeerHandler(g.auth.Tenant, int64(g.settings.Config.MaxBody)))
}
