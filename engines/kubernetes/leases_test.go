package kubernetes

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/engines"
)

func lease(name, version, says string, renewed time.Time) *coordinationv1.Lease {
	stamp := metav1.NewMicroTime(renewed)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version, Annotations: map[string]string{annotationLoad: says}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &stamp},
	}
}

func TestPeers(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_000_000, 0)
	p := &peers{lifetime: 30 * time.Second}
	const busy = `{"models":{"m":{"running":2,"queued":3,"admitted":9,"predicted":{"requests":1,"ttft":4,"prefill":2}}},"pods":{"p":2}}`
	waiting := p.update([]*coordinationv1.Lease{
		// The clock of "a" is behind.
		lease("self", "1", busy, start), lease("a", "1", busy, start.Add(-4*time.Minute)),
		lease("b", "1", `{"models":{"m":{"running":1,"predicted":{"requests":2,"ttft":1,"prefill":1}}}}`, start), lease("old", "1", busy, start.Add(-time.Hour)), lease("odd", "1", "{", start),
	}, "self", start)
	if !slices.Contains(waiting, "m") {
		t.Error("the new waiting requests are not returned")
	}
	want := func(load engines.Load, live int) {
		t.Helper()
		if diff := cmp.Diff(load, p.load("m")); diff != "" || len(p.live()) != live {
			t.Errorf("%d gateways are live, want %d: %s", len(p.live()), live, diff)
		}
	}
	want(engines.Load{Running: 3, Queued: 3, Admitted: 9, Predicted: engines.Predicted{Requests: 3, TTFT: 5, Prefill: 3}}, 3)
	// b renews its lease, a does not. After 30 s by the test's clock a is dead, whatever its own
	// clock says.
	version := 1
	see := func(after time.Duration, b string) []string {
		version++
		return p.update([]*coordinationv1.Lease{
			lease("self", fmt.Sprint(version), busy, start), lease("a", "1", busy, start.Add(-4*time.Minute)),
			lease("b", b, `{"models":{"m":{"running":5}}}`, start), lease("old", "1", busy, start.Add(-time.Hour)),
		}, "self", start.Add(after))
	}
	if waiting := slices.Concat(see(10*time.Second, "1"), see(20*time.Second, "2")); len(waiting) > 0 {
		t.Errorf("%v is returned as waiting again", waiting)
	}
	see(29*time.Second, "2")
	want(engines.Load{Running: 7, Queued: 3, Admitted: 9, Predicted: engines.Predicted{Requests: 1, TTFT: 4, Prefill: 2}}, 2)
	see(31*time.Second, "2")
	want(engines.Load{Running: 5}, 1)
	see(42*time.Second, "2")
	see(51*time.Second, "2")
	want(engines.Load{}, 0)
	for after := time.Minute; after < 300*time.Second; after += 10 * time.Second {
		see(after, "2")
	}
	if got := p.expired(); len(got) > 0 {
		t.Errorf("%v expired too early", got)
	}
	see(302*time.Second, "2")
	if got := p.expired(); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"a", "old"}) {
		t.Errorf("expired are %v", got)
	}
	// A gateway that renews its lease again is live at once.
	p.update([]*coordinationv1.Lease{lease("self", "new", "", start), lease("old", "2", busy, start)}, "self", start.Add(303*time.Second))
	want(engines.Load{Running: 2, Queued: 3, Admitted: 9, Predicted: engines.Predicted{Requests: 1, TTFT: 4, Prefill: 2}}, 1)
}

// No gateway becomes dead while renewals cannot be seen: the API was stopped, its watch stood
// still, or this process did.
func TestPeersWhileNothingIsHeard(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_000_000, 0)
	p := &peers{lifetime: 30 * time.Second}
	see := func(after time.Duration, self, other string) int {
		p.update([]*coordinationv1.Lease{lease("self", self, "", start), lease("a", other, "", start)}, "self", start.Add(after))
		return len(p.live())
	}
	see(0, "1", "1")
	see(9*time.Second, "1", "2")
	for _, step := range []struct {
		after       time.Duration
		self, other string
		live        int
	}{
		{10 * time.Second, "2", "2", 1},
		{5 * time.Minute, "2", "2", 1},                // The API was stopped.
		{5*time.Minute + time.Second, "3", "2", 1},    // This gateway is the first to renew its lease.
		{5*time.Minute + 11*time.Second, "4", "2", 1}, // The other gateway is late,
		{5*time.Minute + 21*time.Second, "5", "2", 1},
		{5*time.Minute + 31*time.Second, "6", "2", 0}, // or dead.
		{5*time.Minute + 40*time.Second, "7", "3", 1},
	} {
		if got := see(step.after, step.self, step.other); got != step.live {
			t.Errorf("after %s %d gateways are live, want %d", step.after, got, step.live)
		}
	}
}

// A store shows the gateway's own writes until the watch has shown them, and for a limited time.
func TestStoreKnowsItsOwnWrites(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	s := newWatchStore[*coordinationv1.Lease](func() {})
	versions := func() map[string]string {
		all := map[string]string{}
		for _, l := range s.list(now) {
			all[l.Name] = l.ResourceVersion
		}
		return all
	}
	want := func(what string, want map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, versions()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			if l := s.get(name, now); (l == nil) != (want[name] == "") || l != nil && l.ResourceVersion != want[name] {
				t.Errorf("%s: get of %s is %v", what, name, l)
			}
		}
	}
	if s.hasSynced() {
		t.Error("the store is synced before the first list")
	}
	if err := s.Replace([]any{lease("a", "1", "", now)}, "1"); err != nil || !s.hasSynced() {
		t.Fatal(err)
	}
	s.recordWrite(lease("a", "2", "", now), "1", now)
	s.recordWrite(lease("b", "3", "", now), "", now)
	want("the watch is behind", map[string]string{"a": "2", "b": "3"})
	s.Update(lease("a", "5", "", now))
	s.Add(lease("b", "3", "", now))
	want("the watch is ahead", map[string]string{"a": "5", "b": "3"})
	s.recordWrite(lease("a", "4", "", now), "2", now) // The response came late.
	want("a late answer", map[string]string{"a": "5", "b": "3"})
	s.Delete(lease("b", "6", "", now))
	want("deleted", map[string]string{"a": "5"})
	s.recordWrite(lease("c", "7", "", now), "", now)
	want("made", map[string]string{"a": "5", "c": "7"})
	now = now.Add(ownWriteLifetime + time.Second)
	want("made, and deleted before the watch saw it", map[string]string{"a": "5"})
	if err := s.Replace([]any{lease("d", "9", "", now)}, "9"); err != nil {
		t.Fatal(err)
	}
	want("a new list", map[string]string{"d": "9"})
	if s.Add("no object") == nil {
		t.Error("the store accepted a string")
	}
}

// TestLeaseOfThousandsOfPods writes the lease of a gateway that has requests on thousands of pods,
// and of one that is done with thousands of draining pods. The API takes 256 KiB of annotations.
func TestLeaseOfThousandsOfPods(t *testing.T) {
	s := newTestNamespace(t, nil)
	to, _, err := Access{Kubeconfig: s.Kubeconfig}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCluster(Config{Identity: "g"}.withDefaults(), location{namespace: s.namespace}, to)
	if err != nil {
		t.Fatal(err)
	}
	const model, first = "m", "sluice-llama-3-1-8b-instruct-00000"
	busy, done := map[string]int{}, map[string]string{}
	for i := range 6000 {
		name := fmt.Sprintf("sluice-llama-3-1-8b-instruct-%05d", i)
		busy[name], done[name] = 12, start(i)
	}
	read := func(r leaseRecord) (back leaseRecord) {
		t.Helper()
		r.Models = map[string]engines.Load{model: {Queued: 3}}
		c.ownLease.content = func() leaseRecord { return r }
		l, err := c.ownLease.write(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(l.Annotations[annotationLoad]), &back); err != nil || back.Models[model].Queued != 3 {
			t.Fatalf("%v: %+v", err, back.Models)
		}
		return back
	}
	if r := read(leaseRecord{Pods: busy, Drained: map[string]string{first: "x"}}); r.Drained[first] != "x" {
		t.Error("a drained pod is missing")
	}
	if r := read(leaseRecord{Pods: busy, Drained: done}); r.Drained[first] == "" || len(r.Drained) < 1000 {
		t.Errorf("%d drained pods are told", len(r.Drained))
	}
	small := map[string]int{first: 12}
	if r := read(leaseRecord{Pods: small}); r.Pods[first] != 12 {
		t.Error("the requests of a pod are missing")
	}
}

// start is when a pod began to drain, as its annotation has it.
func start(second int) string {
	return time.Unix(int64(1_000_000+second), 1).UTC().Format(time.RFC3339Nano)
}
