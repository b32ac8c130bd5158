package kubernetes

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	const busy = `{"models":{"m":{"running":2,"queued":3,"admitted":9}},"pods":{"p":2}}`
	waiting := p.update([]*coordinationv1.Lease{
		lease("self", "1", busy, start), lease("a", "1", busy, start.Add(-4*time.Minute)), // its clock is behind
		lease("b", "1", `{"models":{"m":{"running":1}}}`, start), lease("old", "1", busy, start.Add(-time.Hour)), lease("odd", "1", "{", start),
	}, "self", start)
	if !slices.Contains(waiting, "m") {
		t.Error("nobody is told that requests wait")
	}
	want := func(now time.Time, load Load, live int) {
		t.Helper()
		if diff := cmp.Diff(load, p.load("m", now)); diff != "" || len(p.live(now)) != live {
			t.Errorf("%d live, want %d: %s", len(p.live(now)), live, diff)
		}
	}
	want(start, Load{Running: 3, Queued: 3, Admitted: 9}, 3)
	// b renews, a does not: after 30 s by our own clock it is dead, whatever its clock says.
	later := start.Add(20 * time.Second)
	waiting = p.update([]*coordinationv1.Lease{
		lease("a", "1", busy, start.Add(-4*time.Minute)), lease("b", "2", `{"models":{"m":{"running":5}}}`, later), lease("old", "1", busy, start.Add(-time.Hour)),
	}, "self", later)
	if len(waiting) > 0 {
		t.Errorf("%v is said to wait, and nothing new does", waiting)
	}
	want(start.Add(29*time.Second), Load{Running: 7, Queued: 3, Admitted: 9}, 2)
	want(start.Add(31*time.Second), Load{Running: 5}, 1)
	want(start.Add(51*time.Second), Load{}, 0)
	if got := p.dead(start.Add(time.Minute), start); len(got) > 0 {
		t.Errorf("%v are given up too early", got)
	}
	if got := p.dead(start.Add(302*time.Second), start); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"a", "old"}) {
		t.Errorf("dead are %v", got)
	}
	// One that comes back with its first word is alive.
	p.update([]*coordinationv1.Lease{lease("old", "2", busy, start.Add(time.Hour))}, "self", start.Add(time.Hour))
	want(start.Add(time.Hour), Load{Running: 2, Queued: 3, Admitted: 9}, 1)
}

// What we wrote ourselves is believed until the watch has caught up with it, and not longer.
func TestStoreKnowsItsOwnWrites(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	s := newStore[*coordinationv1.Lease](func() {})
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
	}
	if s.hasSynced() {
		t.Error("synced before the first list")
	}
	if err := s.Replace([]any{lease("a", "1", "", now)}, "1"); err != nil || !s.hasSynced() {
		t.Fatal(err)
	}
	s.wrote(lease("a", "2", "", now), "1", now)
	s.wrote(lease("b", "3", "", now), "", now)
	want("the watch is behind", map[string]string{"a": "2", "b": "3"})
	s.Update(lease("a", "5", "", now))
	s.Add(lease("b", "3", "", now))
	want("the watch is ahead", map[string]string{"a": "5", "b": "3"})
	s.wrote(lease("a", "4", "", now), "2", now) // its answer took long
	want("a late answer", map[string]string{"a": "5", "b": "3"})
	s.Delete(lease("b", "6", "", now))
	want("deleted", map[string]string{"a": "5"})
	s.wrote(lease("c", "7", "", now), "", now)
	want("made", map[string]string{"a": "5", "c": "7"})
	now = now.Add(forgetWritten + time.Second)
	want("made, and deleted before the watch saw it", map[string]string{"a": "5"})
	if err := s.Replace([]any{lease("d", "9", "", now)}, "9"); err != nil {
		t.Fatal(err)
	}
	want("a new list", map[string]string{"d": "9"})
	if s.Add("no object") == nil {
		t.Error("took a string")
	}
}
