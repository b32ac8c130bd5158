package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// with returns the node with a name and claims.
func with(name string, node engines.Node, claims ...Claim) Node {
	node.Name = name
	return Node{node, claims}
}

// nothing returns the claim of a replica without resources.
func nothing(id string) Claim {
	model, _, _ := strings.Cut(id, "-")
	return Claim{ID: id, Model: model}
}

func TestPickNode(t *testing.T) {
	t.Parallel()
	one := func(p Policy) Want { return Want{"chat", engines.Resources{GPU: 1}, p} }
	cpu := func(p Policy) Want { return Want{"chat", engines.Resources{CPU: 2}, p} }
	free := func(p Policy) Want { return Want{"chat", engines.Resources{}, p} }
	gone := with("c", gpus(8))
	gone.Lost = true
	for name, c := range map[string]struct {
		nodes []Node
		want  Want
		node  string
	}{
		"spread: the first of equals":                  {[]Node{with("a", gpus(2)), with("b", gpus(2))}, one(Spread), "a"},
		"spread is the default":                        {[]Node{with("a", gpus(2), taken("x-0", 1, "GPU-0")), with("b", gpus(2))}, one(""), "b"},
		"spread: fewest replicas of the model":         {[]Node{with("a", gpus(4), taken("chat-0", 1, "GPU-0")), with("b", gpus(2), taken("x-0", 1, "GPU-0"))}, one(Spread), "b"},
		"spread: the least used share":                 {[]Node{with("a", gpus(2), taken("x-0", 1, "GPU-0")), with("b", gpus(4), taken("x-1", 1, "GPU-0"))}, one(Spread), "b"},
		"spread: processors where GPUs are alike":      {[]Node{with("a", gpus(1), taken("x-0", 0)), with("b", gpus(1))}, one(Spread), "b"},
		"spread without GPUs: processors":              {[]Node{with("a", gpus(0), taken("x-0", 0)), with("b", gpus(2), taken("x-1", 1, "GPU-0"), taken("x-2", 0))}, cpu(Spread), "a"},
		"spread without GPUs: not the GPUs":            {[]Node{with("a", gpus(1), taken("x-0", 0), taken("x-1", 0)), with("b", gpus(1), taken("x-2", 1, "GPU-0"))}, cpu(Spread), "b"},
		"spread without resources: the number":         {[]Node{with("a", gpus(0), nothing("chat-0"), nothing("chat-1")), with("b", gpus(0), nothing("chat-2"))}, free(Spread), "b"},
		"pack: the most used":                          {[]Node{with("a", gpus(4)), with("b", gpus(4), taken("x-0", 1, "GPU-0"))}, one(Pack), "b"},
		"pack: the most used that fits":                {[]Node{with("a", gpus(2), taken("x-0", 1, "GPU-0")), with("b", gpus(1), taken("x-1", 1, "GPU-0"))}, one(Pack), "a"},
		"pack without resources: the number":           {[]Node{with("a", gpus(1), taken("x-0", 1, "GPU-0")), with("b", gpus(0), nothing("chat-2"))}, free(Pack), "b"},
		"pack: of equally used the one with the model": {[]Node{with("a", gpus(4), taken("x-0", 1, "GPU-0")), with("b", gpus(4), taken("chat-0", 1, "GPU-0"))}, one(Pack), "b"},
		"pack without resources: then the most used":   {[]Node{with("a", gpus(0)), with("b", gpus(0), taken("x-0", 0))}, free(Pack), "b"},
		"spread: memory where processors are alike":    {[]Node{with("a", gpus(0), Claim{ID: "x-0", Model: "x", Resources: engines.Resources{Memory: 1 << 30}}), with("b", gpus(0))}, cpu(Spread), "b"},
		"pack: memory where processors are alike":      {[]Node{with("a", gpus(0)), with("b", gpus(0), Claim{ID: "x-0", Model: "x", Resources: engines.Resources{Memory: 1 << 30}})}, cpu(Pack), "b"},
		"lost ones are passed over":                    {[]Node{with("a", gpus(0)), gone, with("b", gpus(1))}, one(Spread), "b"},
		"a node that does not say what it has":         {[]Node{with("a", gpus(0), taken("x-0", 0)), with("b", engines.Node{}, taken("x-1", 0))}, cpu(Spread), "b"},
	} {
		node, missing := PickNodeOrExplain(c.nodes, c.want)
		if node < 0 || c.nodes[node].Name != c.node || missing != "" {
			t.Errorf("%s: %d, %q; want %s", name, node, missing, c.node)
		}
	}
}

func TestPickNodeOrExplainSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	gone := with("gpu-3", gpus(8))
	gone.Lost = true
	left := gone
	left.Left = true
	many := []Node{}
	for i := range 12 {
		many = append(many, with(fmt.Sprint("h", i), gpus(0)))
	}
	busy := with("gpu-1", gpus(2), taken("x-0", 1, "GPU-0"))
	for name, c := range map[string]struct {
		nodes []Node
		want  string
	}{
		"no node":     {nil, "there is no node"},
		"its own":     {[]Node{busy}, "needs 2 GPUs, 1 of 2 is free: GPU 0 has x-0"},
		"lost":        {[]Node{gone}, "gpu-3: does not answer"},
		"has left":    {[]Node{left}, "gpu-3: has left"},
		"several":     {[]Node{busy, gone, with("gpu-2", gpus(0))}, "gpu-1: needs 2 GPUs, 1 of 2 is free: GPU 0 has x-0; gpu-3: does not answer; gpu-2: needs 2 GPUs, this node has none"},
		"not all":     {many, strings.Repeat("?", 4) + "and nothing on 8 more nodes"},
		"five of all": {many[:5], strings.Repeat("?", 5)},
	} {
		node, missing := PickNodeOrExplain(c.nodes, Want{"chat", engines.Resources{GPU: 2}, Spread})
		for i := range many {
			missing = strings.Replace(missing, fmt.Sprintf("h%d: needs 2 GPUs, this node has none; ", i), "?", 1)
		}
		missing = strings.Replace(missing, "h4: needs 2 GPUs, this node has none", "?", 1)
		if node != -1 || missing != c.want {
			t.Errorf("%s: %d, %q; want %q", name, node, missing, c.want)
		}
	}
}

func TestPickEvictions(t *testing.T) {
	t.Parallel()
	full := func(name string, ids ...string) Node {
		h := with(name, gpus(len(ids)))
		for i, id := range ids {
			h.Claims = append(h.Claims, taken(id, 1, fmt.Sprintf("GPU-%d", i)))
		}
		return h
	}
	lost := full("c", "i-0")
	lost.Lost = true
	halves := with("b", gpus(3), taken("i-0", 0.5, "GPU-0"), taken("j-0", 0.5, "GPU-0"), taken("k-0", 1, "GPU-1"), taken("l-0", 1, "GPU-2"))
	for name, c := range map[string]struct {
		nodes []Node
		gpus  float64
		idle  string
		want  string
	}{
		"nobody need go":                     {[]Node{full("a", "i-0"), with("b", gpus(1))}, 1, "i-0", ""},
		"nobody is idle":                     {[]Node{full("a", "x-0")}, 1, "", ""},
		"not enough are idle":                {[]Node{full("a", "i-0", "x-0")}, 2, "i-0", ""},
		"what is idle is spread too thin":    {[]Node{full("a", "i-0", "x-0"), full("b", "i-1", "x-1")}, 2, "i-0 i-1", ""},
		"the first of idle":                  {[]Node{full("a", "i-0", "j-0"), full("b", "k-0")}, 1, "k-0 j-0 i-0", "k-0"},
		"two on the node where two are":      {[]Node{full("a", "i-0", "x-0"), full("b", "j-0", "k-0")}, 2, "i-0 j-0 k-0", "j-0 k-0"},
		"fewer, though unused less long":     {[]Node{halves}, 1, "i-0 j-0 k-0", "k-0"},
		"two, though three come first":       {[]Node{halves}, 2, "i-0 j-0 k-0 l-0", "k-0 l-0"},
		"the one whose last was unused more": {[]Node{full("a", "i-0", "l-0"), full("b", "j-0", "k-0")}, 2, "i-0 j-0 k-0 l-0", "j-0 k-0"},
		"a node that does not answer":        {[]Node{lost}, 1, "i-0", ""},
		"who is not there":                   {[]Node{full("a", "i-0")}, 1, "z-9 i-0", "i-0"},
	} {
		got := PickEvictions(c.nodes, Want{"chat", engines.Resources{GPU: c.gpus}, Spread}, strings.Fields(c.idle))
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %q", name, got, c.want)
		}
	}
}

// With more sets of idle replicas than PickEvictions tries, each replica of its result is still
// needed.
func TestPickEvictionsOfACrowd(t *testing.T) {
	t.Parallel()
	h := with("a", gpus(3))
	var idle []string
	for i := range 45 {
		id := fmt.Sprint("x-", i)
		idle = append(idle, id)
		if i%15 == 14 {
			h.Claims = append(h.Claims, taken(id, 1, fmt.Sprint("GPU-", i/15)))
		} else {
			h.Claims = append(h.Claims, nothing(id))
		}
	}
	got := PickEvictions([]Node{h}, Want{"chat", engines.Resources{GPU: 3}, Spread}, idle)
	if strings.Join(got, " ") != "x-14 x-29 x-44" {
		t.Error(got)
	}
}

// If a set of idle replicas is sufficient, PickEvictions finds one. The set is the smallest, and in
// the order of eviction.
func TestPickEvictionsProperties(t *testing.T) {
	t.Parallel()
	needed := map[int]int{}
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 11))
		var nodes []Node
		var idle []string
		for h := range 1 + random.IntN(3) {
			node := with(fmt.Sprint(h), divided(gpus(1+random.IntN(4)), random.IntN(3)))
			for i := range 12 {
				w := randomWant(random)
				devices, missing := PickDevices(node.Node, node.Claims, w)
				if missing != "" {
					continue
				}
				id := fmt.Sprintf("%s-%d-%d", w.Model, h, i)
				node.Claims = append(node.Claims, Claim{id, w.Model, w.Resources, devices})
				if random.IntN(2) == 0 {
					idle = append(idle, id)
				}
			}
			nodes = append(nodes, node)
		}
		random.Shuffle(len(idle), func(i, j int) { idle[i], idle[j] = idle[j], idle[i] })
		w := randomWant(random)
		got := PickEvictions(nodes, w, idle)
		want := fewestOf(nodes, w, idle)
		if len(got) != max(want, 0) {
			t.Fatalf("seed %d: %v, and %d are enough for %+v on %+v, idle %v", seed, got, want, w, nodes, idle)
		}
		if want > 0 && !slices.ContainsFunc(nodes, func(h Node) bool { return roomWithout(h, w, got) }) {
			t.Fatalf("seed %d: %v are not enough for %+v on %+v", seed, got, w, nodes)
		}
		last := -1
		for _, id := range got {
			at := slices.Index(idle, id)
			if at <= last {
				t.Fatalf("seed %d: %v of %v", seed, got, idle)
			}
			last = at
		}
		needed[want]++
	}
	if needed[-1] < 10 || needed[0] < 10 || needed[1] < 10 || needed[2]+needed[3] < 10 {
		t.Errorf("evictions needed, by number: %v; some cases came up too rarely", needed)
	}
}

func roomWithout(h Node, w Want, gone []string) bool {
	rest := slices.DeleteFunc(slices.Clone(h.Claims), func(c Claim) bool { return slices.Contains(gone, c.ID) })
	return hasRoom(h.Node, rest, w)
}

// fewestOf tries every set on every node. It returns -1 if none is sufficient.
func fewestOf(nodes []Node, w Want, idle []string) int {
	fewest := -1
	for _, h := range nodes {
		var here []string
		for _, c := range h.Claims {
			if slices.Contains(idle, c.ID) {
				here = append(here, c.ID)
			}
		}
		for set := range 1 << len(here) {
			var gone []string
			for i, id := range here {
				if set&(1<<i) != 0 {
					gone = append(gone, id)
				}
			}
			if (fewest < 0 || len(gone) < fewest) && roomWithout(h, w, gone) {
				fewest = len(gone)
			}
		}
	}
	return fewest
}
