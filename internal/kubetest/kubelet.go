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
	// A real kubelet waits 10 s after the first exits, and 300 s at most.
	firstBackoff, lastBackoff = 200 * time.Millisecond, 5 * time.Second
	// goodRun is after how long a run counts as the first again: 10 minutes in a real one.
	goodRun = 10 * time.Second
	// pullRetry is how often a container that cannot be made is tried again.
	pullRetry = 300 * time.Millisecond
)

// kubelet has the pods of a node. Only the goroutine that watches touches it.
type kubelet struct {
	node    *Node
	pods    map[types.UID]*pod
	running sync.WaitGroup
}

// pod is a pod that runs here.
type pod struct {
	node      *Node
	object    *corev1.Pod // as it was first seen; what is used of it never changes
	container *corev1.Container
	dir, ip   string
	report    *reporter

	forget context.CancelFunc // the pod is no more: all of it is to end at once
	ending chan struct{}      // closed when it is to end in peace
	grace  time.Duration      // for that; set when ending is closed
}

func (k *kubelet) wait() { k.running.Wait() }

// sync is told all pods of the node.
func (k *kubelet) sync(ctx context.Context, pods []corev1.Pod) {
	present := map[types.UID]bool{}
	for i := range pods {
		present[pods[i].UID] = true
		k.see(ctx, &pods[i], watch.Modified)
	}
	for uid := range k.pods {
		if !present[uid] {
			k.vanished(uid)
		}
	}
}

// see is told one pod.
func (k *kubelet) see(ctx context.Context, object *corev1.Pod, event watch.EventType) {
	p := k.pods[object.UID]
	switch {
	case event == watch.Deleted:
		k.vanished(object.UID)
		return
	case p == nil && (object.Status.Phase == corev1.PodSucceeded || object.Status.Phase == corev1.PodFailed):
		return
	case p == nil:
		p = k.node.adopt(object)
		k.pods[object.UID] = p
		var mine context.Context
		mine, p.forget = context.WithCancel(ctx)
		k.running.Go(func() { p.report.run(mine) })
		k.running.Go(func() { p.run(mine) })
	}
	if seconds := object.DeletionGracePeriodSeconds; seconds != nil && !p.isEnding() {
		p.grace = time.Duration(*seconds) * time.Second
		close(p.ending)
	}
}

func (k *kubelet) vanished(uid types.UID) {
	if p := k.pods[uid]; p != nil {
		p.forget()
		delete(k.pods, uid)
	}
}

func (n *Node) adopt(object *corev1.Pod) *pod {
	p := &pod{
		node: n, object: object, container: &object.Spec.Containers[0], ip: n.cluster.subnet.next(),
		dir:    filepath.Join(n.cluster.dir, "pods", object.Namespace, object.Name),
		ending: make(chan struct{}),
	}
	for i, c := range object.Spec.Containers {
		if c.Name == "engine" {
			p.container = &object.Spec.Containers[i]
		}
	}
	p.report = newReporter(n.pods(object.Namespace), object, p.container.Name, p.ip)
	return p
}

// run is the life of a pod. It returns when all its processes are gone.
func (p *pod) run(ctx context.Context) {
	defer p.report.finish()
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		p.waits(&corev1.ContainerStateWaiting{Reason: "CreateContainerError", Message: err.Error()})
		p.pause(ctx, patience)
		return
	}
	back := firstBackoff
	for restarts := int32(0); ; restarts++ {
		c, ok := p.prepared(ctx)
		if !ok {
			return
		}
		exit := p.once(ctx, c, restarts)
		if ctx.Err() != nil || p.isEnding() || !p.restarts(exit) {
			p.ended(ctx, exit)
			return
		}
		if exit.FinishedAt.Sub(exit.StartedAt.Time) > goodRun {
			back = firstBackoff
		}
		p.report.set(func(s *state) {
			s.last = corev1.ContainerState{Terminated: exit}
			s.current = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %v restarting failed container=%s pod=%s", back, p.container.Name, p.object.Name),
			}}
			s.ready, s.started = false, false
		})
		p.pause(ctx, back)
		back = min(2*back, lastBackoff)
	}
}

// prepared waits until the container can be made. It says false when the pod is to end.
func (p *pod) prepared(ctx context.Context) (command, bool) {
	for pulls := 0; ctx.Err() == nil && !p.isEnding(); pulls++ {
		c, why := p.prepare(ctx)
		if why == nil {
			return c, true
		}
		if why.Reason == "ErrImagePull" && pulls > 0 {
			why.Reason, why.Message = "ImagePullBackOff", "Back-off pulling image: "+why.Message
		}
		p.waits(why)
		p.pause(ctx, pullRetry)
	}
	return command{}, false
}

func (p *pod) waits(why *corev1.ContainerStateWaiting) {
	p.report.set(func(s *state) { s.current = corev1.ContainerState{Waiting: why} })
}

// restarts says whether there will be another run.
func (p *pod) restarts(exit *corev1.ContainerStateTerminated) bool {
	switch p.object.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return exit.ExitCode != 0
	default:
		return true
	}
}

// ended reports the end, and waits for the deletion of a pod that has come to its end by itself.
func (p *pod) ended(ctx context.Context, exit *corev1.ContainerStateTerminated) {
	p.report.set(func(s *state) {
		s.current, s.ready, s.started = corev1.ContainerState{Terminated: exit}, false, false
		s.phase = corev1.PodFailed
		if exit.ExitCode == 0 {
			s.phase = corev1.PodSucceeded
		}
	})
	select {
	case <-p.ending:
	case <-ctx.Done():
	}
}

// once is one run of the container.
func (p *pod) once(ctx context.Context, c command, restarts int32) *corev1.ContainerStateTerminated {
	running, err := c.start(p.dir)
	if err != nil {
		now := metav1.Now()
		p.report.set(func(s *state) { s.phase, s.restarts = corev1.PodRunning, restarts })
		return &corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128, Message: err.Error(), StartedAt: now, FinishedAt: now}
	}
	p.report.set(func(s *state) {
		s.phase, s.restarts, s.id = corev1.PodRunning, restarts, fmt.Sprintf("process://%d", running.pid())
		s.current = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(running.began)}}
	})
	probing, stop := context.WithCancel(ctx)
	sick := make(chan struct{})
	var probes sync.WaitGroup
	probes.Go(func() {
		if p.probe(probing, running.began) {
			close(sick)
		}
	})
	select {
	case <-running.done:
	case <-sick:
		p.end(ctx, running, time.Duration(*p.object.Spec.TerminationGracePeriodSeconds)*time.Second)
	case <-p.ending:
		stop()
		probes.Wait() // nobody says that it is ready from here on
		p.report.set(func(s *state) { s.ready = false })
		p.end(ctx, running, p.grace)
	case <-ctx.Done():
	}
	stop()
	probes.Wait()
	running.kill()
	return p.exit(running)
}

// end gives the process what is left of its grace after its preStop hook: SIGTERM, and then SIGKILL, which the caller sends.
func (p *pod) end(ctx context.Context, running *process, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if l := p.container.Lifecycle; l != nil && l.PreStop != nil && l.PreStop.Sleep != nil {
		// Endpoints elsewhere need that sleep in a real cluster. The tests do not wait for all of it.
		running.wait(ctx, min(time.Second, time.Duration(l.PreStop.Sleep.Seconds)*time.Second))
	}
	running.terminate()
	running.wait(ctx, grace)
}

// exit is what is said about a run that is over.
func (p *pod) exit(running *process) *corev1.ContainerStateTerminated {
	code := running.exitCode()
	exit := &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: "Error", StartedAt: metav1.NewTime(running.began), FinishedAt: metav1.Now(),
		ContainerID: fmt.Sprintf("process://%d", running.pid()),
	}
	if code == 0 {
		exit.Reason = "Completed"
	} else if p.container.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		const limit = 2048 // bytes, as a real kubelet has it
		text, _ := os.ReadFile(filepath.Join(p.dir, "log"))
		exit.Message = lastLines(text[max(0, len(text)-limit):], 80)
	}
	return exit
}

func (p *pod) isEnding() bool {
	select {
	case <-p.ending:
		return true
	default:
		return false
	}
}

// pause waits, but not when the pod is to end.
func (p *pod) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.ending:
	case <-ctx.Done():
	case <-timer.C:
	}
}
