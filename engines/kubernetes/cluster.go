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
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/sluice-gateway/sluice/engines"
)

const (
	// lookAtLeast is the shortest pause between two looks at all objects, lookAgain the pause while pods are drained, lookNow the longest.
	minLoopDelay      = 20 * time.Millisecond
	drainPollInterval = 200 * time.Millisecond
	resyncInterval    = 5 * time.Second
)

// cluster is one namespace of one cluster: what is watched there, this gateway's lease, and, while it leads, what it writes.
type cluster struct {
	Config
	install
	location location // as it was named, with the namespace that is meant
	server   string   // two names of one server and namespace are one cluster
	identity string
	client   kubernetes.Interface
	// report tells the launcher that the replicas are others.
	onReplicas func()
	// sets counts the calls of Launcher.Set.
	setCount func() uint64

	deployments *watchStore[*appsv1.Deployment]
	pods        *watchStore[*corev1.Pod]
	leases      *watchStore[*coordinationv1.Lease]
	peers       *peers
	ownLease    *gatewayLease
	election    atomic.Pointer[election]
	health      *health
	// look and act have a token when something has changed.
	observeSignal, reconcileSignal chan struct{}

	mu sync.Mutex
	// wanted are the models of this place; guarded by mu
	wanted []wanted
	// told counts the calls of Set that wanted comes from; guarded by mu
	wantedSet uint64
	// some: there are models that wanted does not name; guarded by mu
	partial bool
	// found is how many calls of Set came before Found was told; nil: it was not told yet; guarded by mu
	setsBeforeFound *uint64
	// joined: this gateway's lease was written; guarded by mu
	leaseWritten bool
	// replicas as reported last, and whether they ever were; guarded by mu
	replicas    []engines.Replica
	hasObserved bool
	// drained by pod; guarded by mu
	drains map[string]podDrain
	// refused says by model what the API had against the last write of this gateway; guarded by mu
	writeErrors map[string]string
	// starving is since when a model's pod has waited for room; only act's loop uses it
	needsRoomSince map[string]time.Time
}

// wanted is a model with its Deployment; nil: none can be made, and what there is stays.
type wanted struct {
	Model
	manifest *appsv1.Deployment
}

// drained is what this gateway has to say of a pod that was given up.
type podDrain struct {
	annotation string
	since      time.Time
	done       bool
	// leaving is since when the pod has been the first that its ReplicaSet gives up; zero: it is not.
	markedSince time.Time
}

// newCluster returns one that does nothing yet.
func newCluster(c Config, p location, to *rest.Config, namespace string) (*cluster, error) {
	to = rest.CopyConfig(to)
	to.QPS, to.Burst = 50, 100
	to.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(to)
	if err != nil {
		return nil, err
	}
	k := &cluster{
		Config: c, install: install{name: c.Name, drainTimeout: c.DrainTimeout}, location: location{p.context, namespace}, identity: c.Identity,
		client: client, observeSignal: make(chan struct{}, 1), reconcileSignal: make(chan struct{}, 1), health: newHealth(c.Log),
		peers: &peers{lifetime: missedRenewals * c.Renew}, drains: map[string]podDrain{}, needsRoomSince: map[string]time.Time{},
	}
	k.deployments = newWatchStore[*appsv1.Deployment](k.onWatchEvent("deployments"))
	k.pods = newWatchStore[*corev1.Pod](k.onWatchEvent("pods"))
	k.leases = newWatchStore[*coordinationv1.Lease](k.onWatchEvent("leases"))
	k.ownLease = &gatewayLease{
		client: client.CoordinationV1().Leases(namespace), identity: c.Identity, labels: k.labels(), interval: c.Renew,
		name:    "sluice-" + c.Name + "-gw-" + slug(c.Identity, maxSlugLength) + "-" + hashPrefix(c.Identity, 6),
		content: k.leaseRecord, onWritten: k.onLeaseWritten, writeSignal: make(chan struct{}, 1),
	}
	return k, nil
}

// saw is called when the watch of a kind has brought something.
func (c *cluster) onWatchEvent(kind string) func() {
	return func() {
		c.health.clear("watch " + kind)
		signal(c.observeSignal)
	}
}

// renewed is called when the gateway's lease was written, or was not.
func (c *cluster) onLeaseWritten(err error) {
	c.health.setReachable(err)
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

// set says which models the place shall have, all or some of them. told counts the calls of Launcher.Set up to this one.
func (c *cluster) set(models []wanted, some bool, told uint64) {
	c.mu.Lock()
	c.wanted, c.partial, c.wantedSet = models, some, told
	c.mu.Unlock()
	signal(c.reconcileSignal)
	signal(c.ownLease.writeSignal)
}

// run works until ctx ends, then gives up leadership and lease.
func (c *cluster) run(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.Logger{}) // what matters of what client-go would log is in the health
	outlasting, leave := context.WithCancel(context.WithoutCancel(ctx))
	var held, working sync.WaitGroup
	held.Go(func() { c.ownLease.run(outlasting) })
	held.Go(func() {
		if c.waitSynced(ctx) {
			c.elect(outlasting)
		}
	})
	kinds := map[string]func(watchTarget){
		"deployments": func(w watchTarget) {
			w.client, w.kind = c.client.AppsV1().RESTClient(), &appsv1.Deployment{}
			watchObjects(ctx, w, c.deployments, c.failure("watch deployments"))
		},
		"pods": func(w watchTarget) {
			w.client, w.kind = c.client.CoreV1().RESTClient(), &corev1.Pod{}
			watchObjects(ctx, w, c.pods, c.failure("watch pods"))
		},
		"leases": func(w watchTarget) {
			w.client, w.kind = c.client.CoordinationV1().RESTClient(), &coordinationv1.Lease{}
			w.selector += "," + labelRole + "=" + roleGateway
			watchObjects(ctx, w, c.leases, c.failure("watch leases"))
		},
	}
	for kind, watch := range kinds {
		working.Go(func() {
			watch(watchTarget{resource: kind, namespace: c.location.namespace, selector: selector(c.labels())})
		})
	}
	working.Go(func() { c.observeLoop(ctx) })
	working.Go(func() { c.reconcileLoop(ctx) })
	working.Wait() // nothing is written any more when others may
	leave()
	held.Wait()
}

func (c *cluster) failure(what string) func(error) {
	return func(err error) { c.health.fail(what, err) }
}

// selector writes labels as one.
func selector(labels map[string]string) string {
	var terms []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		terms = append(terms, name+"="+labels[name])
	}
	return strings.Join(terms, ",")
}

// synced tells whether everything was read once. From then on it stays what is known, also while the API is away.
func (c *cluster) synced() bool {
	return c.deployments.hasSynced() && c.pods.hasSynced() && c.leases.hasSynced()
}

func (c *cluster) waitSynced(ctx context.Context) bool {
	for ctx.Err() == nil && !c.synced() {
		pause(ctx, drainPollInterval)
	}
	return ctx.Err() == nil
}

// keepLooking reports what there is, after each change and now and then, until ctx ends.
func (c *cluster) observeLoop(ctx context.Context) {
	for ctx.Err() == nil {
		next := resyncInterval
		if c.synced() && c.observe() {
			next = drainPollInterval
		}
		waitForSignal(ctx, c.observeSignal, next)
	}
}

// observe takes in what the watches have shown. It tells whether there are pods that this gateway is not done with.
func (c *cluster) observe() (draining bool) {
	now := time.Now()
	waiting := c.peers.update(c.leases.list(now), c.ownLease.name, now)
	pods := c.pods.list(now)
	draining, changed := c.updateDrains(pods, now)
	if changed {
		signal(c.ownLease.writeSignal)
	}
	c.publish(pods)
	c.reportFound(now)
	signal(c.reconcileSignal)
	if c.OnDemand != nil {
		for _, model := range waiting {
			c.OnDemand(model)
		}
	}
	return draining
}

// drainOwn brings up to date what this gateway has to say of the pods that were given up.
func (c *cluster) updateDrains(pods []*corev1.Pod, now time.Time) (undone, changed bool) {
	c.mu.Lock()
	before := c.drains // nobody changes a map that was stored, and nobody else stores one
	c.mu.Unlock()
	next := map[string]podDrain{}
	for _, p := range pods {
		mark := p.Annotations[annotationDraining]
		if mark == "" || p.DeletionTimestamp != nil {
			continue
		}
		d := before[p.Name]
		if d.annotation != mark {
			d = podDrain{annotation: mark, since: now}
		}
		done := now.Sub(d.since) >= c.DrainSettle && c.inFlight(p.Name) == 0
		changed = changed || done != d.done
		d.done = done
		if !readPod(p).marked {
			d.markedSince = time.Time{}
		} else if d.markedSince.IsZero() {
			d.markedSince = now
		}
		undone = undone || !done
		next[p.Name] = d
	}
	c.mu.Lock()
	c.drains = next
	c.mu.Unlock()
	return undone, changed
}

func (c *cluster) inFlight(replica string) int {
	if c.InFlight == nil {
		return 0
	}
	return c.InFlight(replica)
}

// publish makes replicas of the pods. A gateway whose lease nobody has seen yet has none: pods could be taken from under it.
func (c *cluster) publish(pods []*corev1.Pod) {
	full := map[string]int{} // Deployments by how many of their pods serve
	for _, p := range pods {
		if rank(p) == serving && p.DeletionTimestamp == nil {
			full[p.Labels[labelDeployment]]++
		}
	}
	size := map[string]int{}
	for _, d := range c.deployments.list(time.Now()) {
		size[d.Name] = specReplicas(d)
	}
	var all []engines.Replica
	for _, p := range pods {
		of := p.Labels[labelDeployment]
		if readPod(p).finished && full[of] >= size[of] {
			continue // it was evicted or the like, and has been replaced; its remains stay in the API for long
		}
		all = append(all, replicaOf(p))
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

// tellFound tells, once, how many replicas the models have.
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
	for _, d := range c.deployments.list(now) {
		counts[d.Annotations[annotationModel]] += (&deploymentPlan{deployment: c.describe(d, pods, now)}).stayingCount()
	}
	c.Config.OnFound(counts)
}

// say is what the gateway's lease tells.
func (c *cluster) leaseRecord() leaseRecord {
	c.mu.Lock()
	models, replicas, drained := c.wanted, c.replicas, c.drains
	c.mu.Unlock()
	r := leaseRecord{Models: map[string]Load{}, Pods: map[string]int{}, Drained: map[string]string{}}
	for _, m := range models {
		if c.Load == nil {
			break
		}
		if l := c.Load(m.Name); l != (Load{}) {
			r.Models[m.Name] = l
		}
	}
	for _, replica := range replicas {
		if n := c.inFlight(replica.ID); n > 0 {
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

// reported are the replicas of this place, and whether they were ever looked at.
func (c *cluster) snapshot() (all []engines.Replica, shown bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.replicas, c.hasObserved
}

// gone tells whether nothing of the model is left here, as far as that is known.
func (c *cluster) isGone(model string) bool {
	if !c.synced() {
		return false
	}
	now, hash := time.Now(), hashPrefix(model, 16)
	return !slices.ContainsFunc(c.deployments.list(now), func(d *appsv1.Deployment) bool { return d.Labels[labelModel] == hash }) &&
		!slices.ContainsFunc(c.pods.list(now), func(p *corev1.Pod) bool { return p.Labels[labelModel] == hash })
}

// blocked says by model why it gets no pods: the API refuses its Deployment, or its Deployment's controller cannot make any.
func (c *cluster) blockedModels() map[string]string {
	all := map[string]string{}
	for _, d := range c.deployments.list(time.Now()) {
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

// owns tells whether the object with this UID has a Deployment here, or may have one.
func (c *cluster) mayOwn(uid string) bool {
	return !c.synced() || slices.ContainsFunc(c.deployments.list(time.Now()), func(d *appsv1.Deployment) bool {
		return slices.ContainsFunc(d.OwnerReferences, func(o metav1.OwnerReference) bool { return string(o.UID) == uid })
	})
}

func (c *cluster) status() ClusterStatus {
	s := ClusterStatus{
		Context: c.location.context, Namespace: c.location.namespace, Synced: c.synced(), IsLeader: c.isLeader(),
		Gateways: len(c.peers.live()) + 1,
	}
	if e := c.election.Load(); e != nil {
		s.Leader = e.elector.GetLeader()
	}
	s.Reachable, s.Errors = c.health.state()
	return s
}
