package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// markSettle is how long a pod must have been marked before its Deployment is scaled down.
// Kubernetes' controllers read pods and Deployments by separate watches, so they must have time to
// see the mark.
const markSettle = time.Second

// makeRoomAfter is how long a new pod may stay unschedulable before another old pod is drained to
// make room.
const makeRoomAfter = 30 * time.Second

// mayWrite reports whether wanted comes from a call of Launcher.Set that was made after
// Config.OnFound.
func (c *cluster) mayWrite() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.setsBeforeFound != nil && c.wantedSet > *c.setsBeforeFound
}

// reconcileLoop reconciles while this gateway is the leader, until ctx ends.
func (c *cluster) reconcileLoop(ctx context.Context) {
	defer c.writers.all.Wait()
	for ctx.Err() == nil {
		next := resyncInterval
		if !c.isLeader() {
			c.health.clear("write") // The errors now concern another gateway.
			c.setWriteErrors(nil)
			c.forgetClaims(nil)
		} else if c.mayWrite() {
			soon, err := c.reconcile(ctx)
			if soon {
				next = time.Second
			}
			switch {
			case err == nil:
				c.health.clear("write")
			case ctx.Err() == nil:
				c.health.fail("write", err)
				next = retryDelay
			}
		}
		waitForSignal(ctx, c.reconcileSignal, next)
	}
}

// reconcile compares all models with the existing objects and writes the differences. soon is true
// if it must run again soon although nothing changes.
func (c *cluster) reconcile(ctx context.Context) (soon bool, err error) {
	now := time.Now()
	models, frozen, partial := c.modelsByHash()
	unwanted := func(hash string) {
		if _, known := models[hash]; !known && !frozen[hash] && !partial {
			models[hash] = wanted{}
		}
	}
	pods := c.podsByDeployment(now)
	deployments := map[string][]*appsv1.Deployment{} // by model hash
	for _, d := range c.workloads(now) {
		hash := modelHashOf(d)
		deployments[hash] = append(deployments[hash], d)
		unwanted(hash)
	}
	budgets := map[string][]*policyv1.PodDisruptionBudget{} // by model hash
	for _, b := range c.budgets.list(now) {
		hash := modelHashOf(b)
		budgets[hash] = append(budgets[hash], b)
		unwanted(hash)
	}
	writes := map[string]write{}
	c.removeLeases(writes)
	loaded := c.reconcileWeights(writes, models, partial || len(frozen) > 0, now)
	maps.DeleteFunc(c.memories, func(hash string, _ *memory) bool { _, known := models[hash]; return !known })
	for hash, m := range models {
		if c.memories[hash] == nil {
			c.memories[hash] = &memory{applied: map[string]appliedDeployment{}}
		}
		writes["model "+hash] = modelReconciler{cluster: c, model: m, memory: c.memories[hash], loaded: loaded,
			deployments: deployments[hash], budgets: budgets[hash], pods: pods, now: now}.reconcile
	}
	ending := c.endPods(writes, deployments, now)
	results := c.writers.run(ctx, writes)
	c.setWriteErrors(c.errorsByModel(models, results))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(results)) {
		soon = soon || results[name].soon
		errs = append(errs, results[name].err)
	}
	return soon || ending, errors.Join(errs...)
}

// errorsByModel returns the errors of the last writes for the wanted models.
func (c *cluster) errorsByModel(models map[string]wanted, results map[string]written) map[string]string {
	all := map[string]string{}
	for hash, m := range models {
		err := results["model "+hash].err
		if m.waitsForWeights() {
			err = cmp.Or(err, results[weightsWrite(c.jobName(*m.Weights))].err)
		}
		if err != nil && m.Name != "" { // a model that is not wanted has no name
			all[m.Name] = err.Error()
		}
	}
	return all
}

// removeLeases adds the writes that remove the leases of gateways that are long dead.
func (c *cluster) removeLeases(writes map[string]write) {
	leases := c.client.CoordinationV1().Leases(c.location.namespace)
	for _, name := range c.peers.expired() {
		writes["lease "+name] = func(ctx context.Context) (bool, error) {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			return false, ignoreNotFound(leases.Delete(ctx, name, metav1.DeleteOptions{}))
		}
	}
}

// setWriteErrors replaces the errors of this gateway's last writes.
func (c *cluster) setWriteErrors(writeErrors map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeErrors = writeErrors
}

// modelsByHash returns the wanted models by hash, the hashes of models that must stay untouched,
// and whether there may be models that are not wanted.
func (c *cluster) modelsByHash() (models map[string]wanted, frozen map[string]bool, partial bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	models, frozen = map[string]wanted{}, map[string]bool{}
	for _, m := range c.wanted {
		hash := modelHash(m.Name)
		if m.manifest == nil {
			frozen[hash] = true
			continue
		}
		models[hash] = m
	}
	return models, frozen, c.partial
}

func (c *cluster) podsByDeployment(now time.Time) map[string][]*corev1.Pod {
	by := map[string][]*corev1.Pod{}
	for _, p := range c.pods.list(now) {
		name := p.Labels[labelDeployment]
		by[name] = append(by[name], p)
	}
	return by
}

// describe returns a Deployment with its pods, as plan needs them. It skips pods of an earlier
// Deployment of the same name.
func (c *cluster) describe(d *appsv1.Deployment, pods map[string][]*corev1.Pod, now time.Time) deployment {
	read := deployment{name: d.Name, created: d.CreationTimestamp.Time, replicas: specReplicas(d), statusReplicas: int(d.Status.Replicas),
		deleting: d.DeletionTimestamp != nil, ordered: hasGroups(d)}
	if made, err := strconv.Atoi(d.Annotations[annotationRoom]); err == nil {
		read.roomMade, read.roomMadeBy = &made, d.Annotations[annotationRoomBy]
	}
	timeout, others := c.drainTimeoutOf(d), c.peers.live()
	stuck := map[string]bool{} // leaders of groups that do not fit
	for _, object := range pods[d.Name] {
		if isWorker(object) && isUnschedulable(object) && object.DeletionTimestamp == nil {
			stuck[leaderOf(object.Name)] = true
		}
	}
	for _, object := range pods[d.Name] {
		if isWorker(object) || object.Annotations[annotationMade] != d.Spec.Template.Annotations[annotationMade] {
			continue
		}
		p := readPod(object)
		p.lost = isLost(object, now)
		if read.ordered {
			p.index, p.unschedulable = groupIndex(p.name), p.unschedulable || stuck[p.name]
		}
		p.requests = c.InFlight(p.name)
		for _, other := range others {
			p.requests += other.record.Pods[p.name]
		}
		c.setDrainResult(&p, others, timeout, now)
		read.pods = append(read.pods, p)
	}
	return read
}

// drainTimeoutOf returns how long the pods of a Deployment may drain.
func (c *cluster) drainTimeoutOf(d *appsv1.Deployment) time.Duration {
	timeout, err := time.ParseDuration(d.Annotations[annotationDrain])
	if err != nil {
		return c.DrainTimeout
	}
	return timeout
}

func specReplicas(d *appsv1.Deployment) int {
	if d.Spec.Replicas == nil {
		return 1
	}
	return int(*d.Spec.Replicas)
}

// setDrainResult sets drained and markUnsettled of a draining pod. A pod is drained if all gateways
// are done with it, or if its drain timeout is over. The timeout runs by this gateway's clock from
// the time at which it saw the annotation.
func (c *cluster) setDrainResult(p *pod, others []peer, timeout time.Duration, now time.Time) {
	c.mu.Lock()
	own := c.drains[p.name]
	c.mu.Unlock()
	if p.draining == "" || own.annotation != p.draining {
		return
	}
	p.drained = isDrained(p.name, own, others) || now.Sub(own.since) >= timeout
	p.markUnsettled = p.marked && (own.markedSince.IsZero() || now.Sub(own.markedSince) < markSettle)
}

// isDrained reports whether all gateways are done with a draining pod.
func isDrained(pod string, own podDrain, others []peer) bool {
	return own.done && !slices.ContainsFunc(others, func(o peer) bool { return o.record.Drained[pod] != own.annotation })
}

// ignoreNotFound returns nil if the object does not exist.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
