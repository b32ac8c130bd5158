package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// onHosts returns a model of a version of vLLM with 8 GPUs on two hosts.
func onHosts(release string) Model {
	version, _ := engines.Find(engines.Builtin(), "vllm", release)
	return Model{
		Model: engines.Model{Name: "Org/Large", Task: engines.TextGeneration}, Version: version, Hosts: 2,
		Launch: engines.Launch{Name: "Org/Large", Model: "org/large", Registry: "huggingface", Task: engines.TextGeneration,
			Args: []string{"--own"}, Variables: map[string]any{"max_num_seqs": 32}},
		Resources: &engines.Resources{CPU: 7, Memory: 64 << 30, GPU: 8},
		Patches:   []map[string]any{{"spec": map[string]any{"nodeSelector": map[string]any{"pool": "gpu"}}}},
	}
}

// TestN4_LeaderWorkerSetManifest pins the LeaderWorkerSets of a model on two hosts: with Ray, and
// with a vLLM that connects the hosts itself.
func TestN4_LeaderWorkerSetManifest(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	for _, release := range []string{"0.11", "0.33"} {
		m := onHosts(release)
		d, workers, err := testInstall.groups(m)
		if err != nil {
			t.Fatal(err)
		}
		u, err := groupsObject(d, wanted{Model: m, manifest: d, workers: workers})
		if err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString("---\n" + string(text))
		back, err := leadersOf(u)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(d.Spec.Template, back.Spec.Template); diff != "" || back.Name != d.Name || !hasGroups(back) || specReplicas(back) != 0 {
			t.Errorf("it is read as %+v: %s", back, diff)
		}
	}
	testutil.Golden(t, "testdata/leaderworkersets.golden", got.String(), *update)
}

// TestN4_OtherWorkersAreAnotherLeaderWorkerSet: the name changes with the number of hosts and with
// what the workers run, because Sluice never changes a template.
func TestN4_OtherWorkersAreAnotherLeaderWorkerSet(t *testing.T) {
	t.Parallel()
	names := map[string]string{}
	for what, change := range map[string]func(*Model){
		"as it is":      func(*Model) {},
		"more hosts":    func(m *Model) { m.Hosts = 4 },
		"other workers": func(m *Model) { m.Version.MultiHost.Worker = []string{"worker"} },
		"other leaders": func(m *Model) { m.Launch.Variables = map[string]any{"max_num_seqs": 33} },
	} {
		m := onHosts("0.11")
		change(&m)
		d, _, err := install{name: strings.Repeat("n", 20)}.groups(m)
		if err != nil {
			t.Fatal(err)
		}
		if other, taken := names[d.Name]; taken || len(d.Name) > maxGroupsName {
			t.Errorf("%s has the name %s, as has %q", what, d.Name, other)
		}
		names[d.Name] = what
	}
	m := onHosts("0.11")
	m.Version.MultiHost = engines.MultiHost{}
	if _, _, err := testInstall.groups(m); err == nil || !strings.Contains(err.Error(), "cannot spread a replica over 2 hosts") {
		t.Errorf("an engine that cannot spread gives %v", err)
	}
}

// TestN4_WorkersEndWithTheirLeader: a deleted worker serves until the requests of its leader have
// ended, and does not outlive it.
func TestN4_WorkersEndWithTheirLeader(t *testing.T) {
	t.Parallel()
	at := func(second int64) metav1.ObjectMeta {
		return metav1.ObjectMeta{CreationTimestamp: metav1.Unix(second, 0)}
	}
	deleted := func(grace int64) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: at(10)}
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Unix(20, 0)}, &grace
		return p
	}
	worker := &corev1.Pod{ObjectMeta: at(11)}
	for what, tt := range map[string]struct {
		leader *corev1.Pod
		want   bool
	}{
		"no leader":                   {nil, true},
		"a leader that serves":        {&corev1.Pod{ObjectMeta: at(10)}, false},
		"a leader with requests":      {deleted(3630), false},
		"a leader that ends":          {deleted(endGraceSeconds), true},
		"the leader of another group": {&corev1.Pod{ObjectMeta: at(12)}, true},
		"a leader that has failed":    {&corev1.Pod{ObjectMeta: at(10), Status: corev1.PodStatus{Phase: corev1.PodFailed}}, true},
	} {
		if got := mayEndWorker(worker, tt.leader); got != tt.want {
			t.Errorf("%s: the worker may end: %v", what, got)
		}
	}
	if leaderOf("chat-1-12") != "chat-1" || groupIndex("chat-1") != 1 || groupIndex("chat-x7k2p") != 0 {
		t.Error("names of leaders are read wrongly")
	}
}

// TestNoLeaderWorkerSetsAfterAnOutage: once the API says that it has no LeaderWorkerSets, or that
// nobody may see them, it is reachable again. Only models that need them are told why.
func TestNoLeaderWorkerSetsAfterAnOutage(t *testing.T) {
	t.Parallel()
	of := groupsResource().GroupResource()
	for _, answer := range []error{apierrors.NewNotFound(of, ""), apierrors.NewForbidden(of, "", nil)} {
		c := &cluster{health: newHealth(zap.NewNop()), groupSets: newWatchStore[*appsv1.Deployment](func() {}), reconcileSignal: make(chan struct{}, 1)}
		for range 2 {
			c.onGroupsError(errors.New("connection refused"))
			if c.health.problem() == "" {
				t.Errorf("an API that cannot be reached is no problem before %v", answer)
			}
			c.onGroupsError(answer)
			if says := c.health.problem(); says != "" || c.groupsUsable() == nil {
				t.Errorf("after %v: %q, and %v", answer, says, c.groupsUsable())
			}
		}
	}
}

// listOnly is the API of LeaderWorkerSets for a user who may list them and, from its fourth watch
// on, watch them.
type listOnly struct {
	dynamic.ResourceInterface
	t       *testing.T
	c       *cluster
	watches int
}

func (l *listOnly) List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return &unstructured.UnstructuredList{}, nil
}

func (l *listOnly) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil { // the list comes by List
		return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
	}
	if l.watches++; l.watches > 3 {
		return watch.NewFake(), nil
	}
	if usable := l.c.groupsUsable() == nil; usable != (l.watches == 1) {
		l.t.Errorf("watch %d: LeaderWorkerSets are usable: %v", l.watches, usable)
	}
	return nil, apierrors.NewForbidden(groupsResource().GroupResource(), "", nil)
}

// TestLeaderWorkerSetsThatNobodyMayWatch: what a model is told stays while the objects may be
// listed and not watched. Before, each list took it back for a moment.
func TestLeaderWorkerSetsThatNobodyMayWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{health: newHealth(zap.NewNop()), groupSets: newWatchStore[*appsv1.Deployment](func() {}), reconcileSignal: make(chan struct{}, 1)}
		api := &listOnly{t: t, c: c}
		c.groupsAPI = api
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.watchGroups(ctx) }()
		time.Sleep(5 * groupsRetry)
		synctest.Wait()
		if err := c.groupsUsable(); err != nil || api.watches != 4 {
			t.Errorf("after %d watches, of which the last is allowed: %v", api.watches, err)
		}
		stop()
		<-ended
	})
}

// TestN4_AGroupThatLacksPodsIsTold: the API may refuse pods of a group, such as under a quota. No
// condition of a LeaderWorkerSet tells that. One that has just been scaled up from none lacks
// nothing yet, however old it is.
func TestN4_AGroupThatLacksPodsIsTold(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		age, since      time.Duration // of the group, and since when it should have pods
		leader, workers int
		ready           bool
		told            string
	}{
		"no pod":          {age: podWait, since: podWait, told: "has no pod"},
		"from none":       {age: podWait},
		"new":             {},
		"a leader alone":  {age: podWait, leader: 1, told: "lacks workers"},
		"one worker":      {age: podWait, leader: 1, workers: 1, told: "lacks workers"},
		"a new leader":    {leader: 1},
		"whole":           {age: podWait, leader: 1, workers: 2},
		"a worker is new": {age: podWait, leader: 1, workers: 1, ready: true},
	} {
		c, err := newCluster(Config{}.withDefaults(), location{namespace: "n"}, &rest.Config{})
		if err != nil {
			t.Fatal(err)
		}
		w := wanted{Model: engine("m", 1)}
		w.Hosts, w.workers = 3, new(corev1.PodTemplateSpec)
		if w.manifest, err = c.manifest(w.Model); err != nil {
			t.Fatal(err)
		}
		c.wanted = []wanted{w}
		set := w.manifest.DeepCopy()
		set.Kind, set.Spec.Replicas, set.CreationTimestamp = kindGroups, new(int32(1)), metav1.NewTime(now.Add(-tt.age))
		var pods []any
		made := func(pod, role string) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, Labels: map[string]string{labelDeployment: set.Name, labelRole: role}, CreationTimestamp: set.CreationTimestamp}}
			if tt.ready {
				p.Spec.NodeName, p.Status.Phase = "n", corev1.PodRunning
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			}
			pods = append(pods, p)
		}
		for range tt.leader {
			made(set.Name+"-0", "")
		}
		for i := range tt.workers {
			made(fmt.Sprint(set.Name, "-0-", i+1), roleWorker)
		}
		if err := errors.Join(c.groupSets.Replace([]any{set}, ""), c.pods.Replace(pods, "")); err != nil {
			t.Fatal(err)
		}
		c.updateEmptySets(c.pods.list(now), now.Add(-tt.since))
		c.updateEmptySets(c.pods.list(now), now)
		if got := c.blockedModels()["m"]; got == "" != (tt.told == "") || !strings.Contains(got, tt.told) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
