package kubernetes

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// leaveSettle is how long a pod must have been marked as the one to leave before its Deployment is lowered: the controllers that choose read
// pods and Deployments by different watches.
const markSettle = time.Second

// starvedAfter is how long a pod may find no room before a further old one makes way for it.
const makeRoomAfter = 30 * time.Second

// election is one candidacy.
type election struct {
	elector *leaderelection.LeaderElector
	isWon   atomic.Bool
}

// elect stands for leader, again and again, until ctx ends; then the leadership is given up.
func (c *cluster) elect(ctx context.Context) {
	for ctx.Err() == nil {
		e := new(election)
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Name: "sluice-" + c.name, Namespace: c.location.namespace},
				Client:     c.client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: c.identity},
			},
			LeaseDuration: c.Renew * 3 / 2, RenewDeadline: c.Renew, RetryPeriod: c.Renew / 5,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) {
					e.isWon.Store(true)
					signal(c.reconcileSignal)
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			c.health.fail("stand for leader", err) // a pause that is too short: ours to get right
			return
		}
		e.elector = elector
		c.election.Store(e)
		elector.Run(ctx)
		c.election.Store(nil)
		pause(ctx, c.Renew/10)
	}
}

// leads tells whether this gateway is the one that writes. One that was stopped for long and wakes up has not renewed its lease in time, and so
// knows by itself that another may lead.
func (c *cluster) isLeader() bool {
	e := c.election.Load()
	return e != nil && e.isWon.Load() && e.elector.IsLeader() && e.elector.Check(-c.Renew/3) == nil
}

// may tells whether the models are known well enough to write: by a Set that knew what there is.
func (c *cluster) mayWrite() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.setsBeforeFound != nil && c.wantedSet > *c.setsBeforeFound
}

// keepActing makes what there is what there shall be, while this gateway leads, until ctx ends.
func (c *cluster) reconcileLoop(ctx context.Context) {
	for ctx.Err() == nil {
		next := resyncInterval
		if !c.isLeader() {
			c.health.clear("write") // it is another's matter now
			c.setWriteErrors(nil)
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

// pass goes over all models once. soon: time alone may change something.
func (c *cluster) reconcile(ctx context.Context) (soon bool, err error) {
	now := time.Now()
	var errs []error
	for _, name := range c.peers.expired() {
		errs = append(errs, ignoreNotFound(c.client.CoordinationV1().Leases(c.location.namespace).Delete(ctx, name, metav1.DeleteOptions{})))
	}
	models, frozen, some := c.modelsByHash()
	pods := c.podsByDeployment(now)
	objects := map[string][]*appsv1.Deployment{} // by model
	for _, d := range c.deployments.list(now) {
		hash := d.Labels[labelModel]
		objects[hash] = append(objects[hash], d)
		if _, known := models[hash]; !known && !frozen[hash] && !some {
			models[hash] = wanted{}
		}
	}
	refused := map[string]string{}
	for _, hash := range slices.Sorted(maps.Keys(models)) {
		t := modelReconciler{cluster: c, model: models[hash], objects: objects[hash], pods: pods, now: now}
		again, err := t.reconcile(ctx, hash)
		soon = soon || again
		errs = append(errs, err)
		if err != nil {
			refused[models[hash].Name] = err.Error()
		}
	}
	c.setWriteErrors(refused)
	return soon, errors.Join(errs...)
}

// note keeps what the API had against the last writes.
func (c *cluster) setWriteErrors(refused map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeErrors = refused
}

// models by their hashes, those that are left as they are, and whether there are some that are not known.
func (c *cluster) modelsByHash() (modelsByHash map[string]wanted, frozen map[string]bool, some bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	modelsByHash, frozen = map[string]wanted{}, map[string]bool{}
	for _, m := range c.wanted {
		hash := hashPrefix(m.Name, 16)
		if m.manifest == nil {
			frozen[hash] = true
			continue
		}
		modelsByHash[hash] = m
	}
	return modelsByHash, frozen, c.partial
}

func (c *cluster) podsByDeployment(now time.Time) map[string][]*corev1.Pod {
	by := map[string][]*corev1.Pod{}
	for _, p := range c.pods.list(now) {
		name := p.Labels[labelDeployment]
		by[name] = append(by[name], p)
	}
	return by
}

// read is the Deployment as planning knows it. There may be pods of one of the same name that is gone.
func (c *cluster) describe(d *appsv1.Deployment, pods map[string][]*corev1.Pod, now time.Time) deployment {
	read := deployment{name: d.Name, created: d.CreationTimestamp.Time, replicas: specReplicas(d), statusReplicas: int(d.Status.Replicas),
		deleting: d.DeletionTimestamp != nil}
	timeout, err := time.ParseDuration(d.Annotations[annotationDrain])
	if err != nil {
		timeout = c.DrainTimeout
	}
	others := c.peers.live()
	for _, object := range pods[d.Name] {
		if object.Annotations[annotationMade] != d.Spec.Template.Annotations[annotationMade] {
			continue
		}
		p := readPod(object)
		p.requests = c.inFlight(p.name)
		for _, other := range others {
			p.requests += other.record.Pods[p.name]
		}
		c.setDrainResult(&p, others, timeout, now)
		read.pods = append(read.pods, p)
	}
	return read
}

func specReplicas(d *appsv1.Deployment) int {
	if d.Spec.Replicas == nil {
		return 1
	}
	return int(*d.Spec.Replicas)
}

// verdict tells of a pod that was given up whether it may go: all gateways have said that they are done with it, or it has had its time, by our own
// clock from when we heard of it.
func (c *cluster) setDrainResult(p *pod, others []peer, timeout time.Duration, now time.Time) {
	c.mu.Lock()
	own := c.drains[p.name]
	c.mu.Unlock()
	if p.draining == "" || own.annotation != p.draining {
		return
	}
	all := own.done && !slices.ContainsFunc(others, func(o peer) bool { return o.record.Drained[p.name] != p.draining })
	p.drained = all || now.Sub(own.since) >= timeout
	p.markUnsettled = p.marked && (own.markedSince.IsZero() || now.Sub(own.markedSince) < markSettle)
}

// missing forgives that an object is not there.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// turn is one pass over one model.
type modelReconciler struct {
	*cluster
	model   wanted // zero: it is wanted no longer
	objects []*appsv1.Deployment
	pods    map[string][]*corev1.Pod
	now     time.Time
}

// take plans and carries out.
func (t modelReconciler) reconcile(ctx context.Context, hash string) (soon bool, err error) {
	w := target{}
	if t.model.manifest != nil {
		w = target{current: t.model.manifest.Name, desired: t.model.Desired}
	}
	if since, waits := t.needsRoomSince[hash]; waits {
		w.makeRoom = t.now.Sub(since) >= makeRoomAfter
	}
	var all []deployment
	for _, d := range t.objects {
		read := t.describe(d, t.pods, t.now)
		all = append(all, read)
		soon = soon || slices.ContainsFunc(read.pods, func(p pod) bool { return p.active() && p.draining != "" })
	}
	slices.SortFunc(all, func(a, b deployment) int { return a.created.Compare(b.created) })
	actions, hungry := plan(w, all)
	if _, waits := t.needsRoomSince[hash]; !hungry {
		delete(t.needsRoomSince, hash)
	} else if !waits {
		t.needsRoomSince[hash] = t.now
	}
	for _, a := range actions {
		if !t.isLeader() || ctx.Err() != nil {
			return soon, nil
		}
		if err := t.execute(ctx, a); err != nil {
			return true, fmt.Errorf("%s %s%s: %w", a.kind, a.deployment, podSuffix(a), err)
		}
	}
	return soon || hungry, t.updateMetadata(ctx)
}

func podSuffix(a action) string {
	if a.pod == "" {
		return ""
	}
	return ", pod " + a.pod
}

// carryOut does one thing. Every write names the version that it goes by. That it is past is no error: the watch will bring the next.
func (t modelReconciler) execute(ctx context.Context, a action) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var err error
	switch a.kind {
	case actionCreate:
		err = t.create(ctx, a.replicas)
	case actionScale:
		err = t.patchDeployment(ctx, a.deployment, map[string]any{"spec": map[string]any{"replicas": a.replicas}})
	case actionDelete:
		err = t.remove(ctx, a.deployment)
	case actionDrain:
		err = t.annotate(ctx, a, map[string]any{annotationDraining: time.Now().UTC().Format(time.RFC3339Nano)})
	case actionUndrain:
		err = t.undrain(ctx, a)
	case actionMark:
		err = t.annotate(ctx, a, map[string]any{annotationCost: "-1000"})
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) && a.kind != actionCreate {
		signal(t.reconcileSignal)
		return nil
	}
	if err == nil {
		t.Log.Info("Kubernetes: "+string(a.kind), zap.String("deployment", a.deployment), zap.String("pod", a.pod), zap.Int("replicas", a.replicas))
	}
	return err
}

func (t modelReconciler) create(ctx context.Context, count int) error {
	d := t.model.manifest.DeepCopy()
	d.Namespace, d.Spec.Replicas = t.location.namespace, new(int32(count))
	mergeInto(&d.Spec.Template.Annotations, map[string]string{annotationMade: rand.Text()})
	made, err := t.client.AppsV1().Deployments(d.Namespace).Create(ctx, d, metav1.CreateOptions{})
	if err == nil {
		t.deployments.recordWrite(made, "", time.Now())
	}
	return err
}

func (t modelReconciler) object(name string) *appsv1.Deployment {
	for _, d := range t.objects {
		if d.Name == name {
			return d
		}
	}
	return nil
}

func (t modelReconciler) patchDeployment(ctx context.Context, name string, patch map[string]any) error {
	d := t.object(name)
	data, err := versionedPatch(patch, d)
	if err != nil {
		return err
	}
	changed, err := t.client.AppsV1().Deployments(t.location.namespace).Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{})
	if err == nil {
		t.deployments.recordWrite(changed, d.ResourceVersion, time.Now())
	}
	return err
}

// patchOf is a merge patch of just this version of the object.
func versionedPatch(patch map[string]any, of metav1.Object) ([]byte, error) {
	meta, _ := patch["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["resourceVersion"], meta["uid"] = of.GetResourceVersion(), of.GetUID()
	patch["metadata"] = meta
	return json.Marshal(patch)
}

func (t modelReconciler) remove(ctx context.Context, name string) error {
	d := t.object(name)
	return t.client.AppsV1().Deployments(t.location.namespace).Delete(ctx, name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &d.UID, ResourceVersion: &d.ResourceVersion},
		PropagationPolicy: new(metav1.DeletePropagationBackground),
	})
}

func (t modelReconciler) annotate(ctx context.Context, a action, annotations map[string]any) error {
	for _, p := range t.pods[a.deployment] {
		if p.Name != a.pod {
			continue
		}
		data, err := versionedPatch(map[string]any{"metadata": map[string]any{"annotations": annotations}}, p)
		if err != nil {
			return err
		}
		changed, err := t.client.CoreV1().Pods(t.location.namespace).Patch(ctx, a.pod, types.MergePatchType, data, metav1.PatchOptions{})
		if err == nil {
			t.cluster.pods.recordWrite(changed, p.ResourceVersion, time.Now())
			signal(t.observeSignal)
		}
		return err
	}
	return nil
}

// recall takes a pod back. Where it was marked to leave, the Deployment is written as well, so that nobody who has not heard of it lowers the number.
func (t modelReconciler) undrain(ctx context.Context, a action) error {
	marked := slices.ContainsFunc(t.pods[a.deployment], func(p *corev1.Pod) bool { return p.Name == a.pod && p.Annotations[annotationCost] != "" })
	if marked {
		now := time.Now().UTC().Format(time.RFC3339Nano)
		err := t.patchDeployment(ctx, a.deployment, map[string]any{"metadata": map[string]any{"annotations": map[string]any{annotationRecalled: now}}})
		if err != nil {
			return err
		}
	}
	return t.annotate(ctx, a, map[string]any{annotationDraining: nil, annotationCost: nil})
}

// refresh makes of today's Deployment what its template does not say: how long its pods may drain, and whose it is.
func (t modelReconciler) updateMetadata(ctx context.Context) error {
	if t.model.manifest == nil {
		return nil
	}
	d, want := t.object(t.model.manifest.Name), t.model.manifest
	if d == nil || d.DeletionTimestamp != nil {
		return nil
	}
	meta := map[string]any{}
	for name, value := range want.Annotations {
		if d.Annotations[name] != value {
			meta["annotations"] = want.Annotations
		}
	}
	sameOwner := func(a, b metav1.OwnerReference) bool { return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind }
	if !slices.EqualFunc(d.OwnerReferences, want.OwnerReferences, sameOwner) {
		meta["ownerReferences"] = want.OwnerReferences
	}
	if len(meta) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := t.patchDeployment(ctx, d.Name, map[string]any{"metadata": meta})
	if apierrors.IsConflict(err) {
		return nil
	}
	return ignoreNotFound(err)
}
