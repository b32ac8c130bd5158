package kubernetes

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gateway/sluice/engines"
)

const (
	// firstBackOff and maxBackOff bound the pause of the kubelet before it starts a container
	// again.
	firstBackOff = 10 * time.Second
	maxBackOff   = 5 * time.Minute
	// steadyRun is how long a container must have run for the kubelet to forget its earlier ends.
	steadyRun = 10 * time.Minute
)

// startBases returns, by pod, how many ends of the engine do not count as failed starts. before
// holds what was returned last.
func startBases(before map[types.UID]int, pods []*corev1.Pod) map[types.UID]int {
	bases := map[types.UID]int{}
	for _, p := range pods {
		engine := containerStatus(p.Status.ContainerStatuses, engineContainer)
		if engine == nil {
			continue
		}
		base, known := before[p.UID]
		switch {
		case isTrue(podCondition(p, corev1.PodReady)):
			base = int(engine.RestartCount) + 1 // the end of this run is no failed start
		case ranSteadily(lastTermination(engine)):
			base = ends(engine)
		case !known: // what was before the last end is not known
			base = max(0, ends(engine)-1)
		}
		bases[p.UID] = base
	}
	return bases
}

// ends returns how often the engine has ended in the pod's life.
func ends(engine *corev1.ContainerStatus) int {
	if engine.State.Running == nil && lastTermination(engine) != nil { // it was not restarted yet
		return int(engine.RestartCount) + 1
	}
	return int(engine.RestartCount)
}

// ranSteadily reports whether a container that has ended had run for steadyRun.
func ranSteadily(last *corev1.ContainerStateTerminated) bool {
	// A container that could not be started at all has 1970 as its start.
	return last != nil && last.StartedAt.Unix() > 0 && last.FinishedAt.Sub(last.StartedAt.Time) >= steadyRun
}

// describeStarts sets what the pod's engine tells of its starts. That is how many have failed in a
// row, the class of the last failure, when the next one is, and how long the last one took. base is
// how many ends do not count as failed starts.
func describeStarts(r *engines.Replica, p *corev1.Pod, engine *corev1.ContainerStatus, base int) {
	if engine == nil {
		return
	}
	if run := engine.State.Running; r.State == engines.Ready && run != nil {
		if took := r.Since.Sub(run.StartedAt.Time); took > 0 && took < steadyRun && !anyEndedSince(p, run.StartedAt.Time) {
			r.LoadTime = took // otherwise the readiness came back after a fault
		}
		return
	}
	last := lastTermination(engine)
	if last == nil {
		return
	}
	if !ranSteadily(last) {
		r.Failure = engines.ClassifyFailure(r.Reason)
		r.FailedStarts = max(0, ends(engine)-base)
	}
	if engine.State.Running == nil && !hasFinished(p) {
		r.NextStart = last.FinishedAt.Add(backOff(max(0, r.FailedStarts-1)))
	}
}

// anyEndedSince reports whether a container of the pod has ended since a time. The pod was not
// ready then, whatever the engine was.
func anyEndedSince(p *corev1.Pod, at time.Time) bool {
	return slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses), func(c corev1.ContainerStatus) bool {
		last := lastTermination(&c)
		return last != nil && last.FinishedAt.After(at)
	})
}

// backOff returns how long the kubelet waits before it starts a container for the n-th time again.
func backOff(n int) time.Duration {
	pause := firstBackOff
	for range min(n, 10) {
		pause *= 2
	}
	return min(pause, maxBackOff)
}
