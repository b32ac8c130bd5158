package kubernetes

import (
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

// source is the launcher's name in the fleet.
const fleetSource = "kubernetes"

// resolveAgain is the pause before a kubeconfig that could not be used is read again.
const kubeconfigRetry = 10 * time.Second

// Config says what the launcher works with. Fleet is needed.
type Config struct {
	// Access is how the home cluster is reached; models may name other contexts of the same file.
	Access
	// Namespace of models that name none; empty: the access's own.
	Namespace string
	// Name of this installation: it tells its objects from those of others in the same namespace. At most 30 of a-z, 0-9 and -; empty: sluice.
	Name string
	// Identity of this gateway among those of the installation; empty: the host's name and a random part.
	Identity string
	Fleet    *engines.Fleet
	// Load is what this gateway has to do for a model. nil: nothing.
	Load func(model string) Load
	// InFlight tells how many requests this gateway has on a replica. It must be quick. nil: none.
	InFlight func(replica string) int
	// Found is called once for each cluster, when its API was first reached: with how many replicas each model has there, of those that are
	// not being drained. Until Set is called after that, nothing is written there, so that a new leader does not take away what runs. nil: any
	// Set will do.
	OnFound func(replicas map[string]int)
	// Demand is called when another gateway has told that requests wait there for the model, or more of them. nil: nobody cares.
	OnDemand func(model string)
	// DrainSettle is how long a pod that was given up is kept at least, for those who route by an older snapshot; 0 means 1 s.
	DrainSettle time.Duration
	// DrainTimeout of models that name none; 0 means 30 min.
	DrainTimeout time.Duration
	// Renew is how often a gateway tells that it lives; after three times as long without a word it is dead. A leader that cannot be heard is
	// replaced after one and a half times as long. 0 means 10 s; less than 1 s means 1 s.
	Renew time.Duration
	// Log may be nil: silent.
	Log *zap.Logger
}

func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Name == "" {
		c.Name = "sluice"
	}
	if c.Identity == "" {
		host, _ := os.Hostname() // the random part tells gateways apart
		c.Identity = host + "-" + rand.Text()[:8]
	}
	c.DrainSettle = orDefault(c.DrainSettle, time.Second)
	c.DrainTimeout = orDefault(c.DrainTimeout, 30*time.Minute)
	c.Renew = max(orDefault(c.Renew, 10*time.Second), time.Second)
	return c
}

// Launcher makes Deployments of models and replicas of their pods. Its methods may be called from any goroutine.
type Launcher struct {
	config Config
	// wake has a token when the models, changed one when the replicas are others.
	modelsChanged, replicasChanged chan struct{}

	mu sync.Mutex
	// ran: Run was called; guarded by mu
	started bool
	// models as Set said, and whether it did not know them all; guarded by mu
	models  []Model
	partial bool
	// sets counts the calls of Set; guarded by mu
	setCount uint64
	// shown: the fleet has the pods of the home cluster; guarded by mu
	hasPublished bool
	// home is the default cluster; nil before its kubeconfig was read; guarded by mu
	home *cluster
	// clusters that run, the home one first; guarded by mu
	clusters []*cluster
	// where each model is and was; guarded by mu
	clustersOf map[string][]*cluster
	// faults of models, by name; guarded by mu
	faults map[string]string
	// unreachable says why a kubeconfig cannot be used, by Model.Cluster; guarded by mu
	unreachable map[string]string

	// Only Run's loop uses these.
	clusterByName map[string]*cluster       // by Model.Cluster
	manifests     map[string]*renderedModel // by model
	spawn         func(run func())          // a goroutine that Run waits for
	install       install
}

// manifest is what was last made of a model.
type renderedModel struct {
	source Model
	wanted
	err error
}

// New returns a launcher that does nothing yet.
func New(c Config) *Launcher {
	c = c.withDefaults()
	return &Launcher{
		config: c, modelsChanged: make(chan struct{}, 1), replicasChanged: make(chan struct{}, 1), install: install{name: c.Name, drainTimeout: c.DrainTimeout},
		clustersOf: map[string][]*cluster{}, faults: map[string]string{}, unreachable: map[string]string{},
		clusterByName: map[string]*cluster{}, manifests: map[string]*renderedModel{},
	}
}

// Set says which models there shall be, all of them, and how many replicas of each. It never blocks.
func (l *Launcher) Set(models []Model) { l.set(models, false) }

// SetSome is Set by somebody who does not know all models yet: what there is of others stays as it is.
func (l *Launcher) SetPartial(models []Model) { l.set(models, true) }

func (l *Launcher) set(models []Model, some bool) {
	l.mu.Lock()
	l.models, l.partial = slices.Clone(models), some
	l.setCount++
	l.mu.Unlock()
	signal(l.modelsChanged)
}

var nameRule = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?$`)

// Run works until ctx ends, and then returns nil. The Deployments stay: they belong to the cluster. An API that does not answer is no error:
// what was known last stays in the fleet. It is called once, and fails at once where Config.Name cannot be one.
func (l *Launcher) Run(ctx context.Context) error {
	if !nameRule.MatchString(l.config.Name) {
		return fmt.Errorf("kubernetes: %q cannot be the name of an installation: at most 30 of a-z, 0-9 and -", l.config.Name)
	}
	l.mu.Lock()
	ran := l.started
	l.started = true
	l.mu.Unlock()
	if ran {
		return errors.New("the Kubernetes launcher was run before")
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

// spread tells each cluster its models.
func (l *Launcher) distribute(ctx context.Context) {
	l.mu.Lock()
	models, some, sets := l.models, l.partial, l.setCount
	l.mu.Unlock()
	unreachable := map[string]string{}
	home := l.clusterFor(ctx, "", unreachable) // it is followed from the start
	shares, faults := map[*cluster][]wanted{}, map[string]string{}
	manifests, where := map[string]*renderedModel{}, map[string]*cluster{}
	for _, m := range models {
		c := l.clusterFor(ctx, m.Cluster, unreachable)
		if c != home {
			m.Owner = nil // to a garbage collector an owner in another namespace does not exist
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
		c.set(shares[c], some, sets)
	}
}

// note keeps what the callers of other methods ask for.
func (l *Launcher) recordOutcome(faults, unreachable map[string]string, where map[string]*cluster) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, reason := range faults {
		if l.faults[name] != reason {
			l.config.Log.Error("Kubernetes: no Deployment can be made", zap.String("model", name), zap.String("reason", reason))
		}
	}
	l.faults, l.unreachable = faults, unreachable
	for model, c := range where {
		rest := slices.DeleteFunc(slices.Clone(l.clustersOf[model]), func(o *cluster) bool { return o == c })
		l.clustersOf[model] = append([]*cluster{c}, rest...)
	}
}

// manifest makes the model's Deployment, or takes the one that was made before.
func (l *Launcher) manifestOf(m Model) *renderedModel {
	made := l.manifests[m.Name]
	if made == nil || !made.source.hasSameManifest(m) {
		d, err := l.install.manifest(m)
		made = &renderedModel{source: m, wanted: wanted{manifest: d}, err: err}
	}
	now := *made
	now.Model = m
	return &now
}

// cluster finds the one that a model names, and begins to follow it when it is new. nil: unreachable says why it cannot be.
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
			c = other // by another name
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

// connect reads the kubeconfig.
func (l *Launcher) newCluster(named string) (*cluster, error) {
	home := location{l.config.Context, l.config.Namespace}
	p := locationOf(named, home)
	to, namespace, err := Access{Kubeconfig: l.config.Kubeconfig, Context: p.context}.Connect()
	if err != nil {
		return nil, err
	}
	if p.namespace != "" {
		namespace = p.namespace
	}
	c, err := newCluster(l.config, p, to, namespace)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
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

func (l *Launcher) allClusters() []*cluster {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.clusters)
}

// publish reports the models and all replicas.
func (l *Launcher) publish() {
	l.mu.Lock()
	wanted, home := l.models, l.home
	l.mu.Unlock()
	all := false
	part := engines.Part{}
	for _, m := range wanted {
		m.Launcher = engines.Kubernetes
		part.Models = append(part.Models, m.Model)
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

// Shown tells whether the fleet has the pods of the home namespace: its API has answered.
func (l *Launcher) HasPublished() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hasPublished
}

// Others is what the other live gateways have to do for the model.
func (l *Launcher) OthersLoad(model string) Load {
	l.mu.Lock()
	where := l.clustersOf[model]
	l.mu.Unlock()
	if len(where) == 0 {
		return Load{}
	}
	return where[0].peers.load(model)
}

// Leads tells whether this gateway writes in the home namespace. Every other namespace and cluster has a leader of its own, so that they do not fail
// together; so each gateway must know how many replicas a model shall have, whoever leads here.
func (l *Launcher) IsLeader() bool {
	l.mu.Lock()
	home := l.home
	l.mu.Unlock()
	return home != nil && home.isLeader()
}

// Publish tells those who lead this gateway's load now, and not at the next renewal: a request waits. At most five times a second.
func (l *Launcher) PublishLoad() {
	for _, c := range l.allClusters() {
		if !c.isLeader() {
			signal(c.ownLease.writeSignal)
		}
	}
}

// Gone tells whether nothing is left of a model that the object with this UID (empty: none) described: no Deployment that the object owns, under
// whatever name the model had, and, unless somebody else wants the model, no Deployment of ours and no pod of it. It is false where that is not known.
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

// Status is how the launcher fares.
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
		own := ClusterStatus{Context: l.config.Context, Namespace: l.config.Namespace, Errors: home}
		s.Clusters = slices.Insert(s.Clusters, 0, own)
	}
	return s
}
