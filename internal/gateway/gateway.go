// Package gateway composes the parts of one Sluice process: it makes them from a configuration, runs them, puts changed
// configurations in force, drains, hands over and adopts what an earlier process left. The command sluice runs it.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/join"
	"github.com/sluice-gateway/sluice/engines/kubernetes"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/nodes"
	"github.com/sluice-gateway/sluice/engines/upstream"
	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/extproc"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/limits"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/relay"
	"github.com/sluice-gateway/sluice/internal/relay/grpcapi"
	"github.com/sluice-gateway/sluice/internal/relay/peers"
	"github.com/sluice-gateway/sluice/internal/relay/realtime"
	"github.com/sluice-gateway/sluice/internal/scale"
	"github.com/sluice-gateway/sluice/internal/telemetry"
	"github.com/sluice-gateway/sluice/internal/telemetry/trace"
	"github.com/sluice-gateway/sluice/xds"
)

// gateway is all parts of a running Sluice. They are made by newGateway, which starts nothing, and run by run.
type gateway struct {
	log      *zap.Logger
	started  time.Time
	self     string // path of this program
	settings Options
	watcher  *config.Watcher

	dir        *process.Dir
	fleet      *engines.Fleet
	auth       *authz.Authenticator
	admission  *admission.Controller
	shared     *redis.Store // nil without Redis
	limits     *limits.Overrides
	dispatcher *dispatch.Dispatcher
	scaler     *scale.Scaler
	local      *local.Launcher
	nodes      *nodes.Controller
	joined     *join.Server         // nil where no host can join
	kubernetes *kubernetes.Launcher // nil where nothing is said of Kubernetes
	objects    *objects             // nil without custom resources
	upstream   *upstream.Launcher
	xds        *xds.Server
	decisions  *extproc.Server
	relay      *relay.Relay
	realtime   *realtime.Handler
	llm        *grpcapi.Server
	tracer     *trace.Tracer // nil without tracing
	peers      *peers.Peers  // nil where gateways do not reach each other
	meeting    io.Closer     // their Redis
	envoy      *envoy.Envoy  // nil when someone else runs it
	requests   *telemetry.Requests
	metrics    *telemetry.Metrics

	uniting sync.Mutex
	// file is the file in force, which is put in force together with the custom resources; guarded by uniting
	file *config.Config
	// launching is held from the reading of what is wanted until the launcher has it, so that it never gets an older wish last.
	launching sync.Mutex
	// ruling is the same for the limits and the dispatcher.
	ruling sync.Mutex
	// reading is the same for the file and the limits: a reload and a model that appears may come at once.
	reading sync.Mutex

	pushing sync.Mutex
	// config is the one in force, with the custom resources; world what Envoy was last told; guarded by pushing
	config *config.Config
	world  *xds.Resources
}

// Options is what one run of a gateway is given.
type Options struct {
	// Config is the configuration to start with. A file that it was read from is watched for changes.
	Config *config.Config
	// Envoy is the path of the Envoy binary to run. It is empty when somebody else runs Envoy.
	Envoy string
	// Temporary says that the state directory was made for this run alone.
	Temporary bool
	// Version of this program, for the admin API and the metrics.
	Version string
	Log     *zap.Logger
}

// Run runs a gateway until ctx ends and then drains it, or until the process is told to hand over.
func Run(ctx context.Context, s Options) error {
	log := s.Log
	if err := process.RaiseFileLimit(); err != nil {
		log.Warn("the limit of open files stays low", zap.Error(err))
	}
	dir, err := process.Open(s.Config.StateDir, log)
	if err != nil {
		return err
	}
	if err := dir.Claim(ctx); err != nil {
		return err
	}
	defer dir.Release() //nolint:errcheck // the process ends anyway
	g, err := newGateway(log, dir, s)
	if err != nil {
		return err
	}
	return g.run(ctx)
}

func newGateway(log *zap.Logger, dir *process.Dir, s Options) (*gateway, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := s.Config
	g := &gateway{log: log, started: time.Now(), self: self, settings: s, file: c, config: c, dir: dir,
		fleet: engines.NewFleet(), auth: new(authz.Authenticator), requests: telemetry.NewRequests(0),
	}
	if err := g.makeAdmission(); err != nil {
		return nil, err
	}
	g.metrics = telemetry.NewMetrics(telemetry.MetricsConfig{Version: s.Version, Gauges: g.gauges, KnownModel: g.knownModel})
	g.scaler = scale.New(scale.Config{Load: g.load, Apply: g.launch, Log: log})
	// apply sets the rules.
	g.dispatcher = dispatch.New(dispatch.Config{Fleet: g.fleet, Admission: g.admission, Demand: g.demand, Shared: g.shared != nil})
	if err := g.makeLaunchers(dir, c); err != nil {
		return nil, err
	}
	g.xds = xds.NewServer(xds.ServerConfig{Log: log, OnAck: g.dispatcher.SetRoutable})
	if err := g.makeRelay(c); err != nil {
		return nil, err
	}
	g.decisions = extproc.New(extproc.Config{Authenticator: g.auth, Dispatcher: g.dispatcher, Relay: g.relay, Trace: g.tracer.Inject, MaxBody: int64(c.MaxBody),
		Journal: journal{g.requests, g.metrics, g.dispatcher}, Log: log})
	if s.Envoy != "" {
		g.envoy = envoy.New(envoy.Config{Binary: s.Envoy, Dir: dir, Bootstrap: bootstrap(dir), Log: log})
	}
	g.watcher = config.NewWatcher(config.WatcherConfig{Current: c, Apply: g.reload, OnFault: func(err error) {
		g.metrics.ConfigReloaded(false)
		log.Error("the new configuration is not taken; the one in force stays", zap.Error(err))
	}})
	return g, nil
}

// apply puts a configuration in force.
func (g *gateway) apply(c *config.Config) error {
	if err := g.auth.Set(authConfig(c)); err != nil {
		return err
	}
	g.pushing.Lock()
	g.config = c
	g.pushing.Unlock()
	g.fleet.Set("none", admitted(c))
	g.setLimits()
	g.relay.SetRules(streamRules(c))
	g.scaler.Set(scales(c))
	g.launch()
	g.upstream.Set(upstreams(c))
	for _, warning := range c.Warnings() {
		g.log.Warn(warning)
	}
	return g.push()
}

// unite puts a file in force together with the custom resources as they are now; nil is the file that is in force already.
func (g *gateway) unite(file *config.Config) error {
	g.uniting.Lock()
	defer g.uniting.Unlock()
	if file == nil {
		file = g.file
	}
	c, err := g.objects.with(file)
	if err != nil {
		return err
	}
	if err := g.apply(c); err != nil {
		return err
	}
	g.file = file
	return nil
}

// reload puts a new file in force.
func (g *gateway) reload(c *config.Config) error {
	err := g.unite(c)
	if err == nil {
		g.metrics.ConfigReloaded(true)
		g.log.Info("configuration reloaded", zap.Strings("waiting_for_the_next_start", g.settings.Config.NeedsRestart(c)))
	}
	return err
}

// run brings the parts up in the order in which they need each other: what exists is adopted first, so that the first answer
// Envoy gets is the whole world; then the listeners; then everything that keeps the world true.
func (g *gateway) run(ctx context.Context) error {
	// From here on to the end: a reload or a hand-over that comes too early or too late must not kill.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, handOverSignal)
	c := g.settings.Config
	if err := g.checkListen(ctx, c.Listen); err != nil {
		return err
	}
	g.adoptLocal(c)
	if err := g.admission.RecoverTasks(); err != nil {
		return err
	}
	if err := g.apply(c); err != nil {
		return err
	}
	// The parts outlive ctx: they are needed to drain.
	parts, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group, parts := errgroup.WithContext(parts)
	if err := g.serveHosts(parts, group); err != nil {
		return err
	}
	g.watchPods(parts, group)
	g.lookAround(ctx)
	if err := g.push(); err != nil {
		return err
	}
	g.inherit(ctx)
	sockets, err := g.listen()
	if err != nil {
		return err
	}
	guard := guardCommand(g.self, g.dir.Path(), c.OrphanGrace)
	if err := g.dir.StartGuard(guard); err != nil { // before anything that would need it
		return errors.Join(err, sockets.close())
	}
	sockets.serve(parts, group)
	for _, part := range g.parts(guard) {
		group.Go(func() error { return part(parts) })
	}
	g.log.Info("serving", zap.String("api", c.Listen), zap.String("admin", c.Admin))

	if !g.await(ctx, parts, signals) {
		err := g.drain(c.DrainTimeout)
		end()
		return errors.Join(err, group.Wait())
	}
	g.stopStreams(handOverPatience)
	sockets.lastWords(handOverPatience)
	end()
	err = group.Wait()
	if err != nil {
		g.log.Error("a part ended with a fault", zap.Error(err))
	}
	if ctx.Err() == nil {
		err = errors.Join(err, g.replaceSelf())
	}
	// It is not to be, or could not be: leave nothing behind.
	return errors.Join(err, g.drain(c.DrainTimeout))
}

// parts are what keeps the world true, each until its context ends.
func (g *gateway) parts(guard []string) []func(context.Context) error {
	parts := []func(context.Context) error{
		g.dispatcher.Run, g.local.Run, g.nodes.Run, g.upstream.Run, g.scaler.Run, g.follow, g.settle, g.watcher.Run, g.awaitLateHosts,
		func(ctx context.Context) error { return g.dir.KeepGuard(ctx, guard) },
	}
	if g.envoy != nil {
		parts = append(parts, g.envoy.Run)
	}
	if g.shared != nil {
		parts = append(parts, g.shared.Run)
	}
	if g.objects != nil {
		parts = append(parts, g.objects.run)
	}
	if g.tracer != nil {
		parts = append(parts, g.tracer.Run)
	}
	if g.peers != nil {
		parts = append(parts, g.runPeers, g.servePeers)
	}
	return parts
}

// lookAround gives the upstreams, the hosts that have joined and Kubernetes a moment to say what they have before Envoy is told the world.
func (g *gateway) lookAround(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var asked sync.WaitGroup
	asked.Go(func() { g.upstream.CheckOnce(ctx) })
	asked.Go(func() { g.awaitHosts(ctx) })
	asked.Go(func() { g.awaitPods(ctx) })
	asked.Wait()
}

// checkListen tells early that the clients' address is taken by somebody else. Envoy of before a crash may have it.
func (g *gateway) checkListen(ctx context.Context, address string) error {
	if g.envoy == nil {
		return nil
	}
	for _, r := range g.dir.Records() {
		if r.Name == envoy.RecordName {
			return nil
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return l.Close()
}

// follow tells Envoy of every change of the fleet. Models that were discovered get limits that can be changed.
func (g *gateway) follow(ctx context.Context) error {
	known := g.discovered()
	for {
		_, changed := g.fleet.Watch()
		if now := g.discovered(); !slices.Equal(known, now) {
			known = now
			g.setLimits()
		}
		if err := g.push(); err != nil {
			g.log.Error("Envoy was not told of a change", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// push tells Envoy the world as it is now. What cannot be changed without a restart is as it was at the start.
func (g *gateway) push() error {
	g.pushing.Lock()
	defer g.pushing.Unlock()
	first := g.settings.Config
	world, err := g.world.Rebuild(xds.Config{
		Listen: first.Listen, MaxBody: int64(first.MaxBody),
		MaxDuration: longest(g.config), HideReplica: !g.config.ReplicaHeader,
		RelaySocket: relaySocket(g.dir), GRPCSocket: grpcSocket(g.dir),
	}, g.fleet.Snapshot())
	if err != nil {
		return err
	}
	g.logFaults(world)
	g.world = world
	g.xds.Set(world)
	return nil
}

// logFaults tells what Envoy is not told of, once.
func (g *gateway) logFaults(world *xds.Resources) {
	known := map[string]bool{}
	if g.world != nil {
		for _, fault := range g.world.Faults {
			known[fault.Error()] = true
		}
	}
	for _, fault := range world.Faults {
		if !known[fault.Error()] {
			g.log.Error("left out of Envoy's configuration", zap.Error(fault))
		}
	}
}

// longest is the largest duration that any model allows: the route's own bound.
func longest(c *config.Config) time.Duration {
	d := xds.DefaultMaxDuration
	for _, m := range c.Models {
		d = max(d, m.Stream.MaxDuration)
	}
	return d
}

// drain ends everything that Sluice started: Envoy first, when its responses have ended or the time is up, then the replicas. A second
// signal ends everything at once.
func (g *gateway) drain(timeout time.Duration) error {
	g.log.Info("draining", zap.Duration("at_most", timeout))
	g.admission.Close() // who waits holds nothing, and is answered now
	ctx, cancel := context.WithTimeout(context.Background(), timeout+30*time.Second)
	defer cancel()
	defer hurry(ctx, g.dir, g.log)()
	var faults [3]error
	stopStreams := g.drainStreams(timeout)
	if g.envoy != nil {
		faults[0] = g.envoy.Stop(ctx, timeout)
	}
	stopStreams()
	var stopping sync.WaitGroup // all hosts at once: none takes another's time
	if g.joined != nil {
		stopping.Go(func() { faults[1] = g.joined.Stop(ctx) })
	}
	stopping.Go(func() { faults[2] = g.local.Stop(ctx) })
	stopping.Wait()
	return errors.Join(errors.Join(faults[:]...), g.dir.EndAll(ctx, 5*time.Second))
}

// discovered lists the models that the file does not name.
func (g *gateway) discovered() []string {
	var names []string
	for name, m := range g.fleet.Snapshot().Models {
		if m.Discovered {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// knownModel says whether the name is a model's, for labels that clients must not be able to multiply.
func (g *gateway) knownModel(name string) bool {
	_, ok := g.fleet.Snapshot().Models[name]
	return ok
}
