package kubernetes

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/redact"
)

// Ranks of pods, in the order in which a ReplicaSet deletes its pods. The deletion cost counts only
// among pods of the same rank. The launcher can therefore choose the pod to delete only if no other
// pod of the Deployment has a lower rank.
const (
	unscheduled = iota
	notRunning
	notReady
	serving
)

// pod is a pod as plan needs it.
type pod struct {
	name string
	// index is the number of the group of a leader, else 0.
	index   int
	created time.Time
	rank    int
	// unschedulable is true if the scheduler has found no node for the pod.
	unschedulable bool
	// terminating is true if the pod was deleted. finished is true if all its containers have ended
	// for good, so that the ReplicaSet no longer counts it.
	terminating, finished bool
	// lost is true if the pod was deleted and should have ended by now. Its node is probably lost,
	// so that nobody can say when the pod frees its room.
	lost bool
	// draining is the draining annotation. It is empty if the pod is wanted.
	draining string
	// drained is true if the pod drains and no gateway has requests on it. Only the gateways know
	// that.
	drained bool
	// marked is true if the ReplicaSet would delete the pod first. markUnsettled is true while the
	// controllers may not have seen the mark.
	marked, markUnsettled bool
	// requests is the sum of the requests that the gateways report.
	requests int
}

// active reports whether the ReplicaSet counts the pod.
func (p pod) active() bool { return !p.terminating && !p.finished }

// stays reports whether the pod is active and wanted.
func (p pod) stays() bool { return p.active() && p.draining == "" }

// lostAfter is how long after its deadline a deleted pod is taken for lost. The deadline is by the
// API server's clock, so lostAfter also covers the difference of clocks.
const lostAfter = 30 * time.Second

// isLost reports whether a deleted pod should have ended by now. The API sets the time of deletion
// to the end of the grace period. A node that is lost never reports that its pods have ended.
func isLost(p *corev1.Pod, now time.Time) bool {
	return p.DeletionTimestamp != nil && now.Sub(p.DeletionTimestamp.Time) > lostAfter
}

func readPod(p *corev1.Pod) pod {
	return pod{
		name: p.Name, created: p.CreationTimestamp.Time, rank: rank(p),
		unschedulable: isUnschedulable(p),
		terminating:   p.DeletionTimestamp != nil,
		finished:      hasFinished(p),
		draining:      p.Annotations[annotationDraining],
		marked:        isMarked(p),
	}
}

// hasFinished reports whether all containers of the pod have ended for good.
func hasFinished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// isMarked reports whether the pod drains and is the first that its ReplicaSet deletes.
func isMarked(p *corev1.Pod) bool {
	return p.Annotations[annotationDraining] != "" && p.Annotations[annotationCost] != ""
}

func rank(p *corev1.Pod) int {
	switch {
	case p.Spec.NodeName == "":
		return unscheduled
	case p.Status.Phase != corev1.PodRunning:
		return notRunning
	case !isTrue(podCondition(p, corev1.PodReady)):
		return notReady
	}
	return serving
}

func podCondition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

func isTrue(c *corev1.PodCondition) bool { return c != nil && c.Status == corev1.ConditionTrue }

// replicaOf returns the pod as a replica of the fleet. All fields come from the pod, because the
// pod may outlive its Deployment. startBase is how many ends of the engine do not count as failed
// starts.
func replicaOf(p *corev1.Pod, startBase int) engines.Replica {
	slots, _ := strconv.Atoi(p.Annotations[annotationSlots]) // A missing annotation means unknown.
	r := engines.Replica{
		ID: p.Name, Model: p.Annotations[annotationModel], Launcher: engines.Kubernetes, Node: p.Spec.NodeName,
		Address: podAddress(p), Slots: slots,
	}
	engine := containerStatus(p.Status.ContainerStatuses, engineContainer)
	if engine != nil {
		r.Restarts = int(engine.RestartCount)
	}
	r.State, r.Reason, r.Since = stateOf(p, engine)
	if r.Reason != "" {
		r.Reason = podRedactor(p).Text(r.Reason)
	}
	if r.State == engines.Ready && !r.Address.IsValid() {
		r.State, r.Reason = engines.Starting, "ready, but its address cannot be read"
	}
	describeStarts(&r, p, engine, startBase)
	return r
}

// podRedactor returns what hides secrets in the lines that the pod's engine has logged. It does not
// know the values of Secrets of Kubernetes, which only what they look like can hide.
func podRedactor(p *corev1.Pod) *redact.Redactor {
	env := map[string]string{}
	for _, container := range p.Spec.Containers {
		for _, v := range container.Env {
			env[v.Name] = v.Value
		}
	}
	return redact.ForEnvironment(env, nil)
}

// podAddress returns the engine's address. It is the zero value while the pod has none.
func podAddress(p *corev1.Pod) netip.AddrPort {
	ip, err := netip.ParseAddr(p.Status.PodIP)
	number, bad := strconv.ParseUint(p.Annotations[annotationPort], 10, 16)
	if err != nil || bad != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip, uint16(number))
}

func containerStatus(all []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// stateOf returns the replica's state, the reason why it is not ready, and since when. engine is
// nil until the pod's node reports it.
func stateOf(p *corev1.Pod, engine *corev1.ContainerStatus) (state engines.State, reason string, since time.Time) {
	created := p.CreationTimestamp.Time
	switch {
	case p.DeletionTimestamp != nil:
		grace := time.Duration(0)
		if p.DeletionGracePeriodSeconds != nil {
			grace = time.Duration(*p.DeletionGracePeriodSeconds) * time.Second
		}
		return engines.Draining, "", p.DeletionTimestamp.Add(-grace)
	case p.Annotations[annotationDraining] != "":
		at, _ := time.Parse(time.RFC3339, p.Annotations[annotationDraining])
		return engines.Draining, "", at
	case hasFinished(p):
		return engines.Failed, exitReason(p, engine), finishTime(engine, created)
	case p.Spec.NodeName == "":
		return engines.Pending, schedulingReason(p), created
	}
	if blocked := waitingReason(p.Status.InitContainerStatuses); blocked != "" {
		return initState(p), blocked, created
	}
	if engine == nil || p.Status.PodIP == "" {
		return engines.Pending, waitingReason(p.Status.ContainerStatuses), created
	}
	return runningState(p, engine)
}

// runningState returns the state of a pod that has an address.
func runningState(p *corev1.Pod, engine *corev1.ContainerStatus) (state engines.State, reason string, since time.Time) {
	created := p.CreationTimestamp.Time
	ready := podCondition(p, corev1.PodReady)
	switch s := engine.State; {
	case s.Terminated != nil:
		return engines.Failed, exitReason(p, engine), finishTime(engine, created)
	case s.Waiting != nil && s.Waiting.Reason == "CrashLoopBackOff":
		return engines.Failed, "keeps ending: " + exitReason(p, engine), finishTime(engine, created)
	case s.Waiting != nil:
		return engines.Starting, waitingReason(p.Status.ContainerStatuses), created
	case isTrue(ready):
		return engines.Ready, "", ready.LastTransitionTime.Time
	case s.Running != nil:
		since = s.Running.StartedAt.Time
		reason = unreadyReason(engine, ready)
		if blocked := waitingReason(p.Status.ContainerStatuses); blocked != "" {
			reason = blocked // The engine version's own template has further containers.
		}
		if engine.LastTerminationState.Terminated != nil {
			reason += "; before: " + exitReason(p, engine)
		}
		return engines.Starting, reason, since
	}
	return engines.Starting, "", created
}

// unreadyReason returns why the pod of a running engine is not ready. ready is the pod's condition,
// or nil. A pod whose engine is ready may wait for another container or for a readiness gate. When
// a node is lost, Kubernetes calls its pods unready and gives no message.
func unreadyReason(engine *corev1.ContainerStatus, ready *corev1.PodCondition) string {
	switch {
	case !engine.Ready:
		return "its probe has not passed"
	case ready != nil && ready.Message != "":
		return "the engine is ready, but its pod is not: " + ready.Message
	}
	return "the engine is ready, but its pod is not; its node may be lost"
}

func initState(p *corev1.Pod) engines.State {
	if p.Status.PodIP == "" {
		return engines.Pending
	}
	return engines.Starting
}

// schedulingReason returns the scheduler's message about a pod without a node.
func schedulingReason(p *corev1.Pod) string {
	if c := podCondition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return c.Message
	}
	return ""
}

// waitingReason returns why a container waits, for example for an image that cannot be pulled. It
// is empty if no container waits or if the waiting is normal.
func waitingReason(all []corev1.ContainerStatus) string {
	for _, c := range all {
		w := c.State.Waiting
		if w == nil || w.Reason == "" || w.Reason == "PodInitializing" || w.Reason == "ContainerCreating" {
			continue
		}
		if w.Message == "" {
			return w.Reason
		}
		return w.Reason + ": " + w.Message
	}
	return ""
}

// exitReason returns how the engine, or else the pod, ended last.
func exitReason(p *corev1.Pod, engine *corev1.ContainerStatus) string {
	if t := lastTermination(engine); t != nil {
		reason := fmt.Sprintf("exit code %d", t.ExitCode)
		if t.Reason != "" && t.Reason != "Error" && t.Reason != "Completed" {
			reason += ", " + t.Reason
		}
		if t.Message != "" {
			reason += ": " + t.Message
		}
		return reason
	}
	if p.Status.Message != "" {
		return p.Status.Reason + ": " + p.Status.Message
	}
	return p.Status.Reason
}

// lastTermination returns the last termination of the engine, or nil if it has never ended.
func lastTermination(engine *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if engine == nil {
		return nil
	}
	if engine.State.Terminated != nil {
		return engine.State.Terminated
	}
	return engine.LastTerminationState.Terminated
}

func finishTime(engine *corev1.ContainerStatus, otherwise time.Time) time.Time {
	if t := lastTermination(engine); t != nil {
		return t.FinishedAt.Time
	}
	return otherwise
}
