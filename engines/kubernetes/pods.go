package kubernetes

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-gateway/sluice/engines"
)

// Ranks of pods, in the order in which a ReplicaSet gives its pods up. Only among pods of one rank does the deletion cost count, so a pod can
// be given up on purpose only where no other of its Deployment has a lower rank.
const (
	unscheduled = iota
	notRunning
	notReady
	serving
)

// pod is what planning knows of a pod.
type pod struct {
	name    string
	created time.Time
	rank    int
	// unschedulable: the scheduler has said that it fits nowhere.
	unschedulable bool
	// terminating: it has been told to end. ended: it will never run again, and its ReplicaSet has forgotten it.
	terminating, finished bool
	// draining is when the leader gave it up, as its annotation says; empty: it is wanted.
	draining string
	// done: nobody has requests on it any more. It is not the pod but the gateways who know.
	drained bool
	// leaving: it is the first that its ReplicaSet gives up. fresh: who gives up may not have seen that yet.
	marked, markUnsettled bool
	// requests of all gateways, as far as they have said.
	requests int
}

// active tells whether the pod is one of those that its ReplicaSet counts.
func (p pod) active() bool { return !p.terminating && !p.finished }

// stays tells whether the pod is one of those that the model shall have.
func (p pod) stays() bool { return p.active() && p.draining == "" }

func readPod(p *corev1.Pod) pod {
	scheduled := podCondition(p, corev1.PodScheduled)
	read := pod{
		name: p.Name, created: p.CreationTimestamp.Time, rank: rank(p),
		unschedulable: scheduled != nil && scheduled.Status == corev1.ConditionFalse && scheduled.Reason == corev1.PodReasonUnschedulable,
		terminating:   p.DeletionTimestamp != nil,
		finished:      p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded,
		draining:      p.Annotations[annotationDraining],
	}
	read.marked = read.draining != "" && p.Annotations[annotationCost] != ""
	return read
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

// replicaOf is the pod as the fleet knows it. Everything comes from the pod itself, which outlives its Deployment.
func replicaOf(p *corev1.Pod) engines.Replica {
	slots, _ := strconv.Atoi(p.Annotations[annotationSlots]) // absent is unknown
	r := engines.Replica{
		ID: p.Name, Model: p.Annotations[annotationModel], Launcher: engines.Kubernetes, Node: p.Spec.NodeName,
		Address: podAddress(p), Slots: slots,
	}
	engine := containerStatus(p.Status.ContainerStatuses, engineContainer)
	if engine != nil {
		r.Restarts = int(engine.RestartCount)
	}
	r.State, r.Reason, r.Since = stateOf(p, engine)
	if r.State == engines.Ready && !r.Address.IsValid() {
		r.State, r.Reason = engines.Starting, "ready, but its address cannot be read"
	}
	return r
}

// address is where the engine listens; the zero value when the pod has none yet.
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

// stateOf says where the pod is in its life, why it is not ready, and since when. engine is nil before its node has taken the pod.
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
	case p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded:
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

// running is the state of a pod with an address.
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
		reason = "its probe has not passed"
		if blocked := waitingReason(p.Status.ContainerStatuses); blocked != "" {
			reason = blocked // another container of the engine's own template
		}
		if engine.LastTerminationState.Terminated != nil {
			reason += "; before: " + exitReason(p, engine)
		}
		return engines.Starting, reason, since
	}
	return engines.Starting, "", created
}

func initState(p *corev1.Pod) engines.State {
	if p.Status.PodIP == "" {
		return engines.Pending
	}
	return engines.Starting
}

// scheduling is what the scheduler has said of a pod without a node.
func schedulingReason(p *corev1.Pod) string {
	if c := podCondition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return c.Message
	}
	return ""
}

// waiting is why a container waits, such as an image that cannot be pulled; empty: none does, or for nothing that is wrong.
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

// ended is how the engine ended last, or the pod as a whole.
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

// terminated is the last end of the engine; nil: it has never ended.
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
