package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// groupsRetry is the pause before LeaderWorkerSets are looked for again in a cluster that has not
// got them, or that does not let the gateway see them.
const groupsRetry = 10 * time.Second

// watchingGroups is what health calls the watch of LeaderWorkerSets.
const watchingGroups = "watch leaderworkersets"

// leaderStore keeps LeaderWorkerSets as the Deployments of their leaders.
type leaderStore struct {
	*watchStore[*appsv1.Deployment]
	// listed is called when all objects were read.
	listed func()
}

// Add stores a new object.
func (s leaderStore) Add(obj any) error { return s.convert(obj, s.watchStore.Add) }

// Update stores a new version of an object.
func (s leaderStore) Update(obj any) error { return s.convert(obj, s.watchStore.Update) }

// Delete removes an object.
func (s leaderStore) Delete(obj any) error { return s.convert(obj, s.watchStore.Delete) }

func (s leaderStore) convert(obj any, then func(any) error) error {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("the watch delivered a %T, which is another kind", obj)
	}
	d, err := leadersOf(u)
	if err != nil {
		return err
	}
	return then(d)
}

// Replace replaces all objects.
func (s leaderStore) Replace(list []any, version string) error {
	leaders := make([]any, 0, len(list))
	for _, obj := range list {
		if err := s.convert(obj, func(d any) error { leaders = append(leaders, d); return nil }); err != nil {
			return err
		}
	}
	s.listed()
	return s.watchStore.Replace(leaders, version)
}

// watchGroups keeps the LeaderWorkerSets up to date until ctx ends. A cluster that has not got the
// resource has none; only models that need it are told why.
func (c *cluster) watchGroups(ctx context.Context) {
	own := selector(c.labels())
	// A user who may only list the objects is told of no change, so a list alone ends no fault.
	watching := false
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			watching = false
			o.LabelSelector = own
			return c.groupsAPI.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = own
			events, err := c.groupsAPI.Watch(ctx, o)
			watching = err == nil
			if watching {
				c.health.clear(watchingGroups)
			}
			if watching && o.SendInitialEvents == nil { // else the objects come by the watch
				c.setGroupsFault(nil)
				signal(c.reconcileSignal)
			}
			return events, err
		},
	}
	store := leaderStore{watchStore: c.groupSets, listed: func() {
		if watching {
			c.setGroupsFault(nil)
		}
	}}
	reflector := newReflector(groupsResource().Resource, source, &unstructured.Unstructured{}, store)
	for ctx.Err() == nil {
		wait := retryDelay / 2
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			wait = c.onGroupsError(err)
		}
		pause(ctx, wait)
	}
}

// onGroupsError handles an error of the watch. It returns how long to wait before the next try.
func (c *cluster) onGroupsError(err error) time.Duration {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		c.health.fail(watchingGroups, err)
		return retryDelay / 2
	}
	missing := apierrors.IsNotFound(err)
	switch {
	case missing:
		err = errors.New("the cluster has no LeaderWorkerSets (leaderworkerset.x-k8s.io/v1), which hosts needs: install LeaderWorkerSet, or remove hosts")
	case !apierrors.IsForbidden(err):
		c.health.fail(watchingGroups, err)
		return retryDelay / 2
	}
	c.health.clear(watchingGroups) // the API has answered, and groupsFault tells what
	c.setGroupsFault(err)
	if !c.groupSets.hasSynced() || missing && len(c.groupSets.list(time.Now())) > 0 {
		_ = c.groupSets.Replace(nil, "") // It fails for objects of another kind only.
	}
	signal(c.reconcileSignal)
	return groupsRetry
}

// setGroupsFault sets why LeaderWorkerSets cannot be used. Nil means that they can.
func (c *cluster) setGroupsFault(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groupsFault = err
}

// groupsUsable returns why LeaderWorkerSets cannot be used, or nil.
func (c *cluster) groupsUsable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.groupsFault
}

// workloads returns the Deployments, and those that stand for LeaderWorkerSets.
func (c *cluster) workloads(now time.Time) []*appsv1.Deployment {
	return append(c.deployments.list(now), c.groupSets.list(now)...)
}

func (c *cluster) storeOf(d *appsv1.Deployment) *watchStore[*appsv1.Deployment] {
	if hasGroups(d) {
		return c.groupSets
	}
	return c.deployments
}

// createWorkload creates d, a Deployment or the LeaderWorkerSet of w that it stands for.
func (c *cluster) createWorkload(ctx context.Context, d *appsv1.Deployment, w wanted) (*appsv1.Deployment, error) {
	options := metav1.CreateOptions{FieldManager: fieldManager}
	if !hasGroups(d) {
		return c.client.AppsV1().Deployments(d.Namespace).Create(ctx, d, options)
	}
	u, err := groupsObject(d, w)
	if err != nil {
		return nil, err
	}
	return leaders(c.groupsAPI.Create(ctx, u, options))
}

// getWorkload returns what d is or stands for as the API has it.
func (c *cluster) getWorkload(ctx context.Context, d *appsv1.Deployment) (*appsv1.Deployment, error) {
	if hasGroups(d) {
		return leaders(c.groupsAPI.Get(ctx, d.Name, metav1.GetOptions{}))
	}
	return c.client.AppsV1().Deployments(c.location.namespace).Get(ctx, d.Name, metav1.GetOptions{})
}

// patchWorkload patches what d is or stands for. A patch to apply takes fields that others own.
func (c *cluster) patchWorkload(ctx context.Context, d *appsv1.Deployment, kind types.PatchType, data []byte) (*appsv1.Deployment, error) {
	options := metav1.PatchOptions{FieldManager: fieldManager}
	if kind == types.ApplyPatchType {
		options.Force = new(true)
	}
	if hasGroups(d) {
		return leaders(c.groupsAPI.Patch(ctx, d.Name, kind, data, options))
	}
	return c.client.AppsV1().Deployments(c.location.namespace).Patch(ctx, d.Name, kind, data, options)
}

// deleteWorkload deletes what d is or stands for.
func (c *cluster) deleteWorkload(ctx context.Context, d *appsv1.Deployment, options metav1.DeleteOptions) error {
	if hasGroups(d) {
		return c.groupsAPI.Delete(ctx, d.Name, options)
	}
	return c.client.AppsV1().Deployments(c.location.namespace).Delete(ctx, d.Name, options)
}

// leaders converts the result of a write.
func leaders(u *unstructured.Unstructured, err error) (*appsv1.Deployment, error) {
	if err != nil {
		return nil, err
	}
	return leadersOf(u)
}

// workerTroubles returns why groups are not whole, by the name of the leader.
func workerTroubles(pods []*corev1.Pod) map[string]string {
	all := map[string]string{}
	for _, p := range slices.Backward(pods) {
		if !isWorker(p) || p.DeletionTimestamp != nil {
			continue
		}
		reason := schedulingReason(p)
		if reason == "" {
			reason = waitingReason(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses))
		}
		if reason != "" {
			all[leaderOf(p.Name)] = "worker " + p.Name + ": " + reason
		}
	}
	return all
}

// updateEmptySets updates emptySets from the LeaderWorkerSets and the pods.
func (c *cluster) updateEmptySets(pods []*corev1.Pod, now time.Time) {
	used := map[string]bool{}
	for _, p := range pods {
		if !isWorker(p) {
			used[p.Labels[labelDeployment]] = true
		}
	}
	sets, next := c.groupSets.list(now), map[string]time.Time{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range sets {
		if specReplicas(d) > 0 && d.DeletionTimestamp == nil && !used[d.Name] {
			next[d.Name] = cmp.Or(c.emptySets[d.Name], now)
		}
	}
	c.emptySets = next
}

// groupsWithoutPods returns, by model, that a LeaderWorkerSet has no pod, or that a group which is
// not ready lacks workers. The API may refuse the pods, such as under a quota. Neither has a
// condition for that, only the events of their StatefulSets, which Sluice does not read.
func (c *cluster) groupsWithoutPods(now time.Time) map[string]string {
	c.mu.Lock()
	models, emptySets := c.wanted, c.emptySets
	c.mu.Unlock()
	leaders, workers := map[string][]*corev1.Pod{}, map[string]int{} // by Deployment, and by leader
	for _, p := range c.pods.list(now) {
		if isWorker(p) {
			workers[leaderOf(p.Name)]++
		} else {
			leaders[p.Labels[labelDeployment]] = append(leaders[p.Labels[labelDeployment]], p)
		}
	}
	old := func(p *corev1.Pod) bool {
		return p.DeletionTimestamp == nil && now.Sub(p.CreationTimestamp.Time) >= podWait
	}
	all := map[string]string{}
	for _, m := range models {
		if m.workers == nil {
			continue
		}
		d := c.groupSets.get(m.manifest.Name, now)
		if d == nil || specReplicas(d) == 0 {
			continue
		}
		if since, empty := emptySets[d.Name]; empty && now.Sub(since) >= podWait {
			all[m.Name] = fmt.Sprintf("the LeaderWorkerSet %s has no pod; see why with kubectl describe leaderworkerset,statefulset %s", d.Name, d.Name)
		}
		for _, p := range leaders[d.Name] {
			if old(p) && rank(p) != serving && workers[p.Name] < m.Hosts-1 {
				all[m.Name] = fmt.Sprintf("the group of %s lacks workers; see why with kubectl describe statefulset %s", p.Name, p.Name)
			}
		}
	}
	return all
}

// isUnschedulable reports whether the scheduler has found no node for the pod.
func isUnschedulable(p *corev1.Pod) bool {
	is := podCondition(p, corev1.PodScheduled)
	return is != nil && is.Status == corev1.ConditionFalse && is.Reason == corev1.PodReasonUnschedulable
}
