package kubernetes

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/weights"
)

const (
	// minLoopDelay is the shortest time between two runs of a loop. drainPollInterval is the time
	// between runs while pods drain, resyncInterval the longest time.
	minLoopDelay      = 20 * time.Millisecond
	drainPollInterval = 200 * time.Millisecond
	resyncInterval    = 5 * time.Second
)

// cluster is one namespace of a Kubernetes cluster: the watched objects, this gateway's lease and,
// while the gateway leads, the writes.
type cluster struct {
	Config
	install
	// location is as Model.Cluster names it, with the namespace resolved.
	location location
	// server is the URL of the API. Two clusters with the same server and namespace are the same.
	server string
	client kubernetes.Interface
	// onReplicas tells the launcher that the replicas have changed.
	onReplicas func()
	// setCount returns the number of calls of Launcher.Set.
	setCount func() uint64

	groupsAPI   dynamic.ResourceInterface
	deployments *watchStore[*appsv1.Deployment]
	// groupSets holds the LeaderWorkerSets as the Deployments of their leaders.
	groupSets *watchStore[*appsv1.Deployment]
	jobs      *watchStore[*batchv1.Job]
	budgets   *watchStore[*policyv1.PodDisruptionBudget]
	pods      *watchStore[*corev1.Pod]
	leases    *watchStore[*coordinationv1.Lease]
	peers     *peers
	ownLease  *gatewayLease
	election  atomic.Pointer[election]
	health    *health
	// observeSignal and reconcileSignal wake the loops. Their capacity is 1.
	observeSignal, reconcileSignal chan struct{}

	mu sync.Mutex
	// wanted holds the models of this namespace. Guarded by mu.
	wanted []wanted
	// wantedSet is setCount at the time when wanted was set. Guarded by mu.
	wantedSet uint64
	// partial is true if there may be models that wanted lacks. Guarded by mu.
	partial bool
	// setsBeforeFound is setCount when Config.OnFound was called, or nil before. Guarded by mu.
	setsBeforeFound *uint64
	// leaseWritten is true once this gateway's lease was written. Guarded by mu.
	leaseWritten bool
	// replicas were reported last. hasObserved is true once they were. Guarded by mu.
	replicas    []engines.Replica
	hasObserved bool
	// drains holds the progress of draining pods by pod name. A stored map is never modified.
	// Guarded by mu.
	drains map[string]podDrain
	// fetches holds how far the running loaders are, by pod. A stored map is never modified.
	// Guarded by mu.
	fetches map[string]weights.Progress
	// writeErrors holds, by model, the error of this gateway's last write. Guarded by mu.
	writeErrors map[string]string
	// groupsFault says why LeaderWorkerSets cannot be used, or is nil. Guarded by mu.
	groupsFault error
	// emptySets holds, by name, since when LeaderWorkerSets that should have pods have none. A
	// stored map is never modified. Guarded by mu.
	emptySets map[string]time.Time
	// startBases holds, by pod, how many ends of its engine do not count as failed starts. Only
	// observeLoop uses it.
	startBases map[types.UID]int
	// claims holds, by name, the claims whose size this gateway checks. Guarded by mu.
	claims map[string]claimCheck
	// memories holds what this gateway remembers of models, by model hash. Only reconcileLoop uses
	// the map.
	memories map[string]*memory
	writers  *writers
}

// wanted is a model with its Deployment. If manifest is nil, the model is faulty or frozen and its
// existing objects stay untouched.
type wanted struct {
	Model
	manifest *appsv1.Deployment
	// workers is the template of the workers if the manifest stands for a LeaderWorkerSet, else
	// nil.
	workers *corev1.PodTemplateSpec
}

// podDrain is how far this gateway is done with a draining pod.
type podDrain struct {
	annotation string
	since      time.Time
	done       bool
	// markedSince is when this gateway saw the mark that makes the pod the next to be deleted. The
	// zero time means no mark.
	markedSince time.Time
}

// newCluster returns a cluster. It makes no calls.
func newCluster(c Config, at location, to *rest.Config) (*cluster, error) {
	to = rest.CopyConfig(to)
	to.QPS, to.Burst = 50, 100
	to.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(to)
	if err != nil {
		return nil, err
	}
	groups, err := dynamic.NewForConfig(to)
	if err != nil {
		return nil, err
	}
	k := &cluster{
		groupsAPI: groups.Resource(groupsResource()).Namespace(at.namespace),
		Config:    c, install: install{name: c.Name, drainTimeout: c.DrainTimeout}, location: at,
		client: client, observeSignal: make(chan struct{}, 1), reconcileSignal: make(chan struct{}, 1), health: newHealth(c.Log),
		peers: &peers{lifetime: missedRenewals * c.Renew}, drains: map[string]podDrain{},
		claims: map[string]claimCheck{}, memories: map[string]*memory{},
	}
	k.writers = newWriters(k.isLeader, func() { signal(k.reconcileSignal) })
	onEvent := func() { signal(k.observeSignal) }
	k.deployments = newWatchStore[*appsv1.Deployment](onEvent)
	k.groupSets = newWatchStore[*appsv1.Deployment](onEvent)
	k.budgets = newWatchStore[*policyv1.PodDisruptionBudget](onEvent)
	k.jobs = newWatchStore[*batchv1.Job](onEvent)
	k.pods = newWatchStore[*corev1.Pod](onEvent)
	k.leases = newWatchStore[*coordinationv1.Lease](onEvent)
	k.ownLease = &gatewayLease{
		client: client.CoordinationV1().Leases(at.namespace), identity: c.Identity, labels: k.labels(), interval: c.Renew,
		name:    "sluice-" + c.Name + "-gw-" + slug(c.Identity, maxSlugLength) + "-" + hashPrefix(c.Identity, 6),
		content: k.leaseRecord, onWritten: k.onLeaseWritten, writeSignal: make(chan struct{}, 1),
	}
	return k, nil
}

// onLeaseWritten is called after each write of this gateway's lease with the result of the write.
func (c *cluster) onLeaseWritten(err error) {
	c.health.set(renewLease, err)
	if err != nil {
		return
	}
	c.mu.Lock()
	first := !c.leaseWritten
	c.leaseWritten = true
	c.mu.Unlock()
	if first {
		signal(c.observeSignal)
	}
}

// set sets the models of the namespace. partial says that there may be others. setCount is the
// number of calls of Launcher.Set so far.
func (c *cluster) set(models []wanted, partial bool, setCount uint64) {
	c.mu.Lock()
	c.wanted, c.partial, c.wantedSet = models, partial, setCount
	c.mu.Unlock()
	signal(c.reconcileSignal)
	signal(c.ownLease.writeSignal)
}

// run runs the loops until ctx ends, and then gives up leadership and lease.
func (c *cluster) run(ctx context.Context) {
	// health logs the errors that matter, so client-go does not log.
	ctx = klog.NewContext(ctx, klog.Logger{})
	outlasting, leave := context.WithCancel(context.WithoutCancel(ctx))
	var held, working sync.WaitGroup
	held.Go(func() { c.ownLease.run(outlasting) })
	held.Go(func() {
		if c.waitSynced(ctx) {
			c.elect(outlasting)
		}
	})
	ours := selector(c.labels())
	watch := func(resource, selector string, client rest.Interface, kind any, store cache.ReflectorStore) {
		w := watchTarget{client: client, resource: resource, namespace: c.location.namespace, selector: selector, kind: kind}
		working.Go(func() { watchObjects(ctx, w, store, func(err error) { c.health.set("watch "+resource, err) }) })
	}
	watch("deployments", ours, c.client.AppsV1().RESTClient(), &appsv1.Deployment{}, c.deployments)
	watch("poddisruptionbudgets", ours, c.client.PolicyV1().RESTClient(), &policyv1.PodDisruptionBudget{}, c.budgets)
	watch("jobs", ours, c.client.BatchV1().RESTClient(), &batchv1.Job{}, c.jobs)
	watch("pods", ours, c.client.CoreV1().RESTClient(), &corev1.Pod{}, c.pods)
	watch("leases", ours+","+labelRole+"="+roleGateway, c.client.CoordinationV1().RESTClient(), &coordinationv1.Lease{}, c.leases)
	working.Go(func() { c.watchGroups(ctx) })
	working.Go(func() { c.observeLoop(ctx) })
	working.Go(func() { c.loaderLoop(ctx) })
	working.Go(func() { c.reconcileLoop(ctx) })
	working.Wait() // From here on this gateway writes nothing, so another may lead.
	leave()
	held.Wait()
}

// selector returns a label selector that requires all the labels.
func selector(labels map[string]string) string {
	var terms []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		terms = append(terms, name+"="+labels[name])
	}
	return strings.Join(terms, ",")
}

// synced reports whether all kinds were listed once that tell of replicas. It stays true while the
// API is unreachable.
func (c *cluster) synced() bool {
	return c.deployments.hasSynced() && c.groupSets.hasSynced() && c.pods.hasSynced() && c.leases.hasSynced()
}

func (c *cluster) waitSynced(ctx context.Context) bool {
	for ctx.Err() == nil && !c.synced() {
		pause(ctx, drainPollInterval)
	}
	return ctx.Err() == nil
}

// observeLoop calls observe after each change, and at least every resyncInterval, until ctx ends.
func (c *cluster) observeLoop(ctx context.Context) {
	for ctx.Err() == nil {
		next := resyncInterval
		if c.synced() && c.observe() {
			next = drainPollInterval
		}
		waitForSignal(ctx, c.observeSignal, next)
	}
}

// observe evaluates the watched objects and publishes the replicas. It returns true if this gateway
// still has requests on draining pods.
func (c *cluster) observe() (draining bool) {
	now := time.Now()
	waiting := c.peers.update(c.leases.list(now), c.ownLease.name, now)
	pods := c.pods.list(now)
	draining, changed := c.updateDrains(pods, now)
	if changed {
		signal(c.ownLease.writeSignal)
	}
	c.updateEmptySets(pods, now)
	c.publish(pods)
	c.reportFound(now)
	signal(c.reconcileSignal)
	for _, model := range waiting {
		c.OnDemand(model)
	}
	return draining
}

// updateDrains updates drains from the pods. pending is true if this gateway is not done with a
// pod. changed is true if the gateway's lease must be written.
func (c *cluster) updateDrains(pods []*corev1.Pod, now time.Time) (pending, changed bool) {
	c.mu.Lock()
	before := c.drains
	c.mu.Unlock()
	next := map[string]podDrain{}
	for _, p := range pods {
		mark := drainMark(p)
		if mark == "" || isWorker(p) {
			continue
		}
		d := before[p.Name]
		if d.annotation != mark {
			d = podDrain{annotation: mark, since: now}
		}
		done := now.Sub(d.since) >= c.DrainSettle && c.InFlight(p.Name) == 0
		changed = changed || done != d.done
		d.done = done
		if !isMarked(p) {
			d.markedSince = time.Time{}
		} else if d.markedSince.IsZero() {
			d.markedSince = now
		}
		pending = pending || !done
		next[p.Name] = d
	}
	c.mu.Lock()
	c.drains = next
	c.mu.Unlock()
	return pending, changed
}

// publish reports the pods as replicas. It reports none before this gateway's lease was written,
// because a leader that does not know this gateway may remove a pod that has its requests.
func (c *cluster) publish(pods []*corev1.Pod) {
	full := map[string]int{} // the number of serving pods by Deployment
	for _, p := range pods {
		if rank(p) == serving && !isLoader(p) && !isWorker(p) && p.DeletionTimestamp == nil {
			full[p.Labels[labelDeployment]]++
		}
	}
	size := map[string]int{}
	for _, d := range c.workloads(time.Now()) {
		size[d.Name] = specReplicas(d)
	}
	all, troubles := c.loaders(pods), workerTroubles(pods)
	c.startBases = startBases(c.startBases, pods)
	for _, p := range pods {
		if isLoader(p) || isWorker(p) {
			continue
		}
		of := p.Labels[labelDeployment]
		if hasFinished(p) && full[of] >= size[of] {
			// The pod was evicted or the like and has been replaced. Its object may stay in the API
			// for long.
			continue
		}
		r := replicaOf(p, c.startBases[p.UID])
		if why := troubles[p.Name]; why != "" && r.State == engines.Starting {
			r.Reason = why
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b engines.Replica) int { return strings.Compare(a.ID, b.ID) })
	c.mu.Lock()
	same := !c.leaseWritten || c.hasObserved && slices.Equal(all, c.replicas)
	if !same {
		c.replicas, c.hasObserved = all, true
	}
	c.mu.Unlock()
	if !same {
		c.onReplicas()
	}
}

// reportFound calls Config.OnFound once with the number of replicas of each model.
func (c *cluster) reportFound(now time.Time) {
	c.mu.Lock()
	known := c.setsBeforeFound != nil
	if !known {
		before := uint64(0)
		if c.OnFound != nil {
			before = c.setCount()
		}
		c.setsBeforeFound = &before
	}
	c.mu.Unlock()
	if known || c.OnFound == nil {
		return
	}
	counts := map[string]int{}
	pods := c.podsByDeployment(now)
	for _, d := range c.workloads(now) {
		counts[d.Annotations[annotationModel]] += (&deploymentPlan{deployment: c.describe(d, pods, now)}).stayingCount()
	}
	c.Config.OnFound(counts)
}

// leaseRecord returns the record that this gateway publishes in its lease.
func (c *cluster) leaseRecord() leaseRecord {
	c.mu.Lock()
	models, replicas, drained := c.wanted, c.replicas, c.drains
	c.mu.Unlock()
	r := leaseRecord{Models: map[string]engines.Load{}, Pods: map[string]int{}, Drained: map[string]string{}}
	for _, m := range models {
		if l := c.Load(m.Name); l != (engines.Load{}) {
			r.Models[m.Name] = l
		}
	}
	for _, replica := range replicas {
		if n := c.InFlight(replica.ID); n > 0 {
			r.Pods[replica.ID] = n
		}
	}
	for name, d := range drained {
		if d.done {
			r.Drained[name] = d.annotation
		}
	}
	return r
}

// snapshot returns the replicas of the namespace and whether they are known.
func (c *cluster) snapshot() (all []engines.Replica, shown bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.replicas, c.hasObserved
}

// isGone reports whether the namespace has no Deployment and no pod of the model. It is false
// before synced.
func (c *cluster) isGone(model string) bool {
	if !c.synced() {
		return false
	}
	now, hash := time.Now(), modelHash(model)
	return !slices.ContainsFunc(c.workloads(now), func(d *appsv1.Deployment) bool { return modelHashOf(d) == hash }) &&
		!slices.ContainsFunc(c.pods.list(now), func(p *corev1.Pod) bool { return p.Labels[labelModel] == hash })
}

// blockedModels returns, by model, why the cluster creates no pods. The API rejects the Deployment,
// the Deployment's controller reports a failure, or a Job or a group lacks pods.
func (c *cluster) blockedModels() map[string]string {
	now := time.Now()
	all := c.jobsWithoutPods(now)
	maps.Copy(all, c.groupsWithoutPods(now))
	for _, d := range c.deployments.list(now) {
		for _, is := range d.Status.Conditions {
			if is.Type == appsv1.DeploymentReplicaFailure && is.Status == corev1.ConditionTrue {
				all[d.Annotations[annotationModel]] = is.Message
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(all, c.writeErrors)
	return all
}

// mayOwn reports whether the object with this UID owns a Deployment here. It is true before synced.
func (c *cluster) mayOwn(uid string) bool {
	return !c.synced() || slices.ContainsFunc(c.workloads(time.Now()), func(d *appsv1.Deployment) bool {
		return slices.ContainsFunc(d.OwnerReferences, func(o metav1.OwnerReference) bool { return string(o.UID) == uid })
	})
}

func (c *cluster) status() ClusterStatus {
	return ClusterStatus{Context: c.location.context, Errors: c.health.problem()}
}
