package engines

import (
	"slices"
	"strings"
	"testing"
)

// TestX3_OneRuleForNames checks the rule that names of the file and discovered names share.
func TestX3_OneRuleForNames(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "7b": true, "Qwen/Qwen2.5-7B-Instruct": true, "a_b.c:d@e+f": true, strings.Repeat("a", 200): true,
		"": false, "-a": false, "/models/a": false, "a b": false, "a*": false, "*": false, "a#b": false, "é": false, "a\n": false, "a\x00": false,
		"a//b": false, "a/": false, "a/../b": false, "a/./b": false, strings.Repeat("a", 201): false, "\xff": false,
	} {
		if got := ValidName(name); got != want {
			t.Errorf("%.20q: %v, want %v", name, got, want)
		}
	}
}

func TestReplicaIndex(t *testing.T) {
	t.Parallel()
	got := []int{}
	for _, id := range []string{"chat-0", "chat-12", "chat-012", "chat--1", "chat-+1", "chat", "other-1", "chat-x", "chat-1-0"} {
		got = append(got, ReplicaIndex("chat", id))
	}
	if want := []int{0, 12, -1, -1, -1, -1, -1, -1, -1}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
