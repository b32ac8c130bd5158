package kubernetes

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// leaderPods parses the notation of pods. A name ends with the index of its group.
func leaderPods(words string) []pod {
	all := pods(words)
	for i := range all {
		all[i].index = groupIndex(all[i].name)
	}
	return all
}

// TestN4_GroupsDrainFromTheTop: a LeaderWorkerSet deletes the group with the highest index, so this
// one is drained, whatever it does, and lower ones wait for it.
func TestN4_GroupsDrainFromTheTop(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name              string
		desired, replicas int
		leaders, want     string
	}{
		{"from zero", 2, -1, "", "create new 2"},
		{"as wanted", 2, 2, "g-0:r g-1:r", ""},
		{"more", 3, 1, "g-0:r", "scale new 3"},
		{"fewer: the highest, not the one with the fewest requests", 1, 3, "g-0:r0 g-1:r2 g-2:r9", "drain g-2, drain g-1"},
		{"fewer: the highest, although a lower one is broken", 1, 2, "g-0:n g-1:r", "drain g-1"},
		{"fewer: a group that restarts counts", 1, 3, "g-0:r g-1:rt g-2:r", "drain g-2"},
		{"fewer: it is gone", 1, 2, "g-0:r g-1:rt", "scale new 1"},
		{"drains", 1, 2, "g-0:r g-1:rd", ""},
		{"drained", 1, 2, "g-0:r g-1:rdf", "mark g-1"},
		{"marked", 1, 2, "g-0:r g-1:rdfl", "scale new 1"},
		{"marked, and has requests again", 1, 2, "g-0:r g-1:rdl", ""},
		{"marked below one that drains", 0, 2, "g-0:rdfl g-1:rd", ""},
		{"marked above one that drains", 0, 2, "g-0:rd g-1:rdfl", "scale new 1"},
		{"undrained: the lowest", 2, 3, "g-0:r g-1:rd g-2:rd", "undrain g-1"},
		{"the wrong one drains", 1, 2, "g-0:rd g-1:r", "drain g-1, undrain g-0"},
		{"the wrong one drains, and is worse", 1, 2, "g-0:nd g-1:r", ""},
		{"restarts while it drains", 1, 2, "g-0:rt g-1:rd", ""},
		{"to zero", 0, 2, "g-0:rdfl g-1:rdfl", "delete new"},
	} {
		var all []deployment
		if tt.replicas >= 0 {
			all = append(all, deployment{name: "new", replicas: tt.replicas, ordered: true, pods: leaderPods(tt.leaders)})
		}
		got, _ := plan(target{current: "new", desired: tt.desired}, all)
		if diff := cmp.Diff(tt.want, formatActions(got)); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// TestN4_GroupsReplaceADeployment: a model that gets hosts is replaced as by any other template.
func TestN4_GroupsReplaceADeployment(t *testing.T) {
	t.Parallel()
	got, _ := plan(target{current: "new", desired: 2}, []deployment{
		{name: "old", replicas: 2, pods: pods("x:r1 y:r0")}, {name: "new", replicas: 1, ordered: true, pods: leaderPods("g-0:r")},
	})
	if diff := cmp.Diff("drain y, scale new 2", formatActions(got)); diff != "" {
		t.Error(diff)
	}
}
