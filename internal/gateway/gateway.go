// Package gateway composes the parts of one Sluice process. The commands up, serve, restart and
// node of cmd/sluice use it. It makes the parts from a configuration, runs them, puts changed
// configurations in force, drains, hands over, and adopts what an earlier process left running.
//
// Read gateway.go (the parts and their life), settings.go and plan.go (a change of the
// configuration), then the file of the part in question: limits.go, launchers.go, envoy.go,
// streams.go, resources.go.
package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/news"
	"github.com/sluice-gateway/sluice/extproc"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/carry"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/connections"
	"github.com/sluice-gateway/sluice/internal/console"
	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/history"
	"github.com/sluice-gateway/sluice/internal/jwks"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/processors"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

// Options are the options of New and Run.
type Options struct {
	// Config is the configuration to start with. The file that it was read from is watched.
	Config *config.Config
	// file is the file in force. It differs from Config in fields that need a restart and in custom
	// resources. nil: Config.
	file *config.Config
	// Envoy is the path of the Envoy binary to run. It is empty when someone else runs Envoy.
	Envoy string
	// Force starts the gateway although the configuration has none of the models whose replicas an
	// earlier run has left, which ends them.
	Force bool
	// Temporary tells that the state directory was created for this run alone.
	Temporary bool
	// Version is the version of this program, for the admin API and the metrics.
	Version string
	Log     *zap.Logger
	// Console shows a person what the gateway does. nil means that nobody watches.
	Console *console.Console
}

// Gateway is one Sluice process with its Envoy. New makes it and starts nothing; run runs it.
type Gateway struct {
	options Options
	log     *zap.Logger
	started time.Time
	// uncounted says that requests of an earlier run may run that nobody has counted.
	uncounted atomic.Bool
	// self is the path of this program, for the guard and for replicas of the simulated engine.
	self string
	dir  *process.Dir

	fleet      *engines.Fleet
	auth       *authz.Authenticator
	tokens     *jwks.Verifier
	keys       *keyKeeper
	admission  *admission.Controller
	dispatcher *dispatch.Dispatcher
	decisions  *extproc.Server
	filter     *ownFilter
	requests   *request.Store
	metrics    *telemetry.Metrics
	// requestLog is the access log; nil: it is off.
	requestLog *telemetry.RequestLog
	conditions *condition.Registry
	usage      *ledger
	// past keeps the samples of the last 24 hours, traffic counts for the next one. events tells
	// the clients of the admin listener.
	past    *history.Store
	traffic *history.Traffic
	events  *admin.Events
	// news asks the replicas how busy their engines are.
	news *news.Reader
	// drainUntil is when a drain ends the requests that still run; nil before a drain.
	drainUntil atomic.Pointer[time.Time]

	settings settings
	watcher  *config.Watcher
	limits   *limitKeeper
	// redis says how to connect to Redis; nil: there is none.
	redis *redis.Server
	// routing is nil without Redis.
	routing *remoteRouting
	// access says who may use the admin listener. It holds nil while everybody may.
	access    atomic.Pointer[admin.Access]
	launchers *launchers
	operator  *operator
	responses *responseKeeper
	envoy     *envoyLink
	// guard is nil when someone else runs Envoy.
	guard     *connections.Guard
	streams   *streams
	accessLog telemetry.AccessLog
	memory    processMemory
	// signals gets what other processes tell this one, stops the signals of its supervisor.
	signals <-chan os.Signal
	stops   stops
	// adopted says that processes of an earlier run were there at the start. start sets it.
	adopted bool
	// parts run under the configuration, see configParts.
	parts []part

	// managing runs what one process at a time may do: what changes replicas, Envoy, and the state
	// directory. serving runs the rest. A retired process only serves.
	managing, serving *scope
	// departures wait for the metrics.
	departures departures
	// logging runs the access log, which outlives everything else.
	logging *scope
	sockets *sockets

	// first is the process that the supervisor of the gateway knows. instance is random.
	first    int
	instance string
	// carried counts what predecessors hold; predecessors runs its server.
	carried      *carry.Server
	predecessors *scope
	succession   succession
}

// Run makes a gateway in the state directory of its configuration and runs it until ctx ends or the
// process is told to hand over. It fails when another process holds the state directory.
func Run(ctx context.Context, o Options) error {
	if err := process.RaiseFileLimit(); err != nil {
		o.Log.Warn("limit of open files not raised", zap.Error(err))
	}
	from, err := inheritedTakeOver()
	if err != nil {
		return err
	}
	signals, stops := catchSignals(), catchStops()
	dir, err := openState(ctx, o.Config.StateDir, o.Log)
	if err != nil {
		return from.fail(err)
	}
	if from == nil {
		if err := dir.Claim(ctx); err != nil {
			return err
		}
		defer dir.Release()
	}
	g, err := New(dir, o)
	if err != nil {
		return from.fail(err)
	}
	g.signals, g.stops = signals, stops
	if from != nil {
		return g.takeOver(ctx, from)
	}
	return g.run(ctx, nil)
}

// New makes a gateway. It starts nothing.
func New(dir *process.Dir, o Options) (*Gateway, error) {
	if err := CheckFilterVariable(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	g := &Gateway{
		options: o, log: o.Log, started: time.Now(), self: self, dir: dir,
		fleet: engines.NewFleet(), auth: new(authz.Authenticator), tokens: jwks.New(o.Log), requests: request.NewStore(0),
		conditions: condition.New(o.Log), first: os.Getpid(), instance: randomName(4), succession: succession{drainOrders: make(chan time.Duration, 1)},
	}
	g.accessLog.OnEntry = g.observe
	g.settings.first, g.settings.file = o.Config, cmp.Or(o.file, o.Config)
	g.metrics = telemetry.NewMetrics(telemetry.MetricsConfig{Version: o.Version, Gauges: g.gauges, Names: g.names, KnownModel: g.knownModel})
	g.makeHistory()
	if err := g.makeRedis(); err != nil {
		return nil, err
	}
	if err := errors.Join(g.makeUsage(), g.makeAdmission()); err != nil {
		return nil, err
	}
	g.carried = carry.NewServer(g.dispatcher, o.Log)
	g.news = news.New(news.Config{Fleet: g.fleet, Tell: g.tellNews})
	if err := g.makeLaunchers(); err != nil {
		return nil, err
	}
	if err := g.makeEnvoy(); err != nil {
		return nil, err
	}
	g.accessLog.Elsewhere = g.envoy.hasLeft
	if err := g.makeKeys(); err != nil {
		return nil, err
	}
	g.makeMemory()
	if err := g.makeStreams(); err != nil {
		return nil, err
	}
	if g.requestLog, err = telemetry.NewRequestLog(g.accessLogConfig()); err != nil {
		return nil, err
	}
	g.requests.Subscribe(g.subscribers())
	g.decisions = extproc.New(decide.New(decide.Config{
		Authenticator: g.auth, Dispatcher: g.dispatcher, Budget: g.usage.budgetOf, Handoff: &g.streams.handoff, Trace: g.streams.tracer.Inject,
		MaxBody: int64(o.Config.MaxBody), MaxHeaders: headerLimits(o.Config), Uploads: g.uploadLimits(), MaxOpen: g.envoy.maxOpen,
		Lives: process.Runs, Requests: g.requests, Log: g.log,
	}))
	g.decisions.Advertise = o.Config.Control.Advertise
	g.watcher = config.NewWatcher(config.WatcherConfig{
		Current: g.settings.file, Started: o.Config, Apply: g.reload, Confirm: g.mustConfirm, OnFault: func(err error) {
			g.metrics.ConfigReloaded(false)
			g.log.Error("new configuration refused, the one in force stays", zap.Error(err))
		},
	})
	g.watchConditions()
	g.succession.start = g.startSuccessor
	g.parts = g.configParts()
	g.carried.Ended, g.carried.Used, g.carried.Retried = g.addEnded, g.addUsed, g.metrics.Retried
	return g, nil
}

// randomName returns a name of so many random bytes, in hex digits.
func randomName(bytes int) string {
	random := make([]byte, bytes)
	rand.Read(random) //nolint:errcheck // never fails
	return hex.EncodeToString(random)
}

// run starts the parts in the order of their dependencies. It first adopts existing processes, so
// that Envoy's first configuration is complete. It then opens the listeners, and then starts the
// components that keep the parts up to date. from is the hand-over that started this gateway; nil:
// there was none.
//
// run returns when the gateway has drained; in a process that was started first also when a later
// process has. The error is ErrHandedOver when another process serves the gateway.
func (g *Gateway) run(ctx context.Context, from *takeOver) error {
	ended := make(chan struct{})
	defer close(ended) // when everything below has ended
	signalled := ctx   // it ends with the first signal of g.stops
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// The parts run on after ctx has ended, because drain needs them.
	g.managing, g.serving, g.predecessors = newScope(ctx), newScope(ctx), newScope(ctx)
	g.logging = newScope(ctx)
	g.logging.Go(func() error { return g.requestLog.Run(g.logging.ctx) })
	if g.streams.tracer != nil { // it is told of requests that end last, as the log is
		g.logging.Go(func() error { return g.streams.tracer.Run(g.logging.ctx) })
	}
	defer g.logging.stop() //nolint:errcheck // nobody is left to tell
	defer g.requests.TellFinished()
	defer g.managing.end()
	defer g.serving.end()
	defer g.predecessors.end()
	if g.options.Console != nil {
		g.managing.Go(func() error { return g.options.Console.Run(g.managing.ctx, g.consoleState) })
	}
	if err := g.start(ctx, from); err != nil {
		return err
	}
	for g.await(ctx, stop) {
		s, err := g.handOver(ctx)
		if err == nil {
			return g.carryOn(ctx, s)
		}
		g.succession.failure.note(err)
		if errors.Is(err, errToldToStop) {
			stop()
		}
		if g.managing.ctx.Err() != nil {
			g.log.Error("no process has taken over, shutting down", zap.Error(err))
			break
		}
		g.log.Error("new process did not start, this one goes on", zap.Error(err))
	}
	defer os.Remove(carriedSocket(g.dir, g.instance)) //nolint:errcheck // nobody uses it any more
	g.stops.told, g.stops.ended = signalled.Err() == nil, ended
	err := g.stop(ctx, g.options.Config.DrainTimeout)
	return errors.Join(err, g.managing.stop(), g.serving.stop(), g.predecessors.stop())
}

// start adopts what exists, opens the listeners and starts all components. It returns when all have
// been started.
func (g *Gateway) start(ctx context.Context, from *takeOver) error {
	c := g.options.Config
	if err := g.envoy.checkListen(ctx, c.Listen); err != nil {
		return err
	}
	if err := g.checkFound(c); err != nil {
		return err
	}
	g.adopted = len(g.dir.Records()) > 0
	g.makeFilter()
	g.launchers.adoptLocal(c)
	if err := g.admission.RecoverTasks(); err != nil {
		g.log.Error("tasks of the earlier run recovered with faults", zap.Error(err))
	}
	g.operator.restore()
	g.responses.restore()
	if err := g.applyFirst(); err != nil {
		return err
	}
	if err := g.launchers.serveNodes(g.managing.ctx, g.managing.Group); err != nil {
		return err
	}
	g.launchers.watchKubernetes(g.managing.ctx, g.managing.Group)
	g.launchers.watchRay(g.managing.ctx, g.managing.Group)
	g.launchers.awaitFirstReports(ctx)
	g.limits.discover(g.fleet.Snapshot()) // the first requests find the limits of run time in force
	g.envoy.resolveGateways(ctx)
	if err := g.envoy.push(); err != nil {
		return err
	}
	if err := g.countEarlierRequests(ctx, from); err != nil {
		return err
	}
	var inherited map[string]net.Listener
	if from == nil {
		removeCarriedSockets(g.dir)
	} else {
		inherited = from.listeners
	}
	var err error
	if g.sockets, err = g.listen(inherited); err != nil {
		return err
	}
	guard := guardCommand(g.self, g.dir.Path(), c.OrphanGrace)
	if err := g.dir.StartGuard(guard); err != nil { // before any process that would need the guard
		return errors.Join(err, g.sockets.close())
	}
	g.keys.readFirst(ctx)
	g.sockets.serve(g.serving)
	g.managing.run(g.managers(guard))
	g.serving.run(g.servants())
	if from != nil {
		from.closeUnused(g.sockets)
		return from.conn.send(handOverMessage{Serving: true})
	}
	return nil
}

// countEarlierRequests counts the requests that Envoy or earlier processes still carry.
func (g *Gateway) countEarlierRequests(ctx context.Context, from *takeOver) error {
	l, err := listenUnix(carrySocket(g.dir))
	if err != nil {
		return err
	}
	g.predecessors.Go(func() error { return g.carried.Serve(g.predecessors.ctx, l) })
	if from == nil {
		g.recoverRequests(ctx)
		return nil
	}
	from.recover(g.dispatcher)
	if g.envoy.process == nil {
		g.envoy.server.Inherit(from.take.Routable)
	}
	return from.awaitPredecessors(ctx, g)
}

// managers lists what only one process at a time may run: what changes replicas, Envoy and the
// state directory.
func (g *Gateway) managers(guard []string) []func(context.Context) error {
	all := []func(context.Context) error{
		g.followFleet, g.freeRecovered, g.watcher.Run, g.conditions.Run, g.watchState, g.news.Run, g.announce, g.operator.run, g.responses.run,
		func(ctx context.Context) error { return g.dir.KeepGuard(ctx, guard) },
	}
	all = append(all, g.launchers.components()...)
	all = append(append(all, g.envoy.components()...), g.past.Run)
	if g.guard != nil {
		all = append(all, g.guard.Run)
	}
	return all
}

// servants lists what requests need as long as one runs.
func (g *Gateway) servants() []func(context.Context) error {
	all := []func(context.Context) error{g.dispatcher.Run, g.tokens.Run, g.keys.run, g.watchFirst, g.memory.monitor.Run, g.usage.Run, processors.Run}
	all = append(all, g.limits.components()...)
	all = append(all, g.routing.components()...)
	return append(all, g.streams.components()...)
}

// watchFirst ends this process when the process that its supervisor knows has been killed: the
// supervisor then starts another one, which adopts everything.
func (g *Gateway) watchFirst(context.Context) error {
	if g.first != os.Getpid() {
		go func() {
			process.AwaitEnd(g.first)
			g.log.Error("first process of the gateway was killed, ending this one too", zap.Int("pid", g.first))
			os.Exit(1)
		}()
	}
	return nil
}

// followFleet tells Envoy of every change of the fleet until ctx ends, and gives discovered models
// their limits.
func (g *Gateway) followFleet(ctx context.Context) error {
	last := g.fleet.Snapshot()
	for {
		snapshot, changed := g.fleet.Watch()
		for _, r := range loaded(last, snapshot) {
			g.metrics.Loaded(r.Model, r.LoadTime)
		}
		last = snapshot
		g.limits.discover(snapshot)
		if err := g.envoy.push(); err != nil {
			g.log.Error("Envoy was not told of a changed fleet", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// drain stops all processes that Sluice has started. It first stops Envoy, when Envoy's responses
// have ended or after the timeout, and then the replicas of all nodes. An Envoy that someone else
// runs has the same time. On a second signal drain stops all at once.
func (g *Gateway) drain(timeout time.Duration) error {
	until := time.Now().Add(timeout)
	g.drainUntil.Store(&until)
	g.conditions.Mute()
	ctx, cancel := context.WithTimeout(context.Background(), timeout+30*time.Second)
	defer cancel()
	g.log.Info("drain started", zap.Duration("at_most", timeout))
	unhurried, end := g.stops.hurry(ctx, timeout, g.dir, g.log)
	defer end()
	timeout = g.leaveEnvoys(unhurried, timeout)
	g.admission.Close() // a request that waits holds nothing, so its client is answered now
	g.carried.Drain(timeout)
	stopStreams := g.streams.drain(timeout)
	g.awaitEnvoys(unhurried, timeout)
	failed := g.envoy.stop(ctx, timeout)
	stopStreams()
	stopOwn := g.launchers.local.Stop
	if failed == nil && g.envoy.process != nil && g.sockets.remote == nil {
		stopOwn = g.launchers.local.StopUnread // the only Envoy has ended, and the relay too
	}
	failed = errors.Join(failed, g.launchers.stop(ctx, stopOwn))
	return errors.Join(failed, g.dir.EndAll(ctx, 5*time.Second))
}

// knownModel reports whether a model or a pool has this name. The metrics use it, so that clients
// cannot create labels without bound.
func (g *Gateway) knownModel(name string) bool {
	if _, ok := g.fleet.Snapshot().Models[name]; ok {
		return true
	}
	return slices.ContainsFunc(g.config().Pools, func(p config.Pool) bool { return p.Name == name })
}
