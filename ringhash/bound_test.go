package ringhash

import (
	"bytes"
	"crypto/md5"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"sort"
	"strconv"
	"testing"
)

func TestPick(t *testing.T) {
	t.Parallel()
	// One node each, so from key 0 on the ring is a, b, c, d.
	at := map[string][]uint64{"a": {10}, "b": {20}, "c": {30}, "d": {40}}
	r := ringAt(at, "a", "b", "c", "d")
	tests := []struct {
		name  string
		key   uint64
		loads []int
		bound Bound
		want  int
	}{
		{"average (0+1)/4: all over, so the first", 0, []int{0, 0, 0, 0}, Bound{}, 0},
		{"all over from another key", 25, []int{0, 0, 0, 0}, Bound{}, 2},
		{"all over: the first, not the least busy", 0, []int{5, 4, 5, 4}, Bound{Factor: 0.5}, 0},
		{"within the bound", 0, []int{1, 1, 1, 1}, Bound{Factor: 2}, 0},
		// total 7, average 2, bound 2.5: 2+1 is over, 1+1 is within.
		{"one over", 0, []int{2, 1, 2, 2}, Bound{}, 1},
		{"two over", 0, []int{2, 2, 1, 2}, Bound{}, 2},
		{"wraps around", 35, []int{1, 2, 2, 2}, Bound{}, 0},
		// total 15, average 4, bound 5: exactly on the bound is within.
		{"on the bound", 0, []int{4, 4, 4, 3}, Bound{}, 0},
		{"above the bound", 0, []int{5, 4, 4, 2}, Bound{}, 1},
		{"factor 1", 0, []int{1, 1, 1, 0}, Bound{Factor: 1}, 3},
		{"factor 3", 0, []int{2, 1, 0, 0}, Bound{Factor: 3}, 0},
		{"factor below 1: all over", 0, []int{5, 5, 5, 5}, Bound{Factor: 0.1}, 0},
		{"negative factor is the default", 0, []int{2, 1, 2, 2}, Bound{Factor: -1}, 1},
		{"no factor at all is the default", 0, []int{2, 1, 2, 2}, Bound{Factor: math.NaN()}, 1},
		{"no bound", 0, []int{1 << 40, 0, 0, 0}, Bound{Factor: math.Inf(1)}, 0},
		{"floor keeps the first", 0, []int{7, 0, 0, 0}, Bound{Floor: 8}, 0},
		{"floor reached", 0, []int{8, 0, 0, 0}, Bound{Floor: 8}, 1},
		{"floor below the bound", 0, []int{9, 9, 9, 9}, Bound{Floor: 8}, 0},
		{"negative floor", 0, []int{0, 0, 0, 0}, Bound{Floor: -3}, 0},
		{"first is no candidate", 0, []int{-1, 0, 0, 0}, Bound{Floor: 8}, 1},
		// Candidates b and d: total 3, average 2, bound 2.5: d passes. If a and c counted, the
		// bound would be 1.25 and no replica would pass.
		{"average among candidates", 0, []int{-1, 2, -1, 1}, Bound{}, 3},
		{"all candidates over: the first of them", 5, []int{-1, -1, 3, 3}, Bound{Factor: 0.5}, 2},
		{"one candidate", 0, []int{-1, -1, -1, 100}, Bound{}, 3},
		{"none", 0, []int{-1, -1, -1, -5}, Bound{Floor: 8}, -1},
		{"absurd loads", 0, []int{-1, math.MaxInt, math.MaxInt, -1}, Bound{}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := r.Pick(tt.key, tt.loads, tt.bound); got != tt.want {
				t.Errorf("Pick(%d, %v, %+v) = %d, want %d", tt.key, tt.loads, tt.bound, got, tt.want)
			}
		})
	}
}

func TestPickOnEmptyRing(t *testing.T) {
	t.Parallel()
	if got := New(nil, 0).Pick(1, nil, Bound{}); got != -1 {
		t.Errorf("Pick = %d, want -1", got)
	}
}

// TestDecimalFactor: 1.15 is not a binary number, but 100 × 1.15 / 5 must be 23.
func TestDecimalFactor(t *testing.T) {
	t.Parallel()
	if got := (Bound{Factor: 1.15}).MaxLoad(99, 5); got != 23 {
		t.Errorf("most = %d, want 23", got)
	}
}

// referenceRing is N7 written out, with nothing of the code under test: hash with fmt, no search,
// exact fractions.
type referenceRing struct {
	ids    []string
	nodes  int
	factor float64
	floor  int
}

// order returns the replicas as the ring meets them: all nodes sorted, first those at or after the
// key, then the others.
func (q referenceRing) order(key uint64) []int {
	type node struct {
		at    [8]byte
		owner int
	}
	var nodes []node
	for owner, id := range q.ids {
		for i := range q.nodes {
			sum := md5.Sum(fmt.Appendf(nil, "%s:%d", id, i))
			nodes = append(nodes, node{[8]byte(sum[:8]), owner})
		}
	}
	sort.Slice(nodes, func(i, j int) bool { return bytes.Compare(nodes[i].at[:], nodes[j].at[:]) < 0 })
	position := new(big.Int).SetUint64(key).FillBytes(make([]byte, 8))
	var order []int
	met := map[int]bool{}
	for _, after := range []bool{true, false} {
		for _, n := range nodes {
			if (bytes.Compare(n.at[:], position) >= 0) == after && !met[n.owner] {
				met[n.owner] = true
				order = append(order, n.owner)
			}
		}
	}
	return order
}

func (q referenceRing) pick(key uint64, loads []int) int {
	var candidates []int
	total := int64(0)
	for _, i := range q.order(key) {
		if loads[i] >= 0 {
			candidates = append(candidates, i)
			total += int64(loads[i])
		}
	}
	if len(candidates) == 0 {
		return -1
	}
	average := big.NewRat(total+1, int64(len(candidates)))
	factor, _ := new(big.Rat).SetString(strconv.FormatFloat(q.factor, 'f', -1, 64))
	threshold := new(big.Rat).Mul(average, factor)
	if floor := big.NewRat(int64(q.floor), 1); threshold.Cmp(floor) < 0 {
		threshold = floor
	}
	for _, i := range candidates {
		if big.NewRat(int64(loads[i]+1), 1).Cmp(threshold) <= 0 {
			return i
		}
	}
	return candidates[0]
}

func TestPickAgainstTheRequirement(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 7))
	factors := []float64{1, 1.1, 1.15, 1.25, 1.5, 2, 3.3}
	for range 120 {
		q := referenceRing{
			ids:    names(fmt.Sprint("m", random.IntN(1000)), 1+random.IntN(12)),
			nodes:  1 + random.IntN(20),
			factor: factors[random.IntN(len(factors))],
			floor:  random.IntN(2) * random.IntN(10),
		}
		random.Shuffle(len(q.ids), func(i, j int) { q.ids[i], q.ids[j] = q.ids[j], q.ids[i] })
		r := New(q.ids, q.nodes)
		for range 20 {
			key := random.Uint64()
			loads := randomLoads(random, len(q.ids))
			want := q.pick(key, loads)
			if got := r.Pick(key, loads, Bound{Factor: q.factor, Floor: q.floor}); got != want {
				t.Fatalf("%+v: Pick(%#x, %v) = %d, want %d", q, key, loads, got, want)
			}
			if got, want := fmt.Sprint(r.Order(key)), fmt.Sprint(q.order(key)); got != want {
				t.Fatalf("%+v: Order(%#x) = %s, want %s", q, key, got, want)
			}
		}
	}
}

// randomLoads are close to each other, because the bound is easy to get right when they are far
// apart.
func randomLoads(random *rand.Rand, n int) []int {
	base, spread := random.IntN(40), 1+random.IntN(12)
	loads := make([]int, n)
	for i := range loads {
		loads[i] = base + random.IntN(spread)
		if random.IntN(4) == 0 {
			loads[i] = -1
		}
	}
	return loads
}

// TestLoadStaysBounded: however skewed the keys, no request takes its replica above the bound.
// (Below about one request per replica the textbook rule finds everybody over it; the test starts
// above.)
func TestLoadStaysBounded(t *testing.T) {
	t.Parallel()
	const replicas, requests, each = 16, 4000, 20
	for _, b := range []Bound{{Factor: 1.1}, {Factor: 1.25}, {Factor: 2}, {Factor: 1.25, Floor: 40}} {
		r := New(names("chat", replicas), 0)
		loads, total := make([]int, replicas), each*replicas
		for i := range loads {
			loads[i] = each
		}
		random := rand.New(rand.NewPCG(3, 3))
		full := 0 // picks that filled a replica to its bound
		for range requests {
			// all keys lie on one short arc: they belong to one replica
			key := random.Uint64() >> 32
			bound := max(b.Factor*float64(total+1)/replicas, float64(b.Floor))
			i := r.Pick(key, loads, b)
			loads[i]++
			total++
			if float64(loads[i]) > bound {
				t.Fatalf("%+v: load %d above the bound %.2f", b, loads[i], bound)
			}
			if float64(loads[i]+1) > bound {
				full++
			}
			// some requests end
			if j := random.IntN(replicas); random.IntN(3) == 0 && loads[j] > 0 {
				loads[j]--
				total--
			}
		}
		if full < requests/4 {
			t.Errorf("%+v: only %d picks touched the bound; the test does not press", b, full)
		}
	}
}

// TestFloorKeepsConversations is the reason for the floor: 16 live conversations on 8 replicas all
// return to their replica with it, and most do not without.
func TestFloorKeepsConversations(t *testing.T) {
	t.Parallel()
	stay := func(b Bound) int {
		r := New(names("chat", 8), 0)
		loads, stayed := make([]int, 8), 0
		var live []int
		random := rand.New(rand.NewPCG(5, 5))
		for range 2000 {
			if len(live) == 16 {
				loads[live[0]]--
				live = live[1:]
			}
			key := Key(fmt.Appendf(nil, "conversation %d", random.IntN(200)))
			i := r.Pick(key, loads, b)
			loads[i]++
			live = append(live, i)
			if i == r.Order(key)[0] {
				stayed++
			}
		}
		return stayed * 100 / 2000
	}
	if textbook, floor := stay(Bound{}), stay(Bound{Floor: 8}); textbook > 80 || floor < 99 {
		t.Errorf("%d %% stayed without a floor (want few), %d %% with one (want all)", textbook, floor)
	}
}

func TestNoAllocation(t *testing.T) {
	r := New(names("chat", 1000), 0)
	loads := make([]int, 1000)
	dst := make([]int, 0, 4)
	key := uint64(0)
	if n := testing.AllocsPerRun(100, func() {
		key += 1 << 57
		r.Pick(key, loads, Bound{Floor: 8})
		dst = r.AppendOrder(dst[:0], key, loads, 4)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
