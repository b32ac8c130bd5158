package kubernetes

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
)

// fleetSource is the source under which the launcher reports to the fleet.
const fleetSource = "kubernetes"

// kubeconfigRetry is the pause before an unusable kubeconfig is read again.
const kubeconfigRetry = 10 * time.Second

// Config is the configuration of a Launcher. Fleet is required.
type Config struct {
	// Access is the access to the home cluster. Models may name other contexts of the same file.
	Access
	// Namespace is the namespace of models that name none. Empty means the default of Access.
	Namespace string
	// Name is the name of this installation. It distinguishes the installation's objects from
	// others in the same namespace. At most 30 characters a-z, 0-9 and "-". Empty means "sluice".
	Name string
	// Identity is this gateway's name among the gateways of the installation. Empty means the
	// machine's name and a random part.
	Identity string
	// Fleet gets the models and replicas under the source "kubernetes".
	Fleet *engines.Fleet
	// Load returns how much work this gateway has for a model. Nil means none.
	Load func(model string) engines.Load
	// InFlight returns how many requests this gateway has on a replica. It must be fast. Nil means
	// none.
	InFlight func(replica string) int
	// OnFound is called once for each cluster, after its API was first reached. It gets the number
	// of replicas of each model that exist and do not drain. The launcher writes nothing to the
	// cluster until Set is called after that, so a new leader does not remove running pods. Nil
	// means that every Set suffices.
	OnFound func(replicas map[string]int)
	// OnDemand is called when another gateway reports waiting requests for a model. Nil means
	// no call.
	OnDemand func(model string)
	// DrainSettle is the minimum time for which a draining pod is kept, because users of the fleet
	// may still have an older snapshot. 0 means 1 s.
	DrainSettle time.Duration
	// DrainTimeout is the drain timeout of models that have none. 0 means 30 minutes.
	DrainTimeout time.Duration
	// Renew is the interval at which a gateway renews its lease. A gateway that misses three
	// renewals is dead. A leader is replaced after 1.5 intervals. 0 means 10 s; the minimum is 1 s.
	Renew time.Duration
	// Log receives the launcher's log. Nil means no log.
	Log *zap.Logger
}

func (c Config) withDefaults() Config {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	c.Name = cmp.Or(c.Name, "sluice")
	if c.Identity == "" {
		host, _ := os.Hostname() // An error is ignored: the random part makes the identity unique.
		c.Identity = host + "-" + rand.Text()[:8]
	}
	if c.Load == nil {
		c.Load = func(string) engines.Load { return engines.Load{} }
	}
	if c.InFlight == nil {
		c.InFlight = func(string) int { return 0 }
	}
	if c.OnDemand == nil {
		c.OnDemand = func(string) {}
	}
	c.DrainSettle = cmp.Or(c.DrainSettle, time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Minute)
	c.Renew = max(cmp.Or(c.Renew, 10*time.Second), time.Second)
	return c
}

// Launcher runs models as Deployments and reports their pods as replicas. Its methods may be called
// from any goroutine.
type Launcher struct {
	config Config
	// modelsChanged and replicasChanged wake Run. Their capacity is 1.
	modelsChanged, replicasChanged chan struct{}

	mu sync.Mutex
	// started is true once Run was called. Guarded by mu.
	started bool
	// models is the argument of the last Set. partial is true for SetPartial. Guarded by mu.
	models  []Model
	partial bool
	// setCount counts the calls of Set and SetPartial. Guarded by mu.
	setCount uint64
	// hasPublished is true once the fleet has the pods of the home cluster. Guarded by mu.
	hasPublished bool
	// home is the default cluster. It is nil until its kubeconfig could be read. Guarded by mu.
	home *cluster
	// clusters lists the running clusters. Guarded by mu.
	clusters []*cluster
	// clustersOf holds, by model, the clusters that have or had the model, the current one first.
	// Guarded by mu.
	clustersOf map[string][]*cluster
	// faults holds, by model, why the model cannot be run. Guarded by mu.
	faults map[string]string
	// unreachable holds, by Model.Cluster, why the kubeconfig cannot be used. Guarded by mu.
	unreachable map[string]string

	// The fields below belong to the goroutine of Run.
	//
	// clusterByName holds clusters by Model.Cluster, manifests holds rendered models by model name.
	// spawn starts a goroutine that Run waits for.
	clusterByName map[string]*cluster
	manifests     map[string]*renderedModel
	spawn         func(run func())
	install       install
}

// renderedModel is a model with its Deployment, or with the error of rendering it.
type renderedModel struct {
	source Model
	wanted
	err error
}

// New returns a Launcher. It starts nothing.
func New(c Config) *Launcher {
	c = c.withDefaults()
	return &Launcher{
		config: c, modelsChanged: make(chan struct{}, 1), replicasChanged: make(chan struct{}, 1), install: install{name: c.Name, drainTimeout: c.DrainTimeout},
		clustersOf: map[string][]*cluster{}, faults: map[string]string{}, unreachable: map[string]string{},
		clusterByName: map[string]*cluster{}, manifests: map[string]*renderedModel{},
	}
}

// Set sets all models and their numbers of replicas. It does not block.
func (l *Launcher) Set(models []Model) { l.set(models, false) }

// SetPartial is like Set, for a caller that does not know all models yet. The objects of other
// models stay as they are.
func (l *Launcher) SetPartial(models []Model) { l.set(models, true) }

func (l *Launcher) set(models []Model, partial bool) {
	l.mu.Lock()
	l.models, l.partial = slices.Clone(models), partial
	l.setCount++
	l.mu.Unlock()
	signal(l.modelsChanged)
}

var nameRule = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?$`)

// Run runs the launcher until ctx ends, and then returns nil. The Deployments stay. An unreachable
// API is not an error: the fleet keeps what was known last. Run may be called once. It fails if
// Config.Name is invalid.
func (l *Launcher) Run(ctx context.Context) error {
	if !nameRule.MatchString(l.config.Name) {
		return fmt.Errorf("the installation's name %q is invalid: use at most 30 characters a-z, 0-9 and '-'", l.config.Name)
	}
	l.mu.Lock()
	ran := l.started
	l.started = true
	l.mu.Unlock()
	if ran {
		return errors.New("the Kubernetes launcher has been started already")
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	again := time.NewTimer(0)
	defer again.Stop()
	l.spawn = running.Go
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.modelsChanged:
			l.distribute(ctx)
		case <-again.C:
			l.distribute(ctx)
			again.Reset(kubeconfigRetry)
		case <-l.replicasChanged:
		}
		l.publish()
	}
}

// distribute tells each cluster its models.
func (l *Launcher) distribute(ctx context.Context) {
	l.mu.Lock()
	models, partial, setCount := l.models, l.partial, l.setCount
	l.mu.Unlock()
	unreachable := map[string]string{}
	// The home cluster is watched from the start, even without models.
	home := l.clusterFor(ctx, "", unreachable)
	shares, faults := map[*cluster][]wanted{}, map[string]string{}
	manifests, where := map[string]*renderedModel{}, map[string]*cluster{}
	for _, m := range models {
		c := l.clusterFor(ctx, m.Cluster, unreachable)
		if c != home {
			// The garbage collector ignores owners in other namespaces.
			m.Owner = nil
		}
		made := l.manifestOf(m)
		manifests[m.Name] = made
		if made.err != nil {
			faults[m.Name] = made.err.Error()
		}
		if c == nil {
			faults[m.Name] = unreachable[m.Cluster]
			continue
		}
		shares[c] = append(shares[c], made.wanted)
		where[m.Name] = c
	}
	l.manifests = manifests
	l.recordOutcome(faults, unreachable, where)
	for _, c := range l.allClusters() {
		c.set(shares[c], partial, setCount)
	}
}

// recordOutcome stores the result of distribute for the exported methods.
func (l *Launcher) recordOutcome(faults, unreachable map[string]string, where map[string]*cluster) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, reason := range faults {
		if l.faults[name] != reason {
			l.config.Log.Error("model cannot be deployed", zap.String("model", name), zap.String("reason", reason))
		}
	}
	l.faults, l.unreachable = faults, unreachable
	for model, c := range where {
		rest := slices.DeleteFunc(slices.Clone(l.clustersOf[model]), func(o *cluster) bool { return o == c })
		l.clustersOf[model] = append([]*cluster{c}, rest...)
	}
}

// manifestOf renders the model's Deployment, or returns the one that was rendered before if nothing
// relevant has changed.
func (l *Launcher) manifestOf(m Model) *renderedModel {
	if m.Frozen {
		return &renderedModel{source: m, wanted: wanted{Model: m}}
	}
	made := l.manifests[m.Name]
	if made == nil || !made.source.hasSameManifest(m) {
		made = &renderedModel{source: m}
		if m.Hosts > 1 {
			made.manifest, made.workers, made.err = l.install.groups(m)
		} else {
			made.manifest, made.err = l.install.manifest(m)
		}
	}
	now := *made
	now.Model = m
	return &now
}

// clusterFor returns the cluster that Model.Cluster names, and starts it if it is new. It returns
// nil and sets unreachable[named] if the kubeconfig cannot be used.
func (l *Launcher) clusterFor(ctx context.Context, named string, unreachable map[string]string) *cluster {
	if c := l.clusterByName[named]; c != nil {
		return c
	}
	if unreachable[named] != "" {
		return nil
	}
	c, err := l.newCluster(named)
	if err != nil {
		unreachable[named] = err.Error()
		return nil
	}
	for _, other := range l.allClusters() {
		if other.server == c.server && other.location.namespace == c.location.namespace {
			c = other // The same namespace under another name.
		}
	}
	l.clusterByName[named] = c
	l.mu.Lock()
	fresh := !slices.Contains(l.clusters, c)
	if fresh {
		l.clusters = append(l.clusters, c)
	}
	if named == "" {
		l.home = c
	}
	l.mu.Unlock()
	if fresh {
		l.spawn(func() { c.run(ctx) })
	}
	return c
}

// newCluster reads the kubeconfig and returns a cluster that is not running yet.
func (l *Launcher) newCluster(named string) (*cluster, error) {
	at := locationOf(named, location{l.config.Context, l.config.Namespace})
	to, namespace, err := Access{Kubeconfig: l.config.Kubeconfig, Context: at.context}.Connect()
	if err != nil {
		return nil, err
	}
	at.namespace = cmp.Or(at.namespace, namespace)
	c, err := newCluster(l.config, at, to)
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	c.server = to.Host + to.APIPath
	c.onReplicas = func() { signal(l.replicasChanged) }
	c.setCount = func() uint64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.setCount
	}
	return c, nil
}

// clusterOf returns the current cluster of a model, or nil if it never had one.
func (l *Launcher) clusterOf(model string) *cluster {
	l.mu.Lock()
	defer l.mu.Unlock()
	if where := l.clustersOf[model]; len(where) > 0 {
		return where[0]
	}
	return nil
}

func (l *Launcher) allClusters() []*cluster {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.clusters)
}

// publish reports the models and all replicas to the fleet.
func (l *Launcher) publish() {
	l.mu.Lock()
	wanted, home := l.models, l.home
	l.mu.Unlock()
	all := false
	part := engines.Part{}
	for _, m := range wanted {
		if !m.Frozen {
			m.Launcher = engines.Kubernetes
			part.Models = append(part.Models, m.Model)
		}
	}
	for _, c := range l.allClusters() {
		replicas, shown := c.snapshot()
		part.Replicas = append(part.Replicas, replicas...)
		all = all || shown && c == home
	}
	l.config.Fleet.Set(fleetSource, part)
	l.mu.Lock()
	l.hasPublished = all
	l.mu.Unlock()
}

// HasPublished reports whether the fleet has the pods of the home namespace. It is false until the
// API has answered.
func (l *Launcher) HasPublished() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hasPublished
}

// OthersLoad returns the load that the other live gateways report for the model.
func (l *Launcher) OthersLoad(model string) engines.Load {
	if c := l.clusterOf(model); c != nil {
		return c.peers.load(model)
	}
	return engines.Load{}
}

// OthersRefused returns Load.Refused of each of the other live gateways for the model.
func (l *Launcher) OthersRefused(model string) map[string]uint64 {
	if c := l.clusterOf(model); c != nil {
		return c.peers.refused(model)
	}
	return nil
}

// IsLeader reports whether this gateway is the leader in the home namespace. Every namespace of
// every cluster elects its own leader, so failures stay separate. Each gateway must therefore know
// the wanted replicas of all models.
func (l *Launcher) IsLeader() bool {
	l.mu.Lock()
	home := l.home
	l.mu.Unlock()
	return home != nil && home.isLeader()
}

// PublishLoad writes this gateway's load to the leaders soon, because a request waits. It writes at
// most five times per second.
func (l *Launcher) PublishLoad() {
	for _, c := range l.allClusters() {
		if !c.isLeader() {
			signal(c.ownLease.writeSignal)
		}
	}
}

// IsGone reports whether nothing is left of a model that was described by the object with this UID.
// It requires that the object owns no Deployment, under any name of the model. Unless another
// object describes the same model, it also requires that the model has no Deployment and no pod. It
// is false while this is unknown. An empty uid means no object.
func (l *Launcher) IsGone(model, uid string) bool {
	l.mu.Lock()
	home, where := l.home, slices.Clone(l.clustersOf[model])
	others := slices.ContainsFunc(l.models, func(m Model) bool { return m.Name == model && m.Owner.uid() != uid })
	l.mu.Unlock()
	if home == nil || home.mayOwn(uid) {
		return false
	}
	if len(where) == 0 {
		where = []*cluster{home}
	}
	return others || !slices.ContainsFunc(where, func(c *cluster) bool { return !c.isGone(model) })
}

// Selector returns the label selector of the model's pods, of all its Deployments. Of groups it
// selects the leaders.
func (l *Launcher) Selector(model string) string {
	return selector(l.install.modelLabels(model)) + ",!" + labelRole // a selector of /scale knows no !=
}

// Status returns the launcher's state for the operator.
func (l *Launcher) Status() Status {
	l.mu.Lock()
	s := Status{Faults: maps.Clone(l.faults), Blocked: map[string]string{}}
	home := l.unreachable[""]
	l.mu.Unlock()
	for _, c := range l.allClusters() {
		s.Clusters = append(s.Clusters, c.status())
		maps.Copy(s.Blocked, c.blockedModels())
	}
	if home != "" {
		own := ClusterStatus{Context: l.config.Context, Errors: home}
		s.Clusters = slices.Insert(s.Clusters, 0, own)
	}
	return s
}
