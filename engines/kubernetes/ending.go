package kubernetes

import (
	"context"
	"time"

	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// endGraceSeconds is the grace period of a deleted pod without requests, in seconds. The kubelet
// runs the hook before the stop again within it, and then stops the engine.
const endGraceSeconds = 5

// drainMark returns what gateways write into their leases when they are done with a pod: the
// draining annotation, or a text for a deleted pod. It is empty for a pod that is wanted.
func drainMark(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "deleted " + string(p.UID)
	}
	return p.Annotations[annotationDraining]
}

// endPods adds the writes that end the deleted pods without requests. Without it, they would serve
// for the whole grace period, which is as long as a request may take. It does not matter who has
// deleted a pod: the ReplicaSet, an eviction, or an operator. ending is true while a deleted pod
// still has requests.
func (c *cluster) endPods(writes map[string]write, deployments map[string][]*appsv1.Deployment, now time.Time) (ending bool) {
	timeouts := map[string]time.Duration{}
	for _, all := range deployments {
		for _, d := range all {
			timeouts[d.Name] = c.drainTimeoutOf(d)
		}
	}
	others := c.peers.live()
	pods := podsByName(c.pods.list(now))
	for _, p := range pods {
		if p.DeletionTimestamp == nil || p.DeletionGracePeriodSeconds == nil || *p.DeletionGracePeriodSeconds <= endGraceSeconds {
			continue
		}
		ending = true
		timeout, ok := timeouts[p.Labels[labelDeployment]]
		if !ok {
			timeout = c.DrainTimeout
		}
		var mayEnd bool
		if isWorker(p) {
			mayEnd = mayEndWorker(p, pods[leaderOf(p.Name)])
		} else {
			mayEnd = c.mayEndPod(p, others, timeout, now)
		}
		if mayEnd {
			writes["pod "+p.Name] = func(ctx context.Context) (bool, error) { return false, c.endPod(ctx, p) }
		}
	}
	return ending
}

// podsByName returns the pods by their names.
func podsByName(pods []*corev1.Pod) map[string]*corev1.Pod {
	all := make(map[string]*corev1.Pod, len(pods))
	for _, p := range pods {
		all[p.Name] = p
	}
	return all
}

// mayEndPod reports whether a deleted pod may end: it was marked before, all gateways are done with
// it, or its drain timeout is over.
func (c *cluster) mayEndPod(p *corev1.Pod, others []peer, timeout time.Duration, now time.Time) bool {
	c.mu.Lock()
	own := c.drains[p.Name]
	c.mu.Unlock()
	known := own.annotation == drainMark(p)
	return isMarked(p) || known && (isDrained(p.Name, own, others) || now.Sub(own.since) >= timeout)
}

// mayEndWorker reports whether a deleted worker may end: its leader is gone, or ends and has no
// requests. leader is the pod with the name of its leader, or nil. A leader that is younger than
// the worker is that of another group.
func mayEndWorker(worker, leader *corev1.Pod) bool {
	if leader == nil || leader.CreationTimestamp.After(worker.CreationTimestamp.Time) || hasFinished(leader) {
		return true
	}
	grace := leader.DeletionGracePeriodSeconds
	return leader.DeletionTimestamp != nil && grace != nil && *grace <= endGraceSeconds
}

// endPod shortens the grace period of a deleted pod.
func (c *cluster) endPod(ctx context.Context, p *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := c.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(endGraceSeconds)), Preconditions: &metav1.Preconditions{UID: &p.UID},
	})
	if err == nil {
		c.Log.Info("deleted pod ended", zap.String("pod", p.Name))
	}
	return ignoreNotFound(err)
}
