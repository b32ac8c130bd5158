package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/carry"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/http1"
	"github.com/sluice-gateway/sluice/internal/relay"
	"github.com/sluice-gateway/sluice/internal/relay/grpcapi"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
	"github.com/sluice-gateway/sluice/internal/relay/peers"
	"github.com/sluice-gateway/sluice/internal/relay/realtime"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/telemetry/trace"
)

// streams are the relay of managed streams and its entry points: the WebSocket, gRPC, and other
// gateways.
type streams struct {
	relay *relay.Relay
	// handoff is how ext_proc gives requests to relay.
	handoff  dispatch.Handoff
	realtime *realtime.Handler
	grpc     *grpcapi.Server
	// tracer is nil without tracing.
	tracer *trace.Tracer
	// peers and their Redis are nil when this gateway does not reach others.
	peers      *peers.Peers
	peersRedis io.Closer
	// calls answers the requests that other gateways and other processes of this one forward.
	calls http.Handler
}

// makeStreams makes the relay and its entry points.
func (g *Gateway) makeStreams() error {
	c := g.options.Config
	s := new(streams)
	g.streams = s
	if err := errors.Join(g.makeTracer(), g.makePeers()); err != nil {
		return err
	}
	replicaHeader := func() bool { return g.config().ReplicaHeader }
	parts := relay.Config{
		Dispatcher: g.dispatcher, Handoff: &s.handoff, Requests: g.requests, Failed: g.failed, Rest: g.dispatcher.Rest,
		CloseDelimited: g.dispatcher.LearnCloseDelimited, Retried: g.retried, Gaps: g.observeGaps, Budget: g.usage.refuseByBudget, MayUse: g.mayUse,
		Workers: newWorkers, ReplicaHeader: replicaHeader, Log: g.log, Memory: g.memory.budget, MaxAnswer: g.memory.maxAnswer,
	}
	if s.tracer != nil {
		parts.StartTrace = s.startTrace
	}
	parts.Peers, parts.Elsewhere = s.kin(g), g.elsewhere
	s.handoff.Process = g.instance
	s.relay = relay.New(parts)
	s.calls = s.relay.PeerHandler(g.auth.Holder, int64(c.MaxBody))
	s.realtime = g.makeRealtime()
	s.grpc = &grpcapi.Server{Generator: s.relay, Tenants: g.auth.Caller, ReplicaHeader: replicaHeader, Alive: g.envoyOf}
	return nil
}

// newWorkers implements relay.Config.Workers.
func newWorkers(settings *tls.Config) http1.Client { return &grpcapi.Workers{TLS: settings} }

// isValidKey tells a predecessor whether a key belongs to the tenant now. A key that this process
// cannot judge yet is valid: the predecessor knows it.
func (g *Gateway) isValidKey(tenant, key string) bool { return !g.auth.Rejects(tenant, key) }

// watchKey is authz.Authenticator.Watch for connections that may outlast the service of this
// process. A retired process does not read the configuration any more, so it asks its successor.
func (g *Gateway) watchKey(tenant, key string) (valid func() bool) {
	own := g.auth.Watch(tenant, key)
	return func() bool {
		return own() && !(g.decisions.Retired() && carry.IsRevoked(context.Background(), kinSocket(g.dir), tenant, key))
	}
}

// allowsOrigin reports whether a page of another host may open WebSockets. Where callers need keys,
// it may.
func (g *Gateway) allowsOrigin(page string) bool {
	c := g.config()
	return !c.Auth.ByPlace() || c.CORS.Allows(page)
}

// makeRealtime returns the handler of WebSockets.
func (g *Gateway) makeRealtime() *realtime.Handler {
	c := g.options.Config
	return &realtime.Handler{
		Generator: g.streams.relay, Tenants: g.auth.Caller, Watch: g.watchKey, Requests: g.requests, Memory: g.memory.budget, Log: g.log,
		Limits:        realtime.Limits{Sockets: c.Realtime.MaxSockets, Idle: c.Realtime.Idle},
		TenantSockets: func(tenant string) int { return g.config().Sockets(tenant) },
		Allows:        g.allowsOrigin,
		Heartbeat:     func() time.Duration { return shortestHeartbeat(g.config()) },
	}
}

// kin returns the other processes of this gateway together with the remote gateways.
func (s *streams) kin(g *Gateway) *kin {
	all := &kin{log: g.log, carried: g.carried}
	if s.peers != nil {
		all.remote = s.peers
	}
	return all
}

// startTrace starts the trace of a managed stream. It returns nil if the stream is not traced.
func (s *streams) startTrace(a request.Arrival, traceparent string, received time.Time) relay.Trace {
	if call := s.tracer.Start(a, traceparent, received); call != nil {
		return call
	}
	return nil // a nil *trace.Call would be a Trace that is not nil
}

// components lists what runs until its context ends.
func (s *streams) components() []func(context.Context) error {
	var all []func(context.Context) error
	if s.peers != nil {
		all = append(all, s.runPeers, s.servePeers)
	}
	return all
}

// shortestHeartbeat is the shortest heartbeat interval of all models. A WebSocket uses it, because
// its requests may go to any model.
func shortestHeartbeat(c *config.Config) time.Duration {
	d := c.Discovered.Stream.Heartbeat
	for _, m := range c.Models {
		d = min(d, m.Stream.Heartbeat)
	}
	return d
}

// makeTracer makes the tracer if the configuration asks for tracing.
func (g *Gateway) makeTracer() error {
	t := g.options.Config.Tracing
	if t == nil {
		return nil
	}
	var err error
	g.streams.tracer, err = trace.New(trace.Config{
		Endpoint: t.Endpoint, Sample: t.Sample, Version: g.options.Version, Log: g.log,
		Headers: collectorHeaders(os.Getenv("OTEL_EXPORTER_OTLP_HEADERS")),
	})
	return err
}

// collectorHeaders reads OTEL_EXPORTER_OTLP_HEADERS: name=value pairs separated by commas, with
// values escaped as in URLs (OpenTelemetry specification, OTLP exporter).
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

// stopNotice is how long before the end of a drain the clients of managed streams get a notice.
// Envoy still runs then and can deliver it.
const stopNotice = time.Second

// drain closes each WebSocket when its requests have ended, because Envoy counts an idle WebSocket
// as a running request. Shortly before timeout it sends the stop notice to the clients of the
// remaining streams. The function that it returns sends the notice at once, and waits until all
// have it.
func (s *streams) drain(timeout time.Duration) (stop func()) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout-min(stopNotice, timeout/4))
	var closing sync.WaitGroup
	closing.Go(func() { s.realtime.Close(ctx) })
	closing.Go(func() {
		<-ctx.Done()
		told, cancel := context.WithTimeout(context.Background(), stopNotice)
		defer cancel()
		s.relay.Close(told)
	})
	return func() {
		cancel()
		closing.Wait()
	}
}

// makePeers makes the client of the other gateways of the same Redis, if the configuration asks for
// it.
func (g *Gateway) makePeers() error {
	c := g.options.Config
	if c.Peers == "" {
		return nil
	}
	client, err := redis.NewClient(*g.redis, c.RedisTimeout)
	if err != nil {
		return err
	}
	g.streams.peersRedis = client
	g.streams.peers, err = peers.New(peers.Config{Redis: client, Listen: c.Peers, Timeout: c.RedisTimeout,
		SlowTimeout: redis.BackgroundTimeout(c.RedisTimeout), Log: g.log})
	return err
}

// runPeers keeps this gateway registered for the others until ctx ends.
func (s *streams) runPeers(ctx context.Context) error {
	return errors.Join(s.peers.Run(ctx), s.peersRedis.Close())
}

// servePeers answers the requests that other gateways forward.
func (s *streams) servePeers(ctx context.Context) error {
	return s.peers.Serve(ctx, s.calls)
}

func streamRules(c *config.Config) *relay.Rules {
	rules := &relay.Rules{Default: streamPolicy(c.DiscoveredModel()), Models: map[string]relay.Policy{}}
	for _, m := range c.Models {
		rules.Models[m.Name] = streamPolicy(m)
	}
	for _, m := range c.Moderation {
		rules.Moderation = append(rules.Moderation, relay.Moderation{Models: m.Models, Tenants: m.Tenants, Rule: moderationRule(m)})
	}
	return rules
}

// wayPolicy returns the rules by which a model's requests become native or managed.
func wayPolicy(m config.Model) dispatch.WayPolicy {
	s := m.Stream
	return dispatch.WayPolicy{Mode: dispatch.Mode(s.Mode), Heartbeat: s.Heartbeat, Sample: s.Sample,
		Supervised: s.TTFTTimeout > 0 || s.StallTimeout > 0 || s.InjectUsage,
		GRPC:       m.Protocol == config.ProtocolGRPC, RerankAPI: m.RerankAPI == config.RerankTEI,
		RefusesAsFailure: engines.RefusesAsFailure(m.Engine), Messages: messagesRoutes(m.Routes)}
}

// moderated returns a func that reports whether moderation rules apply to a model and a tenant. It
// returns nil if there are no rules.
func moderated(c *config.Config) func(model, tenant string) bool {
	if len(c.Moderation) == 0 {
		return nil
	}
	return streamRules(c).Moderated
}

func streamPolicy(m config.Model) relay.Policy {
	s := m.Stream
	p := relay.Policy{
		Heartbeat: s.Heartbeat, EmptyChunks: s.HeartbeatAs == config.HeartbeatChunk, Resume: s.Resume,
		TTFTTimeout: s.TTFTTimeout, StallTimeout: s.StallTimeout, Usage: m.Usage, Sample: s.Sample,
		GRPC: m.Protocol == config.ProtocolGRPC,
	}
	if p.Usage == engines.UsageUnknown && s.InjectUsage {
		p.Usage = engines.UsageFinal
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
