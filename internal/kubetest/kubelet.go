package kubetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// minBackoff and maxBackoff bound the delay before a container is restarted. A real kubelet
	// waits 10 s at first and at most 300 s.
	minBackoff, maxBackoff = 200 * time.Millisecond, 5 * time.Second
	// longRun is the duration of a run after which the delay starts at minBackoff again. A real
	// kubelet uses 10 minutes.
	longRun = 10 * time.Second
	// prepareRetry is the delay before another attempt to prepare a container.
	prepareRetry = 300 * time.Millisecond
)

// kubelet runs the pods of a node. Only the goroutine of Node.watch uses it.
type kubelet struct {
	node    *Node
	pods    map[types.UID]*pod
	running sync.WaitGroup
}

// pod is a pod that a kubelet runs.
type pod struct {
	node      *Node
	object    *corev1.Pod // As first seen. The fields in use never change.
	container *corev1.Container
	dir, ip   string
	report    *reporter

	cancel   context.CancelFunc // kills everything at once, because the pod no longer exists
	stopping chan struct{}      // closed when the pod shall stop gracefully
	grace    time.Duration      // for stopping; set before stopping is closed
	hurry    chan time.Duration // receives a shorter grace period while the pod stops; its capacity is 1
}

// sync applies the list of all pods of the node.
func (k *kubelet) sync(ctx context.Context, pods []corev1.Pod) {
	present := map[types.UID]bool{}
	for i := range pods {
		present[pods[i].UID] = true
		k.apply(ctx, &pods[i], watch.Modified)
	}
	for uid := range k.pods {
		if !present[uid] {
			k.remove(uid)
		}
	}
}

func (k *kubelet) apply(ctx context.Context, object *corev1.Pod, event watch.EventType) {
	p := k.pods[object.UID]
	switch {
	case event == watch.Deleted:
		k.remove(object.UID)
		return
	case p == nil && (object.Status.Phase == corev1.PodSucceeded || object.Status.Phase == corev1.PodFailed):
		return
	case p == nil:
		p = k.node.newPod(object)
		k.pods[object.UID] = p
		var mine context.Context
		mine, p.cancel = context.WithCancel(ctx)
		k.running.Go(func() { p.report.run(mine) })
		k.running.Go(func() { p.run(mine) })
	}
	if seconds := object.DeletionGracePeriodSeconds; seconds != nil {
		p.stop(time.Duration(*seconds) * time.Second)
	}
}

// stop stops the pod gracefully. A later call may only shorten the grace period.
func (p *pod) stop(grace time.Duration) {
	switch {
	case !p.isStopping():
		p.grace = grace
		close(p.stopping)
	case grace < p.grace:
		select {
		case p.hurry <- grace:
		default:
		}
	}
}

// remove forgets a pod that no longer exists.
func (k *kubelet) remove(uid types.UID) {
	if p := k.pods[uid]; p != nil {
		p.cancel()
		delete(k.pods, uid)
	}
}

// newPod returns a pod that is not running yet. It runs the container "engine", or else the first
// one.
func (n *Node) newPod(object *corev1.Pod) *pod {
	p := &pod{
		node: n, object: object, container: &object.Spec.Containers[0], ip: n.cluster.subnet.next(),
		dir:      filepath.Join(n.cluster.dir, "pods", object.Namespace, object.Name),
		stopping: make(chan struct{}), hurry: make(chan time.Duration, 1),
	}
	for i, c := range object.Spec.Containers {
		if c.Name == "engine" {
			p.container = &object.Spec.Containers[i]
		}
	}
	p.report = newReporter(n.pods(object.Namespace), object, p.container.Name, p.ip)
	return p
}

// run runs a pod. It returns when all its processes have ended.
func (p *pod) run(ctx context.Context) {
	defer p.report.finish()
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		p.setWaiting(&corev1.ContainerStateWaiting{Reason: "CreateContainerError", Message: err.Error()})
		p.pause(ctx, waitLimit)
		return
	}
	back := minBackoff
	for restarts := int32(0); ; restarts++ {
		c, ok := p.waitPrepared(ctx)
		if !ok {
			return
		}
		exit := p.runOnce(ctx, c, restarts)
		if ctx.Err() != nil || p.isStopping() || !p.mustRestart(exit) {
			p.reportEnd(ctx, exit)
			return
		}
		if exit.FinishedAt.Sub(exit.StartedAt.Time) > longRun {
			back = minBackoff
		}
		p.report.set(func(s *state) {
			s.last = corev1.ContainerState{Terminated: exit}
			s.current = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %v restarting failed container=%s pod=%s", back, p.container.Name, p.object.Name),
			}}
			s.ready, s.started = false, false
		})
		p.pause(ctx, back)
		back = min(2*back, maxBackoff)
	}
}

// waitPrepared retries prepare until it succeeds. It returns false if the pod shall stop.
func (p *pod) waitPrepared(ctx context.Context) (command, bool) {
	for pulls := 0; ctx.Err() == nil && !p.isStopping(); pulls++ {
		c, why := p.prepare(ctx)
		if why == nil {
			return c, true
		}
		if why.Reason == "ErrImagePull" && pulls > 0 {
			why.Reason, why.Message = "ImagePullBackOff", "Back-off pulling image: "+why.Message
		}
		p.setWaiting(why)
		p.pause(ctx, prepareRetry)
	}
	return command{}, false
}

func (p *pod) setWaiting(why *corev1.ContainerStateWaiting) {
	p.report.set(func(s *state) { s.current = corev1.ContainerState{Waiting: why} })
}

// mustRestart reports whether the restart policy asks for another run.
func (p *pod) mustRestart(exit *corev1.ContainerStateTerminated) bool {
	switch p.object.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return exit.ExitCode != 0
	default:
		return true
	}
}

// reportEnd reports the end of the pod and waits until the pod is deleted.
func (p *pod) reportEnd(ctx context.Context, exit *corev1.ContainerStateTerminated) {
	p.report.set(func(s *state) {
		s.current, s.ready, s.started = corev1.ContainerState{Terminated: exit}, false, false
		s.phase = corev1.PodFailed
		if exit.ExitCode == 0 {
			s.phase = corev1.PodSucceeded
		}
	})
	select {
	case <-p.stopping:
	case <-ctx.Done():
	}
}

func (p *pod) runOnce(ctx context.Context, c command, restarts int32) *corev1.ContainerStateTerminated {
	running, err := c.start(p.dir)
	if err != nil {
		now := metav1.Now()
		p.report.set(func(s *state) { s.phase, s.restarts = corev1.PodRunning, restarts })
		return &corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128, Message: err.Error(), StartedAt: now, FinishedAt: now}
	}
	p.report.set(func(s *state) {
		s.phase, s.restarts, s.id = corev1.PodRunning, restarts, fmt.Sprintf("process://%d", running.pid())
		s.current = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(running.startedAt)}}
	})
	probing, stop := context.WithCancel(ctx)
	sick := make(chan struct{})
	var probes sync.WaitGroup
	probes.Go(func() {
		if p.probe(probing, running.startedAt) {
			close(sick)
		}
	})
	select {
	case <-running.done:
	case <-sick:
		p.stopGracefully(ctx, running, p.restartGrace())
	case <-p.stopping:
		stop()
		probes.Wait() // From here on no probe reports the container as ready.
		p.report.set(func(s *state) { s.ready = false })
		p.stopGracefully(ctx, running, p.grace)
	case <-ctx.Done():
	}
	stop()
	probes.Wait()
	running.kill()
	return p.termination(running)
}

// stopGracefully waits for the preStop hook, sends SIGTERM and waits for the rest of the grace
// period. The caller then sends SIGKILL.
func (p *pod) stopGracefully(ctx context.Context, running *process, grace time.Duration) {
	if l := p.container.Lifecycle; l != nil && l.PreStop != nil && l.PreStop.Sleep != nil {
		grace -= p.sleepBeforeStop(ctx, running, min(grace, time.Duration(l.PreStop.Sleep.Seconds)*time.Second))
	}
	running.terminate()
	running.wait(ctx, max(grace, minGrace))
}

// restartGrace returns how long a container that has failed a probe has to end.
func (p *pod) restartGrace() time.Duration {
	seconds := *p.object.Spec.TerminationGracePeriodSeconds
	for _, probe := range []*corev1.Probe{p.container.StartupProbe, p.container.LivenessProbe} {
		if probe != nil && probe.TerminationGracePeriodSeconds != nil {
			seconds = *probe.TerminationGracePeriodSeconds
		}
	}
	return time.Duration(seconds) * time.Second
}

// minGrace is how long a process has at least between SIGTERM and SIGKILL, as with a real kubelet.
const minGrace = 2 * time.Second

// sleepBeforeStop waits for the hook before the stop and returns the part of the grace period that
// it took. Of a sleep of less than a minute, for which endpoints elsewhere are the reason, tests
// wait for a part only. When the grace period is shortened, a real kubelet begins again with the
// rest, and so does this one.
func (p *pod) sleepBeforeStop(ctx context.Context, running *process, d time.Duration) time.Duration {
	if d < time.Minute {
		running.wait(ctx, min(time.Second, d))
		return min(time.Second, d)
	}
	select {
	case <-running.done:
	case <-ctx.Done():
	case <-time.After(d):
	case grace := <-p.hurry:
		running.wait(ctx, min(time.Second, grace))
	}
	return d
}

// termination returns the status of a run that has ended.
func (p *pod) termination(running *process) *corev1.ContainerStateTerminated {
	code := running.exitCode()
	exit := &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: "Error", StartedAt: metav1.NewTime(running.startedAt), FinishedAt: metav1.Now(),
		ContainerID: fmt.Sprintf("process://%d", running.pid()),
	}
	if code == 0 {
		exit.Reason = "Completed"
	} else if p.container.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		const limit = 2048 // the limit of a real kubelet in bytes
		text, _ := os.ReadFile(filepath.Join(p.dir, "log"))
		exit.Message = lastLines(text[max(0, len(text)-limit):], 80)
	}
	return exit
}

func (p *pod) isStopping() bool {
	select {
	case <-p.stopping:
		return true
	default:
		return false
	}
}

// pause waits for d, or until the pod shall stop.
func (p *pod) pause(ctx context.Context, d time.Duration) {
	select {
	case <-p.stopping:
	case <-ctx.Done():
	case <-time.After(d):
	}
}
