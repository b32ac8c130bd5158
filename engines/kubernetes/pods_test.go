package kubernetes

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/engines"
)

func at(second int64) metav1.Time { return metav1.Unix(second, 0) }

// newPod returns a pod of the model "Org/chat" that was created at second 10, with the changes
// applied in order.
func newPod(changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "chat-1-x", CreationTimestamp: at(10),
		Annotations: map[string]string{annotationModel: "Org/chat", annotationSlots: "8", annotationPort: "8000"},
	}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for _, change := range changes {
		change(p)
	}
	return p
}

func onNode(p *corev1.Pod) { p.Spec.NodeName = "n1" }

func withIP(p *corev1.Pod) {
	onNode(p)
	p.Status.PodIP, p.Status.Phase = "10.0.0.1", corev1.PodRunning
}

func withEngine(s corev1.ContainerStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		s.Name = engineContainer
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "other"}, s}
	}
}

func started(p *corev1.Pod) {
	withIP(p)
	withEngine(corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(20)}}})(p)
}

func ready(p *corev1.Pod) {
	started(p)
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at(30)})
}

// unready makes the engine ready and its pod not.
func unready(message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		containerStatus(p.Status.ContainerStatuses, engineContainer).Ready = true
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: message})
	}
}

func waitingEngine(reason, message string) func(*corev1.Pod) {
	return withEngine(corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}})
}

func termination(code int32, reason string) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, FinishedAt: at(40)}
}

func drainingPod(p *corev1.Pod) { p.Annotations[annotationDraining] = "1970-01-01T00:00:50.5Z" }

func deletedPod(p *corev1.Pod) {
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(at(95)), new(int64(35))
}

// aboutStarts are the fields that describeStarts sets.
var aboutStarts = cmpopts.IgnoreFields(engines.Replica{}, "FailedStarts", "Failure", "NextStart", "LoadTime")

func TestReplicas(t *testing.T) {
	t.Parallel()
	address := netip.MustParseAddrPort("10.0.0.1:8000")
	unscheduled := func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes: Insufficient nvidia.com/gpu"})
	}
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		want engines.Replica
	}{
		{"new", newPod(), engines.Replica{State: engines.Pending, Since: at(10).Time}},
		{"fits nowhere", newPod(unscheduled), engines.Replica{State: engines.Pending, Reason: "0/3 nodes: Insufficient nvidia.com/gpu", Since: at(10).Time}},
		{"has a node", newPod(onNode), engines.Replica{State: engines.Pending, Node: "n1", Since: at(10).Time}},
		{"has a node, and no address yet", newPod(onNode, waitingEngine("ContainerCreating", "")), engines.Replica{State: engines.Pending, Node: "n1", Since: at(10).Time}},
		{"volume", newPod(onNode, waitingEngine("CreateContainerConfigError", `secret "hub" not found`)),
			engines.Replica{State: engines.Pending, Node: "n1", Since: at(10).Time, Reason: `CreateContainerConfigError: secret "hub" not found`}},
		{"image", newPod(withIP, waitingEngine("ImagePullBackOff", "no such image")),
			engines.Replica{State: engines.Starting, Node: "n1", Address: address, Since: at(10).Time, Reason: "ImagePullBackOff: no such image"}},
		{"image of an init container", newPod(withIP, waitingEngine("PodInitializing", ""), func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}
		}), engines.Replica{State: engines.Starting, Node: "n1", Address: address, Since: at(10).Time, Reason: "ErrImagePull"}},
		{"runs", newPod(started), engines.Replica{State: engines.Starting, Node: "n1", Address: address, Since: at(20).Time, Reason: "its probe has not passed"}},
		{"its sidecar is not ready", newPod(started, unready("containers with unready status: [proxy]")),
			engines.Replica{State: engines.Starting, Node: "n1", Address: address, Since: at(20).Time,
				Reason: "the engine is ready, but its pod is not: containers with unready status: [proxy]"}},
		{"its node is lost", newPod(started, unready("")), engines.Replica{State: engines.Starting, Node: "n1", Address: address, Since: at(20).Time,
			Reason: "the engine is ready, but its pod is not; its node may be lost"}},
		{"runs again", newPod(withIP, withEngine(corev1.ContainerStatus{RestartCount: 2,
			State:                corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(50)}},
			LastTerminationState: corev1.ContainerState{Terminated: termination(137, "OOMKilled")}})),
			engines.Replica{State: engines.Starting, Node: "n1", Address: address, Since: at(50).Time, Restarts: 2,
				Reason: "its probe has not passed; before: exit code 137, OOMKilled"}},
		{"serves", newPod(ready), engines.Replica{State: engines.Ready, Node: "n1", Address: address, Since: at(30).Time}},
		{"serves by IPv6", newPod(ready, func(p *corev1.Pod) { p.Status.PodIP = "fd00::1" }),
			engines.Replica{State: engines.Ready, Node: "n1", Address: netip.MustParseAddrPort("[fd00::1]:8000"), Since: at(30).Time}},
		{"has ended", newPod(withIP, withEngine(corev1.ContainerStatus{State: corev1.ContainerState{Terminated: termination(1, "Error")}})),
			engines.Replica{State: engines.Failed, Node: "n1", Address: address, Since: at(40).Time, Reason: "exit code 1"}},
		{"keeps ending", newPod(withIP, withEngine(corev1.ContainerStatus{RestartCount: 5,
			State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 40s"}},
			LastTerminationState: corev1.ContainerState{Terminated: termination(2, "Error")}})),
			engines.Replica{State: engines.Failed, Node: "n1", Address: address, Since: at(40).Time, Restarts: 5, Reason: "keeps ending: exit code 2"}},
		{"evicted", newPod(withIP, func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "disk pressure"
		}), engines.Replica{State: engines.Failed, Node: "n1", Address: address, Since: at(10).Time, Reason: "Evicted: disk pressure"}},
		{"draining", newPod(ready, drainingPod), engines.Replica{State: engines.Draining, Node: "n1", Address: address, Since: time.Unix(50, 5e8).UTC()}},
		{"deleted", newPod(ready, drainingPod, deletedPod), engines.Replica{State: engines.Draining, Node: "n1", Address: address, Since: at(60).Time}},
		{"deleted before it was scheduled", newPod(deletedPod), engines.Replica{State: engines.Draining, Since: at(60).Time}},
		{"ready with an address that is none", newPod(ready, func(p *corev1.Pod) { p.Annotations[annotationPort] = "x" }),
			engines.Replica{State: engines.Starting, Node: "n1", Since: at(30).Time, Reason: "ready, but its address cannot be read"}},
	} {
		tt.want.ID, tt.want.Model, tt.want.Launcher, tt.want.Slots = "chat-1-x", "Org/chat", engines.Kubernetes, 8
		if diff := cmp.Diff(tt.want, replicaOf(tt.pod, 0), aboutStarts, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// The message of a container that has ended holds the last lines of its log.
func TestX15_PodsHideSecrets(t *testing.T) {
	t.Parallel()
	ended := termination(1, "Error")
	ended.Message = "api_key=abc, and plainlooking"
	p := newPod(withIP, withEngine(corev1.ContainerStatus{State: corev1.ContainerState{Terminated: ended}}))
	p.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: "OWN_TOKEN", Value: "plainlooking"}}}}
	if got, want := replicaOf(p, 0).Reason, "exit code 1: api_key=…, and …"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestReadPod(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		want pod
	}{
		{"new", newPod(), pod{rank: unscheduled}},
		{"has a node", newPod(onNode), pod{rank: notRunning}},
		{"runs", newPod(started), pod{rank: notReady}},
		{"serves", newPod(ready), pod{rank: serving}},
		{"draining", newPod(ready, drainingPod), pod{rank: serving, draining: "1970-01-01T00:00:50.5Z"}},
		{"leaves", newPod(ready, drainingPod, func(p *corev1.Pod) { p.Annotations[annotationCost] = "-1000" }),
			pod{rank: serving, draining: "1970-01-01T00:00:50.5Z", marked: true}},
		{"another's cost", newPod(ready, func(p *corev1.Pod) { p.Annotations[annotationCost] = "5" }), pod{rank: serving}},
		{"deleted", newPod(ready, deletedPod), pod{rank: serving, terminating: true}},
		{"ended", newPod(onNode, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), pod{rank: notRunning, finished: true}},
		{"waits for its readiness gate", newPod(started, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		}), pod{rank: notReady}},
	} {
		tt.want.name, tt.want.created = "chat-1-x", at(10).Time
		if diff := cmp.Diff(tt.want, readPod(tt.pod), cmp.AllowUnexported(pod{})); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// TestADeletedPodThatDoesNotEndIsLost: a pod whose node is lost stays deleted. The plan waits for
// it until 30 s after the time at which it should have ended.
func TestADeletedPodThatDoesNotEndIsLost(t *testing.T) {
	t.Parallel()
	c := &cluster{Config: Config{}.withDefaults(), peers: &peers{}}
	for seconds, want := range map[int64]bool{60: false, 95: false, 125: false, 126: true} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
		got := c.describe(d, map[string][]*corev1.Pod{"d": {newPod(ready, deletedPod)}}, at(seconds).Time)
		if len(got.pods) != 1 || got.pods[0].lost != want {
			t.Errorf("at %d s, 95 s being its deadline: %+v", seconds, got.pods)
		}
	}
	if isLost(newPod(ready), at(1000000).Time) {
		t.Error("a pod that was not deleted is lost")
	}
}

// TestU9_FailedStartsOfAPod: the ends of a pod's engine count as failed starts until it is ready,
// unless it has run for long.
func TestU9_FailedStartsOfAPod(t *testing.T) {
	t.Parallel()
	ended := termination(137, "OOMKilled")
	ended.StartedAt = at(35)
	long := termination(1, "Error")
	long.StartedAt, long.FinishedAt = at(40), at(4000)
	crashing := func(end *corev1.ContainerStateTerminated) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			withIP(p)
			withEngine(corev1.ContainerStatus{RestartCount: 2, LastTerminationState: corev1.ContainerState{Terminated: end},
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}})(p)
		}
	}
	running := func(p *corev1.Pod) {
		crashing(ended)(p)
		p.Status.ContainerStatuses[1].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(50)}}
	}
	for name, tt := range map[string]struct {
		pod    *corev1.Pod
		starts int
		class  engines.FailureClass
		next   time.Time
		load   time.Duration
	}{
		"between two starts": {newPod(crashing(ended)), 3, engines.OutOfMemory, at(80).Time, 0},
		"during a start":     {newPod(running), 2, engines.OutOfMemory, time.Time{}, 0},
		"after a long run":   {newPod(crashing(long)), 0, "", at(4010).Time, 0},
		"it has finished": {newPod(crashing(ended), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), 3, engines.OutOfMemory,
			time.Time{}, 0},
		"ready": {newPod(ready), 0, "", time.Time{}, 10 * time.Second},
		"ready after its init container": {newPod(ready, func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(15)}}}}
		}), 0, "", time.Time{}, 10 * time.Second},
		"ready again after its sidecar": {newPod(ready, func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{FinishedAt: at(25)}
		}), 0, "", time.Time{}, 0},
		"ready again after its native sidecar": {newPod(ready, func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(25)}}}}
		}), 0, "", time.Time{}, 0},
	} {
		got := replicaOf(tt.pod, 0)
		if got.FailedStarts != tt.starts || got.Failure != tt.class || !got.NextStart.Equal(tt.next) || got.LoadTime != tt.load {
			t.Errorf("%s: %d %s %v %v, want %d %s %v %v", name, got.FailedStarts, got.Failure, got.NextStart, got.LoadTime, tt.starts, tt.class, tt.next, tt.load)
		}
	}
}

// TestU9_FailedStartsSinceAPodWasReady: only the ends count that came after the engine was ready or
// had run for long. A gateway that has just started knows of the last end only.
func TestU9_FailedStartsSinceAPodWasReady(t *testing.T) {
	t.Parallel()
	short, long := termination(137, "OOMKilled"), termination(1, "Error")
	short.StartedAt = at(35)
	long.StartedAt, long.FinishedAt = at(40), at(4000)
	crashed := func(restarts int32, end *corev1.ContainerStateTerminated) *corev1.Pod {
		return newPod(withIP, withEngine(corev1.ContainerStatus{RestartCount: restarts, LastTerminationState: corev1.ContainerState{Terminated: end},
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}))
	}
	loading := func(restarts int32, end *corev1.ContainerStateTerminated) *corev1.Pod {
		p := crashed(restarts, end)
		p.Status.ContainerStatuses[1].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(4100)}}
		return p
	}
	serves := func(restarts int32) *corev1.Pod {
		p := newPod(ready)
		p.Status.ContainerStatuses[1].RestartCount = restarts
		return p
	}
	for name, tt := range map[string]struct {
		seen   []*corev1.Pod
		starts int
		next   time.Time
	}{
		"a new pod fails":                   {[]*corev1.Pod{newPod(started), crashed(0, short), loading(1, short), crashed(1, short)}, 2, at(60).Time},
		"it has served after five restarts": {[]*corev1.Pod{serves(5), crashed(5, short)}, 0, at(50).Time},
		"it loads after that":               {[]*corev1.Pod{serves(5), crashed(5, short), loading(6, short)}, 0, time.Time{}},
		"the next start fails":              {[]*corev1.Pod{serves(5), crashed(5, short), crashed(6, short)}, 1, at(50).Time},
		"the second start fails":            {[]*corev1.Pod{serves(5), crashed(5, short), crashed(6, short), crashed(7, short)}, 2, at(60).Time},
		"it fails after a long run":         {[]*corev1.Pod{crashed(4, long), loading(5, long), crashed(5, short)}, 1, at(50).Time},
		"first seen after five restarts":    {[]*corev1.Pod{crashed(5, short)}, 1, at(50).Time},
		"first seen while it loads":         {[]*corev1.Pod{loading(5, short)}, 1, time.Time{}},
		"first seen, and it fails again":    {[]*corev1.Pod{crashed(5, short), loading(6, short), crashed(6, short)}, 2, at(60).Time},
	} {
		c := &cluster{deployments: newWatchStore[*appsv1.Deployment](func() {}), groupSets: newWatchStore[*appsv1.Deployment](func() {}),
			leaseWritten: true, onReplicas: func() {}}
		for _, p := range tt.seen {
			c.publish([]*corev1.Pod{p})
		}
		if got := c.replicas[0]; got.FailedStarts != tt.starts || !got.NextStart.Equal(tt.next) {
			t.Errorf("%s: %d %v, want %d %v", name, got.FailedStarts, got.NextStart, tt.starts, tt.next)
		}
	}
}
