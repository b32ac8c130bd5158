package kubetest

import (
	"context"
	"encoding/json"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// state is the state of the container that really runs.
type state struct {
	phase          corev1.PodPhase
	current, last  corev1.ContainerState
	id             string
	restarts       int32
	ready, started bool
	finished       bool
}

// reporter writes the status of one pod. It writes the latest state and may skip states in between.
type reporter struct {
	pods   typedv1.PodInterface
	object *corev1.Pod
	engine string // the container that really runs
	ip     string
	// status was written last. Only run uses it.
	status corev1.PodStatus

	changed chan struct{}
	mu      sync.Mutex
	state   state
}

func newReporter(pods typedv1.PodInterface, object *corev1.Pod, engine, ip string) *reporter {
	r := &reporter{pods: pods, object: object, engine: engine, ip: ip, status: *object.Status.DeepCopy(), changed: make(chan struct{}, 1)}
	now := metav1.Now()
	r.status.StartTime = &now
	r.set(func(s *state) {
		s.phase = corev1.PodPending
		s.current = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	})
	return r
}

func (r *reporter) set(change func(*state)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.state)
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// finish says that no process runs any more. run then deletes the pod if it is being deleted.
func (r *reporter) finish() { r.set(func(s *state) { s.finished = true }) }

// run writes the state after each change until the pod is deleted. It retries while the API server
// is stopped.
func (r *reporter) run(ctx context.Context) {
	for {
		select {
		case <-r.changed:
		case <-ctx.Done():
			return
		}
		r.mu.Lock()
		now := r.state
		r.mu.Unlock()
		for {
			err := r.write(ctx, now)
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || ctx.Err() != nil || err == nil && now.finished {
				return // The pod is deleted, or another pod has its name.
			}
			if err == nil {
				break
			}
			pause(ctx)
		}
	}
}

func (r *reporter) write(ctx context.Context, s state) error {
	r.update(s)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": r.object.UID}, "status": &r.status})
	if err != nil {
		return err
	}
	_, err = r.pods.Patch(ctx, r.object.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil || !s.finished {
		return err
	}
	options := metav1.NewDeleteOptions(0)
	options.Preconditions = metav1.NewUIDPreconditions(string(r.object.UID))
	err = r.pods.Delete(ctx, r.object.Name, *options)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// update sets status as a kubelet would.
func (r *reporter) update(s state) {
	st := &r.status
	st.Phase, st.HostIP, st.PodIP = s.phase, "127.0.0.1", r.ip
	st.HostIPs, st.PodIPs = []corev1.HostIP{{IP: st.HostIP}}, []corev1.PodIP{{IP: r.ip}}
	st.ContainerStatuses = nil
	for _, c := range r.object.Spec.Containers {
		status := corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: s.ready, Started: &s.started}
		if c.Name == r.engine {
			status.State, status.LastTerminationState, status.RestartCount, status.ContainerID = s.current, s.last, s.restarts, s.id
		} else { // Only one container runs. The others copy its state.
			status.State = s.current
		}
		st.ContainerStatuses = append(st.ContainerStatuses, status)
	}
	r.setCondition(corev1.PodReadyToStartContainers, true, "")
	r.setCondition(corev1.PodInitialized, true, "")
	unready := ""
	if !s.ready {
		unready = "ContainersNotReady"
	}
	if s.phase == corev1.PodSucceeded {
		unready = "PodCompleted"
	}
	r.setCondition(corev1.ContainersReady, s.ready, unready)
	r.setCondition(corev1.PodReady, s.ready, unready)
}

// setCondition sets a condition. Its transition time changes only with its status.
func (r *reporter) setCondition(kind corev1.PodConditionType, holds bool, reason string) {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.Now()}
	if holds {
		c.Status = corev1.ConditionTrue
	}
	if reason == "ContainersNotReady" {
		c.Message = "containers with unready status: [" + r.engine + "]"
	}
	for i, old := range r.status.Conditions {
		if old.Type == kind {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			r.status.Conditions[i] = c
			return
		}
	}
	r.status.Conditions = append(r.status.Conditions, c)
}
