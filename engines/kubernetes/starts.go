package kubernetes

import (
	"time"

	corev1 "k8s.io/api/core/v1"

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

// describeStarts sets what the pod's engine tells of its starts: how many have failed in a row, the
// class of the last failure, when the next one is, and how long the last one took.
func describeStarts(r *engines.Replica, engine *corev1.ContainerStatus) {
	if engine == nil {
		return
	}
	if run := engine.State.Running; r.State == engines.Ready && run != nil {
		if took := r.Since.Sub(run.StartedAt.Time); took > 0 && took < steadyRun {
			r.LoadTime = took // otherwise the readiness came back after a fault
		}
		return
	}
	last := lastTermination(engine)
	if last == nil || last.StartedAt.Unix() > 0 && last.FinishedAt.Sub(last.StartedAt.Time) >= steadyRun {
		return // a container that could not be started at all has 1970 as its start
	}
	r.Failure = engines.ClassifyFailure(r.Reason)
	r.FailedStarts = int(engine.RestartCount)
	if engine.State.Running == nil { // the container that ended last was not restarted yet
		r.FailedStarts++
		r.NextStart = last.FinishedAt.Add(backOff(int(engine.RestartCount)))
	}
}

// backOff returns how long the kubelet waits before it starts a container for the n-th time again.
func backOff(n int) time.Duration {
	pause := firstBackOff
	for range min(n, 10) {
		pause *= 2
	}
	return min(pause, maxBackOff)
}
