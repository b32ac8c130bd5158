package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/join"
	"github.com/sluice-gateway/sluice/engines/kubernetes"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/nodes"
	"github.com/sluice-gateway/sluice/engines/ray"
	"github.com/sluice-gateway/sluice/engines/upstream"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/scale"
)

// launchers are all launchers of replicas, and the scaler that decides how many replicas a model
// has. The launchers report the existing replicas to the fleet. apply gives them the wanted models.
type launchers struct {
	log        *zap.Logger
	self       string
	fleet      *engines.Fleet
	admission  *admission.Controller
	dispatcher *dispatch.Dispatcher
	committed

	scaler   *scale.Scaler
	local    *local.Launcher
	nodes    *nodes.Controller
	upstream *upstream.Launcher
	// joined is nil when no node can join.
	joined *join.Server
	// kubernetes is nil when the configuration does not use Kubernetes.
	kubernetes *kubernetes.Launcher
	// ray is nil when the configuration does not use Ray.
	ray *ray.Launcher
	// rayRedis is nil when ray shares nothing.
	rayRedis io.Closer
	// resources is nil without custom resources.
	resources *customResources

	overridesMu sync.Mutex
	// overrides are the bounds that an operator has set, by model; guarded by overridesMu
	overrides map[string]admin.Bounds

	// applying is held from the reading of the wanted models until the launchers or the scaler have
	// them, so that older models never replace newer ones.
	applying sync.Mutex
}

// makeLaunchers makes the launchers that the configuration asks for.
func (g *Gateway) makeLaunchers() error {
	c := g.options.Config
	l := &launchers{
		log: g.log, self: g.self, fleet: g.fleet, admission: g.admission, dispatcher: g.dispatcher, committed: committed{first: c},
	}
	l.scaler = scale.New(scale.Config{Load: l.load, Apply: l.applyScaled, Log: g.log})
	l.local = local.New(local.Config{
		Dir: g.dir, Fleet: g.fleet, Log: g.log, InFlight: g.dispatcher.Load, DrainTimeout: c.DrainTimeout,
		OnHealthy: g.dispatcher.EndSuspension, Inventory: local.NewInventory(),
	})
	l.upstream = upstream.New(upstream.Config{Fleet: g.fleet, Log: g.log, Drained: func(replica string) bool { return g.operator.IsDrained(replica) }})
	l.nodes = nodes.New(nodes.Config{
		Fleet: g.fleet, Local: &ownNode{l.local, l.labels}, Joined: l.joinedNodes, InFlight: g.dispatcher.Load,
		Idle: l.idleModels, Evict: l.evict, Log: g.log,
	})
	if c.Control.Nodes != "" {
		var err error
		l.joined, err = join.NewServer(join.ServerConfig{
			Dir: joinDir(g.dir.Path()), Fleet: g.fleet, InFlight: g.dispatcher.LoadAt,
			DrainTimeout: c.DrainTimeout, Changed: l.nodes.Trigger, Labels: l.labels, Addresses: l.addresses,
			OwnName: func() string { return l.local.Node().Name }, Log: g.log,
		})
		if err != nil {
			return err
		}
	}
	if c.Kubernetes != nil {
		l.makeKubernetes(*c.Kubernetes, g.reapply)
	}
	if c.Ray != nil {
		if err := l.makeRay(c, g.redis); err != nil {
			return err
		}
	}
	g.launchers = l
	g.operator = newOperator(g, l)
	return nil
}

// makeKubernetes makes the launcher of pods, and the watcher of custom resources if the
// configuration asks for it. reapply puts the custom resources in force when they have changed.
func (l *launchers) makeKubernetes(c config.Kubernetes, reapply func() error) {
	access := kubernetes.Access{Kubeconfig: c.Kubeconfig, Context: c.Context}
	l.kubernetes = kubernetes.New(kubernetes.Config{
		Access: access, Namespace: c.Namespace, Name: c.Name, Fleet: l.fleet, Identity: os.Getenv("POD_NAME"),
		Load: l.reportedLoad, InFlight: l.dispatcher.Load, OnFound: l.keepFound, OnDemand: l.scaler.ReportDemand, Log: l.log,
	})
	if c.CustomResources {
		l.resources = newCustomResources(l, access, c.Namespace, reapply)
	}
}

// components lists what runs until its context ends. The servers of start are not among it.
func (l *launchers) components() []func(context.Context) error {
	all := []func(context.Context) error{
		l.local.Run, l.nodes.Run, l.upstream.Run, l.scaler.Run, l.awaitLateNodes,
	}
	if l.resources != nil {
		all = append(all, l.resources.run)
	}
	return all
}

// prepare builds what the launchers are told under c. They have nothing to refuse: internal/config
// has checked c. The commit tells them. If the file has changed, the commit also ends the scales of
// operators. A file that another part refuses does not end them, as the launchers come last.
func (l *launchers) prepare(c *config.Config) (func() error, error) {
	servers := upstreams(c)
	return func() error {
		if c.Hash != l.config().Hash {
			l.setOverrides(nil)
		}
		l.resources.commit(c)
		l.current.Store(c)
		l.upstream.Set(servers) // first: a discovered server must leave a name before a new model takes it
		l.setScales()
		l.apply()
		if l.joined != nil {
			l.joined.Republish() // with the addresses of nodes that c lists
		}
		return nil
	}, nil
}

// apply gives the launchers the models of the configuration in force, with the scaler's numbers of
// replicas.
func (l *launchers) apply() {
	l.applying.Lock()
	defer l.applying.Unlock()
	// This is read first: once it is true, the configuration has the custom resources.
	complete := l.resources.known()
	c := l.withOverrides(l.config())
	l.nodes.Set(localModels(c, l.self, l.scaler.Desired))
	if l.ray != nil {
		l.ray.Set(rayModels(c, l.scaler.Desired))
	}
	switch {
	case l.kubernetes == nil:
	case complete:
		l.kubernetes.Set(l.podModels(c))
	default: // a pod that runs may belong to a custom resource that is not known yet
		l.kubernetes.SetPartial(l.podModels(c))
	}
}

// adoptLocal adopts the replicas that an earlier run left on this node. It runs before the rest of
// the fleet is known.
func (l *launchers) adoptLocal(c *config.Config) {
	found, counts := l.local.Found(), map[string]int{}
	for model, indices := range found {
		counts[model] = len(indices)
	}
	l.scaler.Adopt(counts)
	l.scaler.Set(scales(c))
	models := localModels(c, l.self, l.scaler.Desired)
	for i := range models {
		models[i].Indices = append([]int{}, found[models[i].Name]...)
	}
	l.local.Adopt(models)
}

const (
	// firstReportTimeout bounds the wait for the first reports of upstreams, nodes, Kubernetes and
	// Ray.
	firstReportTimeout = 2 * time.Second
	// firstReportInterval is how often it is looked whether Kubernetes and Ray have reported.
	firstReportInterval = 20 * time.Millisecond
)

// awaitFirstReports waits up to firstReportTimeout for the first reports of upstreams, nodes,
// Kubernetes and Ray, so that Envoy's first configuration is as complete as possible.
func (l *launchers) awaitFirstReports(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstReportTimeout)
	defer cancel()
	var waiting sync.WaitGroup
	waiting.Go(func() { l.upstream.CheckOnce(ctx) })
	waiting.Go(func() { l.awaitNodes(ctx) })
	waiting.Go(func() { l.awaitPods(ctx) })
	waiting.Go(func() { l.awaitRay(ctx) })
	waiting.Wait()
}

// stop stops the replicas of all nodes at the same time, so that a slow node does not shorten the
// time of another node. stopOwn stops those of the gateway's own node.
func (l *launchers) stop(ctx context.Context, stopOwn func(context.Context) error) error {
	var failed [2]error
	var stopping sync.WaitGroup
	if l.joined != nil {
		stopping.Go(func() { failed[0] = l.stopNodes(ctx) })
	}
	stopping.Go(func() { failed[1] = stopOwn(ctx) })
	stopping.Wait()
	return errors.Join(failed[:]...)
}

// stopNodes stops the replicas of the nodes that have joined. A failed hand-over has closed their
// listener. stopNodes then opens it again, because nodes learn only by it that the gateway stops.
func (l *launchers) stopNodes(ctx context.Context) error {
	err := l.joined.Stop(ctx)
	if err == nil || ctx.Err() != nil || !l.joined.HasStopped() {
		return err
	}
	listener, failed := l.listenForNodes(ctx)
	if failed != nil {
		return errors.Join(err, failed)
	}
	return l.joined.StopAt(ctx, listener)
}

// joinDir returns the directory, within a state directory, of the data about nodes that join.
func joinDir(state string) string { return filepath.Join(state, "join") }

// JoinToken makes a token by which one node joins the gateway of this configuration. It must be
// called on the gateway's machine.
func JoinToken(c *config.Config, r join.TokenRequest) (string, error) {
	if own, err := os.Hostname(); err == nil && r.Node == own {
		return "", fmt.Errorf("%s is the name of the gateway's own node: choose another name, and give it to the node by --name", own)
	}
	return join.Token(joinDir(c.StateDir), r)
}

// ownNode is the gateway's own machine, as one of the nodes that replicas are placed on.
type ownNode struct {
	*local.Launcher
	labels func(node string) []string
}

// Node implements nodes.Node.
func (n *ownNode) Node() (engines.Node, bool) {
	node := n.Launcher.Node()
	node.Labels = n.labels(node.Name)
	return node, node.Name != ""
}

// nodeOf returns what the configuration says of a node; the zero value: nothing.
func (l *launchers) nodeOf(name string) (node config.Node) {
	all := l.config().Nodes
	if i := slices.IndexFunc(all, func(n config.Node) bool { return n.Name == name }); i >= 0 {
		node = all[i]
	}
	return node
}

// labels returns the labels that the configuration gives to a node.
func (l *launchers) labels(node string) []string { return l.nodeOf(node).Labels }

// addresses returns the addresses that the configuration lists for the replicas of a node.
func (l *launchers) addresses(node string) []netip.Prefix { return l.nodeOf(node).Ranges }

// joinedNodes lists the nodes that have joined.
func (l *launchers) joinedNodes() []nodes.Node {
	var all []nodes.Node
	if l.joined != nil {
		for _, n := range l.joined.Nodes() {
			all = append(all, n)
		}
	}
	return all
}

// allNodes lists all nodes as they are now, the gateway's own machine first.
func (l *launchers) allNodes() []engines.Node {
	own, _ := (&ownNode{l.local, l.labels}).Node()
	all := []engines.Node{own}
	for _, joined := range l.joinedNodes() {
		if n, known := joined.Node(); known {
			all = append(all, n)
		}
	}
	return all
}

// awaitLateNodes does the same as awaitNodes for nodes that rejoin later. The replicas of such
// nodes are kept for nodes.RejoinTimeout after the start. It then forgets what was found of models
// that nobody has named, as soon as the custom resources are known.
func (l *launchers) awaitLateNodes(ctx context.Context) error {
	rejoining, cancel := context.WithTimeout(ctx, nodes.RejoinTimeout-time.Second)
	defer cancel()
	l.awaitNodes(rejoining)
	if awaitUntil(ctx, time.Second, l.resources.known) {
		l.scaler.ForgetFound()
	}
	return nil
}

// awaitNodes waits until the nodes that joined before have reported their replicas, or until ctx
// ends. The scaler then keeps these replicas.
func (l *launchers) awaitNodes(ctx context.Context) {
	if l.joined == nil {
		return
	}
	l.joined.Await(ctx)
	counts := map[string]int{}
	for name, m := range l.fleet.Snapshot().Models {
		for i := range m.Replicas {
			if r := &m.Replicas[i]; r.Launcher == engines.Local && r.Node != "" && r.State != engines.Draining {
				counts[name]++
			}
		}
	}
	l.keepFound(counts)
}

// keepFound has the scaler keep replicas that exist already.
func (l *launchers) keepFound(replicas map[string]int) {
	l.scaler.Adopt(replicas)
	l.apply()
}

// serveNodes lets nodes join until ctx ends, if the configuration allows it.
func (l *launchers) serveNodes(ctx context.Context, group *errgroup.Group) error {
	if l.joined == nil {
		return nil
	}
	listener, err := l.listenForNodes(ctx)
	if err != nil {
		return err
	}
	group.Go(func() error { return l.joined.Serve(ctx, listener) })
	return nil
}

// listenForNodes opens the listener to which nodes connect.
func (l *launchers) listenForNodes(ctx context.Context) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", l.config().Control.Nodes)
	if err != nil {
		return nil, explainListen("control.nodes", err)
	}
	return listener, nil
}

// watchKubernetes follows pods and custom resources until ctx ends. It starts before the requests
// of an earlier run are counted, because some of them may be at pods.
func (l *launchers) watchKubernetes(ctx context.Context, group *errgroup.Group) {
	if l.kubernetes != nil {
		group.Go(func() error { return l.kubernetes.Run(ctx) })
	}
	if l.resources != nil {
		group.Go(func() error { return l.resources.watcher.Run(ctx) })
	}
}

// awaitPods waits until the pods and the custom resources are known, or ctx ends.
func (l *launchers) awaitPods(ctx context.Context) {
	if l.kubernetes != nil {
		awaitUntil(ctx, firstReportInterval, func() bool { return l.kubernetes.HasPublished() && l.resources.known() })
	}
}

// podModels are the models that are launched on Kubernetes, and those whose pods stay.
func (l *launchers) podModels(c *config.Config) []kubernetes.Model {
	var models []kubernetes.Model
	for _, m := range c.Models {
		if m.Launcher == engines.Kubernetes {
			models = append(models, podModel(c, m, l.scaler.Desired(m.Name), l.resources.owner(m.Name)))
		}
	}
	return append(models, l.resources.held()...)
}
