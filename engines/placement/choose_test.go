package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// with names a node and says what is taken of it.
func with(name string, node engines.Node, claims ...Claim) Host {
	node.Name = name
	return Host{node, claims}
}

// nothing is what a replica takes whose model names no resources.
func nothing(id string) Claim {
	model, _, _ := strings.Cut(id, "-")
	return Claim{ID: id, Model: model}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	one := func(p Policy) Want { return Want{"chat", engines.Resources{GPU: 1}, p} }
	cpu := func(p Policy) Want { return Want{"chat", engines.Resources{CPU: 2}, p} }
	free := func(p Policy) Want { return Want{"chat", engines.Resources{}, p} }
	gone := with("c", gpus(8))
	gone.Lost = true
	for name, c := range map[string]struct {
		hosts []Host
		want  Want
		host  string
	}{
		"spread: the first of equals":             {[]Host{with("a", gpus(2)), with("b", gpus(2))}, one(Spread), "a"},
		"spread is the default":                   {[]Host{with("a", gpus(2), taken("x-0", 1, "GPU-0")), with("b", gpus(2))}, one(""), "b"},
		"spread: fewest replicas of the model":    {[]Host{with("a", gpus(4), taken("chat-0", 1, "GPU-0")), with("b", gpus(2), taken("x-0", 1, "GPU-0"))}, one(Spread), "b"},
		"spread: the least used share":            {[]Host{with("a", gpus(2), taken("x-0", 1, "GPU-0")), with("b", gpus(4), taken("x-1", 1, "GPU-0"))}, one(Spread), "b"},
		"spread: processors where GPUs are alike": {[]Host{with("a", gpus(1), taken("x-0", 0)), with("b", gpus(1))}, one(Spread), "b"},
		"spread without GPUs: processors":         {[]Host{with("a", gpus(0), taken("x-0", 0)), with("b", gpus(2), taken("x-1", 1, "GPU-0"), taken("x-2", 0))}, cpu(Spread), "a"},
		"spread without GPUs: not the GPUs":       {[]Host{with("a", gpus(1), taken("x-0", 0), taken("x-1", 0)), with("b", gpus(1), taken("x-2", 1, "GPU-0"))}, cpu(Spread), "b"},
		"spread without resources: the number":    {[]Host{with("a", gpus(0), nothing("chat-0"), nothing("chat-1")), with("b", gpus(0), nothing("chat-2"))}, free(Spread), "b"},
		"pack: the most used":                     {[]Host{with("a", gpus(4)), with("b", gpus(4), taken("x-0", 1, "GPU-0"))}, one(Pack), "b"},
		"pack: the most used that fits":           {[]Host{with("a", gpus(2), taken("x-0", 1, "GPU-0")), with("b", gpus(1), taken("x-1", 1, "GPU-0"))}, one(Pack), "a"},
		"pack without resources: the number":      {[]Host{with("a", gpus(1), taken("x-0", 1, "GPU-0")), with("b", gpus(0), nothing("chat-2"))}, free(Pack), "b"},
		"lost ones are passed over":               {[]Host{with("a", gpus(0)), gone, with("b", gpus(1))}, one(Spread), "b"},
		"a host that does not say what it has":    {[]Host{with("a", gpus(0), taken("x-0", 0)), with("b", engines.Node{}, taken("x-1", 0))}, cpu(Spread), "b"},
	} {
		host, missing := Choose(c.hosts, c.want)
		if host < 0 || c.hosts[host].Name != c.host || missing != "" {
			t.Errorf("%s: %d, %q; want %s", name, host, missing, c.host)
		}
	}
}

func TestChooseSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	gone := with("gpu-3", gpus(8))
	gone.Lost = true
	many := []Host{}
	for i := range 12 {
		many = append(many, with(fmt.Sprint("h", i), gpus(0)))
	}
	busy := with("gpu-1", gpus(2), taken("x-0", 1, "GPU-0"))
	for name, c := range map[string]struct {
		hosts []Host
		want  string
	}{
		"no host":     {nil, "there is no host"},
		"its own":     {[]Host{busy}, "needs 2 GPUs, 1 of 2 is free: GPU 0 has x-0"},
		"lost":        {[]Host{gone}, "does not answer"},
		"several":     {[]Host{busy, gone, with("gpu-2", gpus(0))}, "gpu-1: needs 2 GPUs, 1 of 2 is free: GPU 0 has x-0; gpu-3: does not answer; gpu-2: needs 2 GPUs, this host has none"},
		"not all":     {many, strings.Repeat("?", 4) + "and nothing on 8 more hosts"},
		"five of all": {many[:5], strings.Repeat("?", 5)},
	} {
		host, missing := Choose(c.hosts, Want{"chat", engines.Resources{GPU: 2}, Spread})
		for i := range many {
			missing = strings.Replace(missing, fmt.Sprintf("h%d: needs 2 GPUs, this host has none; ", i), "?", 1)
		}
		missing = strings.Replace(missing, "h4: needs 2 GPUs, this host has none", "?", 1)
		if host != -1 || missing != c.want {
			t.Errorf("%s: %d, %q; want %q", name, host, missing, c.want)
		}
	}
}

func TestVictims(t *testing.T) {
	t.Parallel()
	full := func(name string, ids ...string) Host {
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
		hosts []Host
		gpus  float64
		idle  string
		want  string
	}{
		"nobody need go":                     {[]Host{full("a", "i-0"), with("b", gpus(1))}, 1, "i-0", ""},
		"nobody is idle":                     {[]Host{full("a", "x-0")}, 1, "", ""},
		"not enough are idle":                {[]Host{full("a", "i-0", "x-0")}, 2, "i-0", ""},
		"what is idle is spread too thin":    {[]Host{full("a", "i-0", "x-0"), full("b", "i-1", "x-1")}, 2, "i-0 i-1", ""},
		"the first of idle":                  {[]Host{full("a", "i-0", "j-0"), full("b", "k-0")}, 1, "k-0 j-0 i-0", "k-0"},
		"two on the host where two are":      {[]Host{full("a", "i-0", "x-0"), full("b", "j-0", "k-0")}, 2, "i-0 j-0 k-0", "j-0 k-0"},
		"fewer, though unused less long":     {[]Host{halves}, 1, "i-0 j-0 k-0", "k-0"},
		"two, though three come first":       {[]Host{halves}, 2, "i-0 j-0 k-0 l-0", "k-0 l-0"},
		"the one whose last was unused more": {[]Host{full("a", "i-0", "l-0"), full("b", "j-0", "k-0")}, 2, "i-0 j-0 k-0 l-0", "j-0 k-0"},
		"a host that does not answer":        {[]Host{lost}, 1, "i-0", ""},
		"who is not there":                   {[]Host{full("a", "i-0")}, 1, "z-9 i-0", "i-0"},
	} {
		got := Victims(c.hosts, Want{"chat", engines.Resources{GPU: c.gpus}, Spread}, strings.Fields(c.idle))
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %q", name, got, c.want)
		}
	}
}

// Among more idle replicas than there are choices to try, each one that goes is still needed.
func TestVictimsOfACrowd(t *testing.T) {
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
	got := Victims([]Host{h}, Want{"chat", engines.Resources{GPU: 3}, Spread}, idle)
	if strings.Join(got, " ") != "x-14 x-29 x-44" {
		t.Error(got)
	}
}

// Where there is a choice that is enough, one is found; it is the smallest, it is in order, and only of those who are idle.
func TestVictimsProperties(t *testing.T) {
	t.Parallel()
	needed := map[int]int{}
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 11))
		var hosts []Host
		var idle []string
		for h := range 1 + random.IntN(3) {
			host := with(fmt.Sprint(h), divided(gpus(1+random.IntN(4)), random.IntN(3)))
			for i := range 12 {
				w := randomWant(random)
				devices, missing := Place(host.Node, host.Claims, w)
				if missing != "" {
					continue
				}
				id := fmt.Sprintf("%s-%d-%d", w.Model, h, i)
				host.Claims = append(host.Claims, Claim{id, w.Model, w.Resources, devices})
				if random.IntN(2) == 0 {
					idle = append(idle, id)
				}
			}
			hosts = append(hosts, host)
		}
		random.Shuffle(len(idle), func(i, j int) { idle[i], idle[j] = idle[j], idle[i] })
		w := randomWant(random)
		got := Victims(hosts, w, idle)
		want := fewestOf(hosts, w, idle)
		if len(got) != max(want, 0) {
			t.Fatalf("seed %d: %v, and %d are enough for %+v on %+v, idle %v", seed, got, want, w, hosts, idle)
		}
		if want > 0 && !slices.ContainsFunc(hosts, func(h Host) bool { return roomWithout(h, w, got) }) {
			t.Fatalf("seed %d: %v are not enough for %+v on %+v", seed, got, w, hosts)
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
		t.Errorf("so many were needed: %v; some cases hardly came up", needed)
	}
}

func roomWithout(h Host, w Want, gone []string) bool {
	rest := slices.DeleteFunc(slices.Clone(h.Claims), func(c Claim) bool { return slices.Contains(gone, c.ID) })
	return hasRoom(h.Node, rest, w)
}

// fewestOf tries every choice on every host; -1: none is enough.
func fewestOf(hosts []Host, w Want, idle []string) int {
	fewest := -1
	for _, h := range hosts {
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
