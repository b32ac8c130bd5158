package ringhash

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The vectors of this file were computed with Python's hashlib and xxhash, by a program that shares
// nothing with this package.

func TestPosition(t *testing.T) {
	t.Parallel()
	tests := []struct {
		id    string
		index int
		want  uint64
	}{
		{"chat-0", 0, 0xac84b2452774da36},
		{"chat-0", 1, 0x4922753574aaf9d5},
		{"chat-0", 99, 0x2b84834ff03a2955},
		{"chat-10", 0, 0x70817d58847509bb},
		{"10.0.0.5:8000", 7, 0xa5f2b535927dd81c},
		{"", 0, 0x1a9d5db22c73a993},
		{"größe", 3, 0x80fb98e769c32cc7},
	}
	for _, tt := range tests {
		if got := position(tt.id, tt.index); got != tt.want {
			t.Errorf("position(%q, %d) = %#016x, want %#016x", tt.id, tt.index, got, tt.want)
		}
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	tests := []struct {
		key  string
		want uint64
	}{
		{"", 0xef46db3751d8e999},
		{"a", 0xd24ec4f1a98c6e5b},
		{"abc", 0x44bc2cf5ad770999},
		{"You are a helpful assistant.", 0xe4a58ad40a48973b},
	}
	for _, tt := range tests {
		if got := Key([]byte(tt.key)); got != tt.want {
			t.Errorf("Key(%q) = %#016x, want %#016x", tt.key, got, tt.want)
		}
	}
}

func TestOrderVectors(t *testing.T) {
	t.Parallel()
	r := New(names("chat", 5), 0)
	tests := []struct {
		key  string
		want []int
	}{
		{"alpha", []int{1, 4, 3, 0, 2}},
		{"beta", []int{1, 2, 0, 4, 3}},
		{"gamma", []int{4, 3, 2, 1, 0}},
		{"delta", []int{1, 4, 0, 3, 2}},
		{"omega-21", []int{0, 4, 1, 3, 2}},
		{"conversation 0", []int{4, 0, 2, 1, 3}},
		{"conversation 1", []int{3, 1, 4, 0, 2}},
		{"conversation 2", []int{1, 4, 2, 0, 3}},
		{"conversation 3", []int{4, 2, 1, 0, 3}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, r.Order(Key([]byte(tt.key)))); diff != "" {
			t.Errorf("Order(%q) (-want +got):\n%s", tt.key, diff)
		}
	}
}

// ringAt is a ring with nodes at given positions.
func ringAt(at map[string][]uint64, ids ...string) *Ring {
	return build(ids, len(at[ids[0]]), func(id string, index int) uint64 { return at[id][index] })
}

func TestOrderOnSmallRings(t *testing.T) {
	t.Parallel()
	at := map[string][]uint64{"a": {10, 40}, "b": {20, 50}, "c": {30, 60}}
	tests := []struct {
		name string
		ring *Ring
		key  uint64
		want []int
	}{
		{"before the first node", ringAt(at, "a", "b", "c"), 0, []int{0, 1, 2}},
		{"on a node", ringAt(at, "a", "b", "c"), 20, []int{1, 2, 0}},
		{"between nodes", ringAt(at, "a", "b", "c"), 21, []int{2, 0, 1}},
		{"after the last node", ringAt(at, "a", "b", "c"), 61, []int{0, 1, 2}},
		{"largest key", ringAt(at, "a", "b", "c"), 1<<64 - 1, []int{0, 1, 2}},
		{"other order of ids", ringAt(at, "c", "a", "b"), 21, []int{0, 1, 2}},
		{"one replica", ringAt(at, "b"), 45, []int{0}},
		{"no replica", New(nil, 0), 7, []int{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, tt.ring.Order(tt.key)); diff != "" {
				t.Errorf("Order(%d) (-want +got):\n%s", tt.key, diff)
			}
		})
	}
}

// TestCollision: two replicas at one position keep their order, whatever the order of the ids.
func TestCollision(t *testing.T) {
	t.Parallel()
	at := map[string][]uint64{"a": {10}, "b": {10}, "c": {5}}
	for _, ids := range [][]string{{"a", "b", "c"}, {"b", "a", "c"}, {"c", "b", "a"}} {
		r := ringAt(at, ids...)
		var got []string
		for _, i := range r.Order(6) {
			got = append(got, ids[i])
		}
		if diff := cmp.Diff([]string{"a", "b", "c"}, got); diff != "" {
			t.Errorf("ids %v: order (-want +got):\n%s", ids, diff)
		}
	}
}

func TestRepeatedIDsAreAllVisited(t *testing.T) {
	t.Parallel()
	r := New([]string{"a", "a", "b"}, 3)
	got := r.Order(1)
	slices.Sort(got)
	if diff := cmp.Diff([]int{0, 1, 2}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRingIsImmutable(t *testing.T) {
	t.Parallel()
	ids := names("chat", 3)
	r := New(ids, 0)
	ids[0] = "changed"
	r.IDs()[1] = "changed"
	if diff := cmp.Diff(names("chat", 3), r.IDs()); diff != "" {
		t.Errorf("IDs (-want +got):\n%s", diff)
	}
	if r.Len() != 3 {
		t.Errorf("Len = %d, want 3", r.Len())
	}
}

func TestAppendOrder(t *testing.T) {
	t.Parallel()
	r := New(names("chat", 5), 0)
	key := Key([]byte("alpha")) // 1 4 3 0 2
	tests := []struct {
		name  string
		loads []int
		limit int
		want  []int
	}{
		{"all", nil, 0, []int{1, 4, 3, 0, 2}},
		{"two", nil, 2, []int{1, 4}},
		{"more than there are", nil, 9, []int{1, 4, 3, 0, 2}},
		{"without the first", []int{0, -1, 0, 0, 0}, 0, []int{4, 3, 0, 2}},
		{"two of the candidates", []int{7, -1, 7, 7, -1}, 2, []int{3, 0}},
		{"no candidate", []int{-1, -1, -1, -1, -1}, 3, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, r.AppendOrder(nil, key, tt.loads, tt.limit)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			prefixed := r.AppendOrder([]int{42}, key, tt.loads, tt.limit)
			if diff := cmp.Diff(append([]int{42}, tt.want...), prefixed); diff != "" {
				t.Errorf("behind an element (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLargeRing: every replica appears once, also if the visited set does not fit on the stack, and
// at the edges of that size.
func TestLargeRing(t *testing.T) {
	t.Parallel()
	for _, n := range []int{63, 64, 65, 64 * stackWords, 64*stackWords + 1} {
		got := New(names("chat", n), 2).Order(12345)
		if len(got) != n {
			t.Errorf("%d replicas: order has %d", n, len(got))
		}
		slices.Sort(got)
		if len(slices.Compact(got)) != n {
			t.Errorf("%d replicas: a replica came twice", n)
		}
	}
}

// TestMinimalMovement: a key changes its replica only to the one that joined, or from the one that
// left. This happens to about one key in n.
func TestMinimalMovement(t *testing.T) {
	t.Parallel()
	const keys = 20_000
	for _, n := range []int{1, 2, 7, 20} {
		small, large := New(names("chat", n), 0), New(names("chat", n+1), 0)
		newcomer, moved := n, 0
		random := rand.New(rand.NewPCG(1, uint64(n)))
		for range keys {
			key := random.Uint64()
			before, after := small.Order(key), large.Order(key)
			if after[0] == newcomer {
				moved++
			}
			// Without the new replica the order must be the old one.
			rest := slices.DeleteFunc(after, func(i int) bool { return i == newcomer })
			if !slices.Equal(before, rest) {
				t.Fatalf("%d replicas and one more: order of %#x was %v, is %v", n, key, before, rest)
			}
		}
		fair := float64(keys) / float64(n+1)
		if share := float64(moved) / fair; share < 0.6 || share > 1.5 {
			t.Errorf("%d replicas and one more: the newcomer got %.2f of its fair share of keys", n, share)
		}
	}
}

// names returns prefix-0 … prefix-(n-1).
func names(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return ids
}
