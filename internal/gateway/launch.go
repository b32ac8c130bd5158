package gateway

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/join"
	"github.com/sluice-gateway/sluice/engines/kubernetes"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/nodes"
	"github.com/sluice-gateway/sluice/engines/upstream"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/scale"
)

// This file makes the launchers and keeps them at what is wanted: the scaler's numbers of the configuration's models.

// makeLaunchers makes those that the configuration asks for.
func (g *gateway) makeLaunchers(dir *process.Dir, c *config.Config) error {
	g.local = local.New(local.Config{Dir: dir, Fleet: g.fleet, Log: g.log, InFlight: g.dispatcher.Load, DrainTimeout: c.DrainTimeout,
		Well: g.dispatcher.Recovered, Inventory: local.NewInventory()})
	g.upstream = upstream.New(upstream.Config{Fleet: g.fleet, Log: g.log})
	g.nodes = nodes.New(nodes.Config{Fleet: g.fleet, Local: &thisHost{g.local, g.labels}, Others: g.others, InFlight: g.dispatcher.Load,
		Idle: g.idle, Evict: g.evict, Log: g.log})
	if c.Control != "" {
		joined, err := join.NewServer(join.ServerConfig{Dir: joinDir(dir.Path()), Fleet: g.fleet, InFlight: g.dispatcher.Load,
			DrainTimeout: c.DrainTimeout, Changed: g.nodes.Kick, Labels: g.labels, Log: g.log})
		if err != nil {
			return err
		}
		g.joined = joined
	}
	if c.Kubernetes != nil {
		g.makeKubernetes(*c.Kubernetes)
	}
	return nil
}

// joinDir is where the state directory keeps what it knows of hosts that join.
func joinDir(state string) string { return filepath.Join(state, "join") }

// JoinToken returns the token by which nodes join the gateway of this configuration.
func JoinToken(c *config.Config) (string, error) { return join.Token(joinDir(c.StateDir)) }

// thisHost is this host as one of those that replicas are placed on.
type thisHost struct {
	*local.Launcher
	labels func(node string) []string
}

// Node implements nodes.Host.
func (h *thisHost) Node() (engines.Node, bool) {
	n := h.Launcher.Node()
	n.Labels = h.labels(n.Name)
	return n, n.Name != ""
}

// labels are what the file says of a host.
func (g *gateway) labels(node string) []string {
	for _, n := range g.current().Nodes {
		if n.Name == node {
			return n.Labels
		}
	}
	return nil
}

// others are the hosts that have joined.
func (g *gateway) others() []nodes.Host {
	var hosts []nodes.Host
	if g.joined != nil {
		for _, h := range g.joined.Nodes() {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// hosts are all of them as they are now, this one first.
func (g *gateway) hosts() []engines.Node {
	here, _ := (&thisHost{g.local, g.labels}).Node()
	all := []engines.Node{here}
	for _, h := range g.others() {
		if n, known := h.Node(); known {
			all = append(all, n)
		}
	}
	return all
}

// launch has the launchers make the configuration and the numbers of the scaler true.
func (g *gateway) launch() {
	g.launching.Lock()
	defer g.launching.Unlock()
	known := g.objects.known() // first: what is in force afterwards has them
	c := g.current()
	g.nodes.Set(localModels(c, g.self, g.scaler.Desired))
	switch {
	case g.kubernetes == nil:
	case known:
		g.kubernetes.Set(g.podModels(c))
	default: // what runs may be a custom resource's
		g.kubernetes.SetPartial(g.podModels(c))
	}
}

// adoptLocal takes over what an earlier run has left on this host, before anybody is told of the world.
func (g *gateway) adoptLocal(c *config.Config) {
	found, counts := g.local.Found(), map[string]int{}
	for model, indices := range found {
		counts[model] = len(indices)
	}
	g.scaler.Adopt(counts)
	g.scaler.Set(scales(c))
	models := localModels(c, g.self, g.scaler.Desired)
	for i := range models {
		models[i].Indices = append([]int{}, found[models[i].Name]...)
	}
	g.local.Adopt(models)
}

// awaitLateHosts does as awaitHosts for those that take a little longer. The replicas that they have stay for that long (nodes.Settle).
func (g *gateway) awaitLateHosts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, nodes.Settle-time.Second)
	defer cancel()
	g.awaitHosts(ctx)
	return nil
}

// awaitHosts gives the hosts that have joined before a moment to say what runs there, and has the scaler keep that.
func (g *gateway) awaitHosts(ctx context.Context) {
	if g.joined == nil {
		return
	}
	g.joined.Await(ctx)
	counts := map[string]int{}
	for name, m := range g.fleet.Snapshot().Models {
		for i := range m.Replicas {
			if r := &m.Replicas[i]; r.Launcher == engines.Local && r.Node != "" && r.State != engines.Draining {
				counts[name]++
			}
		}
	}
	g.scaler.Adopt(counts)
	g.launch()
}

// serveHosts lets hosts join, where they can, until ctx ends.
func (g *gateway) serveHosts(ctx context.Context, group *errgroup.Group) error {
	if g.joined == nil {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", g.settings.Config.Control)
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	group.Go(func() error { return g.joined.Serve(ctx, l) })
	return nil
}

// watchPods begins to follow Kubernetes until ctx ends: before the requests of before a restart are counted, some of which may be at pods.
func (g *gateway) watchPods(ctx context.Context, group *errgroup.Group) {
	if g.kubernetes != nil {
		group.Go(func() error { return g.kubernetes.Run(ctx) })
	}
	if g.objects != nil {
		group.Go(func() error { return g.objects.watcher.Run(ctx) })
	}
}

// awaitPods waits until the pods and the models of custom resources are known, or ctx ends.
func (g *gateway) awaitPods(ctx context.Context) {
	for g.kubernetes != nil && !(g.kubernetes.HasPublished() && g.objects.known()) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// idle are the local models that nobody uses and that have more replicas than they must.
func (g *gateway) idle() []string {
	return slices.DeleteFunc(g.scaler.IdleModels(), func(model string) bool {
		m := g.fleet.Snapshot().Models[model]
		return m == nil || m.Launcher != engines.Local
	})
}

// evict takes a replica each off models that nobody uses.
func (g *gateway) evict(models []string) {
	changed := false
	for _, model := range models {
		changed = g.scaler.Evict(model) || changed
	}
	if changed {
		g.launch()
	}
}

// makeKubernetes makes the launcher of pods, and the watcher of custom resources.
func (g *gateway) makeKubernetes(c config.Kubernetes) {
	access := kubernetes.Access{Kubeconfig: c.Kubeconfig, Context: c.Context}
	g.kubernetes = kubernetes.New(kubernetes.Config{Access: access, Namespace: c.Namespace, Name: c.Name, Fleet: g.fleet,
		Identity: os.Getenv("POD_NAME"), Load: g.ownLoad, InFlight: g.dispatcher.Load, OnFound: g.foundPods, OnDemand: g.scaler.ReportDemand, Log: g.log})
	if c.CustomResources {
		g.objects = newObjects(g, access, c.Namespace)
	}
}

// ownLoad is what this gateway has for a model.
func (g *gateway) ownLoad(model string) kubernetes.Load {
	l := g.loadHere(model)
	return kubernetes.Load{Running: l.Running, Queued: l.Queued, Admitted: l.Admitted}
}

// foundPods hears how many replicas there are already, when the API has first been reached.
func (g *gateway) foundPods(replicas map[string]int) {
	g.scaler.Adopt(replicas)
	g.launch()
}

// demand hears that a request waits for a model.
func (g *gateway) demand(model string) {
	g.scaler.ReportDemand(model)
	if g.kubernetes != nil {
		g.kubernetes.PublishLoad()
	}
}

// load is what a model has to do now, at all gateways that launch it together.
func (g *gateway) load(model string) scale.Load {
	l := g.loadHere(model)
	if g.kubernetes != nil {
		others := g.kubernetes.OthersLoad(model)
		l.Running, l.Queued, l.Admitted = l.Running+others.Running, l.Queued+others.Queued, l.Admitted+others.Admitted
	}
	return l
}

// loadHere is what a model has to do at this gateway. Who waits for a pool waits for each of its models.
func (g *gateway) loadHere(model string) scale.Load {
	v, _ := g.dispatcher.View(model)
	l := scale.Load{Running: v.InFlight, Queued: v.Queued, Admitted: v.Admitted, PerReplica: v.PerReplica,
		MaxRunning: v.Policy.Limits.MaxConcurrent}
	for _, p := range g.current().Pools {
		if slices.Contains(p.Models, model) {
			l.Queued += g.admission.PoolStats(p.Name).Queued
		}
	}
	return l
}

// podModels are the models that are launched on Kubernetes.
func (g *gateway) podModels(c *config.Config) []kubernetes.Model {
	var models []kubernetes.Model
	for _, m := range c.Models {
		if m.Launcher != engines.Kubernetes {
			continue
		}
		version, launch := c.Launch(m)
		launch.Sluice = "sluice" // in its image
		models = append(models, kubernetes.Model{
			Model:        describeLaunched(m, g.scaler.Desired(m.Name)),
			Version:      version,
			Launch:       launch,
			Env:          maps.Clone(m.Env),
			Secrets:      secrets(m),
			Resources:    needs(m),
			GPUResource:  m.GPUResource,
			Placement:    string(m.Placement),
			Cluster:      m.Cluster,
			Volumes:      volumes(c, m),
			StartTimeout: m.ColdStartTimeout,
			DrainTimeout: m.Stream.MaxDuration,
			Owner:        g.objects.owner(m.Name),
		})
	}
	return models
}
