package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/adminclient"
	"github.com/sluice-gateway/sluice/internal/certificates"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/connections"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/processors"
	"github.com/sluice-gateway/sluice/xds"
)

// envoyLink is the gateway's Envoy: the process, if the gateway runs it, and what it is told by
// xDS.
type envoyLink struct {
	log   *zap.Logger
	dir   *process.Dir
	fleet *engines.Fleet
	// instance is Gateway.instance.
	instance string
	// committed is the configuration that Envoy is told. The listener of its first holds until the
	// next start, whatever the file says later.
	committed
	server *xds.Server
	// process is nil when someone else runs Envoy.
	process *envoy.Envoy

	// mode is what Envoy does with new connections.
	mode atomic.Pointer[connections.Mode]
	// heap is how many bytes of its heap Envoy used when it was last asked.
	heap atomic.Int64
	// requests is Requests of the budget of the running Envoy, for the path of a request.
	requests atomic.Int64

	// gateways are the addresses of all gateways, as xds.Elsewhere has them; nil before the first
	// lookup.
	gateways atomic.Pointer[string]

	// filter is Sluice's own filter inside Envoy.
	filter *ownFilter

	// certificates are those of the listener; nil without tls.
	certificates *certificates.Follower
	// servedEnd is when the certificate ends that Envoy says to serve with; nil: not known.
	servedEnd atomic.Pointer[time.Time]

	// pushing is held while a change is sent to Envoy, so that an older view of the fleet never
	// replaces a newer one.
	pushing sync.Mutex
	// pushed is the last configuration that was sent to Envoy. Guarded by pushing.
	pushed *xds.Resources
}

func (g *Gateway) makeEnvoy() error {
	g.filter = &ownFilter{log: g.log, dir: g.dir, envoy: g.options.Envoy, push: func() error { return g.envoy.push() }}
	g.envoy = &envoyLink{
		log: g.log, dir: g.dir, fleet: g.fleet, instance: g.instance, filter: g.filter, committed: committed{first: g.options.Config},
		server: xds.NewServer(xds.ServerConfig{Log: g.log, OnAck: g.dispatcher.SetRoutable}),
	}
	g.envoy.mode.Store(new(connections.Mode))
	if t := g.options.Config.TLS; t != nil {
		var err error
		if g.envoy.certificates, err = certificates.Follow(t.Files(), "tls", g.log); err != nil {
			return err
		}
	}
	if g.options.Envoy == "" {
		return nil
	}
	b := bootstrap(g.dir)
	g.envoy.server.SetPredecessors(envoy.PredecessorNodes(g.dir, b))
	listen, err := netip.ParseAddrPort(g.options.Config.Listen)
	if err != nil {
		return err // the check of the configuration has refused such an address
	}
	b.Budget, b.PressureFile = envoyBudget(g.options.Config), pressureFile(g.dir, g.log)
	g.envoy.process = envoy.New(envoy.Config{
		Binary: g.options.Envoy, Dir: g.dir, Bootstrap: b, Listen: listen, Log: g.log,
		Probe: envoy.ProbeListener(adminclient.DialAddress(g.options.Config.Listen)), HangTimeout: hangTimeout(g.options.Config),
		DrainTime:          DrainTime(g.options.Config),
		PredecessorTimeout: func() time.Duration { return g.config().UpgradeTimeout }, OnPredecessors: g.envoy.server.SetPredecessors,
		Filter: g.filter.pathFor, Keeps: g.filter.keeps, Concurrency: workers(g.options.Config.Envoy.Workers, processors.Available()),
	})
	g.envoy.requests.Store(int64(b.Budget.Requests))
	g.guardConnections(listen, b.PressureFile)
	return nil
}

// workers returns the number of Envoy's workers; 0: Envoy counts its processors itself.
func workers(wanted, processors int) int {
	if wanted == 0 && processors > envoy.MostWorkers {
		return envoy.MostWorkers
	}
	return wanted
}

// components lists what runs until its context ends.
func (e *envoyLink) components() []func(context.Context) error {
	var all []func(context.Context) error
	if e.process != nil {
		all = append(all, e.process.Run, e.watchHeap)
	}
	if e.certificates != nil {
		all = append(all, e.followCertificates)
	}
	if e.first.Control.Listen != "" {
		all = append(all, e.followGateways)
	}
	return all
}

// stop drains and ends Envoy, if the gateway runs it.
func (e *envoyLink) stop(ctx context.Context, timeout time.Duration) error {
	if e.process == nil {
		return nil
	}
	return e.process.Stop(ctx, timeout)
}

// prepare checks that Envoy's resources can be built for c. The commit sends them to Envoy.
func (e *envoyLink) prepare(c *config.Config) (func() error, error) {
	var none *xds.Resources
	if _, err := none.Rebuild(e.resourceConfig(c), new(engines.Snapshot)); err != nil {
		return nil, err
	}
	return func() error {
		e.current.Store(c)
		return e.push()
	}, nil
}

// resourceConfig returns what Envoy's configuration contains besides the fleet.
func (e *envoyLink) resourceConfig(c *config.Config) xds.Config {
	return xds.Config{
		Listen: e.first.Listen, MaxBody: int64(e.first.MaxBody),
		MaxDuration: maxDuration(c), HideReplica: !c.ReplicaHeader,
		RelaySocket: relaySocket(e.dir), GRPCSocket: grpcSocket(e.dir), Instance: e.instance,
		MaxHeaders: e.first.MaxHeaders, MaxHeaderBytes: int(e.first.MaxHeaderBytes),
		FirstRequest: e.first.Connections.FirstRequest, MaxRelay: e.budget().Requests,
		TLS:    e.listenerTLS(),
		Filter: e.filter.of(c), Origins: strings.Join(c.CORS.Origins, " "),
		AskSource: e.mode.Load().AskSource, NearLimit: e.mode.Load().NearLimit, Elsewhere: e.envoysElsewhere(),
	}
}

// push sends the current fleet and configuration to Envoy.
func (e *envoyLink) push() error {
	e.pushing.Lock()
	defer e.pushing.Unlock()
	next, err := e.pushed.Rebuild(e.resourceConfig(e.config()), e.fleet.Snapshot())
	if err != nil {
		return err
	}
	e.logFaultsLocked(next)
	e.pushed = next
	e.server.Set(next)
	return nil
}

// logFaultsLocked logs what next leaves out of Envoy's configuration, each fault once.
func (e *envoyLink) logFaultsLocked(next *xds.Resources) {
	known := map[string]bool{}
	if e.pushed != nil {
		for _, fault := range e.pushed.Faults {
			known[fault.Error()] = true
		}
	}
	for _, fault := range next.Faults {
		if !known[fault.Error()] {
			e.log.Error("replica left out of Envoy's configuration", zap.Error(fault))
		}
	}
}

const (
	// closePatience is how long an Envoy that was killed may still have its port. The kernel closes
	// its sockets when the last of its threads has ended.
	closePatience = 2 * time.Second
	// closeInterval is how often checkListen looks meanwhile.
	closeInterval = 20 * time.Millisecond
)

// checkListen returns an error when another program listens on the address for clients. An Envoy of
// an earlier run may listen there, and one that is just ending is waited for.
func (e *envoyLink) checkListen(ctx context.Context, address string) error {
	if e.process == nil || e.runsAlready() {
		return nil
	}
	for until := time.Now().Add(closePatience); ; time.Sleep(closeInterval) {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		switch {
		case err == nil:
			return l.Close()
		case !errors.Is(err, unix.EADDRINUSE) || time.Now().After(until) || ctx.Err() != nil:
			return explainListen("listen", err)
		}
	}
}

// runsAlready reports whether the state directory has an Envoy of an earlier run.
func (e *envoyLink) runsAlready() bool { return len(runningEnvoys(e.dir)) > 0 }

// runningEnvoys lists the Envoys of a state directory as envoy.Running does.
func runningEnvoys(dir *process.Dir) []envoy.Instance { return envoy.Running(dir, bootstrap(dir)) }

// admins returns the admin interfaces of the Envoys of this host. The first is that of the Envoy
// that accepts requests.
func (e *envoyLink) admins() []envoy.Admin {
	var all []envoy.Admin
	for _, i := range runningEnvoys(e.dir) {
		all = append(all, i.Admin)
	}
	if len(all) == 0 { // someone else runs it, or it has ended
		all = append(all, envoy.Admin{Socket: bootstrap(e.dir).AdminSocket})
	}
	return all
}

// maxDuration is the longest response that any model allows. It is the bound of Envoy's routes.
func maxDuration(c *config.Config) time.Duration {
	d := xds.DefaultMaxDuration
	for _, m := range c.Models {
		d = max(d, m.Stream.MaxDuration)
	}
	return d
}

// DrainTime returns Envoy's drain time. A listener that changes cuts streams when it is over, so it
// is longer than any stream.
func DrainTime(c *config.Config) time.Duration { return maxDuration(c) + time.Minute }

// Bootstrap returns the bootstrap configuration for an Envoy that someone else runs beside the
// gateway of this configuration.
func Bootstrap(c *config.Config) ([]byte, error) {
	dir, err := process.Open(c.StateDir, nil)
	if err != nil {
		return nil, err
	}
	return envoy.Bootstrap(bootstrap(dir))
}

// bootstrap names the sockets that Envoy's bootstrap needs.
func bootstrap(dir *process.Dir) envoy.BootstrapConfig {
	return envoy.BootstrapConfig{
		ControlSocket: dir.Socket("control.sock"),
		APISocket:     dir.Socket("api.sock"),
		AdminSocket:   dir.Socket("envoy.sock"),
		Inlets:        envoy.Inlets{Socket: inletsSocket(dir), Gateway: filterSocket(dir)},
	}
}

// relaySocket and grpcSocket are where Envoy sends managed streams. Envoy learns them by xDS and
// not by its bootstrap, so that an Envoy that was started by an older version learns them too.
func relaySocket(dir *process.Dir) string { return dir.Socket("relay.sock") }
func grpcSocket(dir *process.Dir) string  { return dir.Socket("grpc.sock") }
