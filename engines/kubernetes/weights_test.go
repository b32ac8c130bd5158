package kubernetes

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/weights"
)

// TestU14_Loader: the Job has the source, the token and the volume, and other weights have another
// Job.
func TestU14_Loader(t *testing.T) {
	in := install{name: "sluice"}
	w := Weights{Claim: "c", Path: "/w", Link: "sluice/k", Image: "sluice:1", Token: SecretKey{"hub", "token"}, Endpoint: "http://mirror",
		Repository: "org/model", Revision: "v1", GGUF: true}
	j, err := in.loader(w)
	if err != nil {
		t.Fatal(err)
	}
	c := j.Spec.Template.Spec.Containers[0]
	want := "sluice fetch org/model --cache-dir /w --link sluice/k --listen :8001 --endpoint=http://mirror --revision=v1 --gguf"
	if got := strings.Join(c.Command, " "); got != want {
		t.Errorf("the command is %s, want %s", got, want)
	}
	if i := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "HF_TOKEN" }); i < 0 || c.Env[i].ValueFrom.SecretKeyRef.Name != "hub" {
		t.Errorf("the environment is %v", c.Env)
	}
	if v := j.Spec.Template.Spec.Volumes[0]; v.PersistentVolumeClaim.ClaimName != "c" || v.PersistentVolumeClaim.ReadOnly {
		t.Errorf("the volume is %v", v)
	}
	other, same := w, w
	other.Revision = "v2"
	same.Image, same.Token, same.Size, same.StorageClass = "sluice:2", SecretKey{}, 1, "fast"
	if in.jobName(other) == j.Name || in.jobName(same) != j.Name {
		t.Errorf("Jobs %s, %s and %s", j.Name, in.jobName(other), in.jobName(same))
	}
}

// TestU14_ThePodOfALoaderIsPatched: the patch adds to what the loader needs. It makes no other Job,
// and a Job that has not ended well is replaced for it.
func TestU14_ThePodOfALoaderIsPatched(t *testing.T) {
	in := install{name: "sluice"}
	w := Weights{Claim: "c", Path: "/w", Link: "sluice/k", Image: "sluice:1", Token: SecretKey{"hub", "token"}, Repository: "org/model"}
	patched := w
	patched.Pod = `{"spec": {"tolerations": [{"operator": "Exists"}], "imagePullSecrets": [{"name": "pull"}],
		"containers": [{"name": "loader", "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}], "resources": {"requests": {"cpu": "1"}}}]}}`
	j, err := in.loader(patched)
	if err != nil {
		t.Fatal(err)
	}
	s := j.Spec.Template.Spec
	if c := s.Containers[0]; len(s.Containers) != 1 || len(c.Command) == 0 || c.Image != "sluice:1" || len(c.Env) != 2 || c.Resources.Requests.Cpu().Value() != 1 {
		t.Errorf("the containers are %+v", s.Containers)
	}
	if len(s.Tolerations) != 1 || len(s.ImagePullSecrets) != 1 || s.RestartPolicy != corev1.RestartPolicyNever || len(s.Volumes) != 1 {
		t.Errorf("the pod is %+v", s)
	}
	if in.jobName(patched) != in.jobName(w) || patched.loaderHash() == w.loaderHash() || j.Annotations[annotationLoader] != patched.loaderHash() {
		t.Errorf("Jobs %s and %s, hashes %s and %s", in.jobName(patched), in.jobName(w), patched.loaderHash(), w.loaderHash())
	}
	patched.Pod = `{"spec": {"containers": 1}}`
	if _, err := in.loader(patched); err == nil {
		t.Error("a patch that cannot be merged is ignored")
	}
}

// TestU14_LoadersAreReplicasThatStart: what a loader does is told as a start of its model, until it
// has ended well.
func TestU14_LoadersAreReplicasThatStart(t *testing.T) {
	w := Weights{Repository: "org/model"}
	c := &cluster{install: install{name: "sluice"}, fetches: map[string]weights.Progress{"p": {Done: 1, Total: 4}}}
	m := wanted{Model: Model{Model: engines.Model{Name: "m", Desired: 1}, Weights: &w}}
	idle := wanted{Model: Model{Model: engines.Model{Name: "idle"}, Weights: &w}}
	c.wanted = []wanted{m, idle}
	pod := func(change func(*corev1.Pod)) []*corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{labelRole: roleLoader, labelWeights: c.jobName(w)}},
			Spec: corev1.PodSpec{NodeName: "n"}}
		change(p)
		return []*corev1.Pod{p}
	}
	running := func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1",
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: roleLoader, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	}
	got := c.loaders(pod(running))
	if len(got) != 1 || got[0].Model != "m" || got[0].State != engines.Starting || got[0].Fetch.Total != 4 || !strings.Contains(got[0].Reason, "1 B of 4 B (25 %)") {
		t.Errorf("running: %+v", got)
	}
	got = c.loaders(pod(func(p *corev1.Pod) {
		running(p)
		p.Name = "other"
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Message: "no such repository"}
	}))
	if len(got) != 1 || got[0].State != engines.Failed || !strings.Contains(got[0].Reason, "no such repository") {
		t.Errorf("failed: %+v", got)
	}
	if got = c.loaders(pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })); len(got) != 0 {
		t.Errorf("ended well: %+v", got)
	}
}

// TestU14_AJobWithoutAPodIsTold: the API may refuse the pods of a Job, of which no pod can tell.
func TestU14_AJobWithoutAPodIsTold(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		age     time.Duration
		ended   batchv1.JobConditionType
		desired int
		pod     bool
		told    bool
	}{
		"no pod":            {age: time.Minute, desired: 1, told: true},
		"new":               {age: time.Second, desired: 1},
		"a pod":             {age: time.Minute, desired: 1, pod: true},
		"failed":            {age: time.Minute, desired: 1, ended: batchv1.JobFailed, told: true},
		"ended well":        {age: time.Minute, desired: 1, ended: batchv1.JobComplete},
		"no replica wanted": {age: time.Minute},
	} {
		w := Weights{Repository: "org/model"}
		c := &cluster{install: install{name: "sluice"}, pods: newWatchStore[*corev1.Pod](func() {}), jobs: newWatchStore[*batchv1.Job](func() {}),
			deployments: newWatchStore[*appsv1.Deployment](func() {})}
		c.wanted = []wanted{{Model: Model{Model: engines.Model{Name: "m", Desired: tt.desired}, Weights: &w}}}
		j, err := c.loader(w)
		if err != nil {
			t.Fatal(err)
		}
		j.CreationTimestamp = metav1.NewTime(now.Add(-tt.age))
		j.Status.Conditions = []batchv1.JobCondition{{Type: tt.ended, Status: corev1.ConditionTrue}}
		c.jobs.recordWrite(j, "", now)
		if tt.pod {
			c.pods.recordWrite(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: j.Labels}}, "", now)
		}
		if got := c.blockedModels()["m"]; strings.Contains(got, "kubectl describe job "+j.Name) != tt.told {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestU14_JobEnd reads how a Job has ended.
func TestU14_JobEnd(t *testing.T) {
	at := metav1.NewTime(time.Unix(1000, 0))
	j := &batchv1.Job{Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{
		{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue}, {Type: batchv1.JobFailed, Status: corev1.ConditionTrue, LastTransitionTime: at},
	}}}
	if condition, since := jobEnd(j); condition != batchv1.JobFailed || !since.Equal(at.Time) {
		t.Errorf("%s since %v", condition, since)
	}
	if condition, _ := jobEnd(&batchv1.Job{}); condition != "" {
		t.Errorf("a Job that runs: %s", condition)
	}
}

// TestU14_ALoaderBesideAnotherContainer: an admission webhook has added a container to the pod of a
// loader. The Job does not end while that container runs. The model begins when its loader has
// ended well, and the Job is made again when its loader has failed. The pod of the Job before,
// which Kubernetes removes later than that Job, tells nothing of this one.
func TestU14_ALoaderBesideAnotherContainer(t *testing.T) {
	now := time.Now()
	w := Weights{Repository: "org/model"}
	for name, tt := range map[string]struct {
		state           corev1.ContainerState
		owner           types.UID
		loaded, removed bool
		shown           int
	}{
		"runs":                      {state: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, shown: 1},
		"ended well":                {state: terminated(0, now), loaded: true},
		"failed now":                {state: terminated(1, now), shown: 1},
		"failed before":             {state: terminated(1, now.Add(-loaderRetry)), removed: true, shown: 1},
		"the Job before ended well": {state: terminated(0, now), owner: "before"},
		"the Job before failed":     {state: terminated(1, now.Add(-loaderRetry)), owner: "before", shown: 1},
	} {
		c, err := newCluster(Config{}.withDefaults(), location{namespace: "n"}, &rest.Config{})
		if err != nil {
			t.Fatal(err)
		}
		j, err := c.loader(w)
		if err != nil {
			t.Fatal(err)
		}
		j.UID = "now"
		owner := metav1.OwnerReference{Kind: "Job", Name: j.Name, UID: cmp.Or(tt.owner, j.UID), Controller: new(true)}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: j.Labels, OwnerReferences: []metav1.OwnerReference{owner}}, Spec: corev1.PodSpec{NodeName: "n"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", ContainerStatuses: []corev1.ContainerStatus{
				{Name: roleLoader, State: tt.state},
				{Name: "proxy", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			}}}
		if err := errors.Join(c.jobs.Replace([]any{j}, ""), c.pods.Replace([]any{pod}, "")); err != nil {
			t.Fatal(err)
		}
		m := wanted{Model: Model{Model: engines.Model{Name: "m", Desired: 1}, Weights: &w}}
		c.wanted = []wanted{m}
		writes := map[string]write{}
		loaded := c.reconcileWeights(writes, map[string]wanted{modelHash("m"): m}, false, now)
		shown := c.loaders([]*corev1.Pod{pod})
		if loaded[j.Name] != tt.loaded || (writes[weightsWrite(j.Name)] != nil) != tt.removed || len(shown) != tt.shown {
			t.Errorf("%s: loaded %v, written %v, shown %+v", name, loaded, writes, shown)
		}
	}
}

func terminated(code int32, at time.Time) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(at)}}
}
