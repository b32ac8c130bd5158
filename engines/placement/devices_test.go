package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// gpus returns a node with the GPUs GPU-0, GPU-1 and so on.
func gpus(n int) engines.Node {
	node := engines.Node{Name: "here", CPUs: 16, Memory: 64 << 30}
	for i := range n {
		node.GPUs = append(node.GPUs, engines.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i})
	}
	return node
}

// divided adds a GPU with this number of MIG devices.
func divided(node engines.Node, parts int) engines.Node {
	index := len(node.GPUs)
	for i := range parts {
		node.GPUs = append(node.GPUs, engines.GPU{UUID: fmt.Sprintf("MIG-%d-%d", index, i), Index: index, MIG: true})
	}
	return node
}

// holding returns the node with a GPU of 80 GiB of which others hold some.
func holding(node engines.Node, index int, gibibytes int64) engines.Node {
	node.GPUs[index].MemoryTotal, node.GPUs[index].MemoryForeign = 80<<30, gibibytes<<30
	return node
}

func taken(id string, gpu float64, devices ...string) Claim {
	model, _, _ := strings.Cut(id, "-")
	return Claim{id, model, engines.Resources{CPU: 1, Memory: 1 << 30, GPU: gpu}, devices}
}

func TestPickDevices(t *testing.T) {
	t.Parallel()
	chat := func(gpu float64, p Policy) Want { return Want{"chat", engines.Resources{GPU: gpu}, p} }
	broken := engines.Node{Reason: "no driver"}
	for name, c := range map[string]struct {
		node    engines.Node
		claims  []Claim
		want    Want
		devices string
		missing string
	}{
		"the first of all":            {gpus(4), nil, chat(1, Spread), "GPU-0", ""},
		"two for tensor parallel":     {gpus(4), []Claim{taken("a-0", 1, "GPU-1")}, chat(2, Spread), "GPU-0,GPU-2", ""},
		"whole beside a share":        {gpus(2), []Claim{taken("a-0", 0.1, "GPU-0")}, chat(1, Pack), "GPU-1", ""},
		"a share beside whole":        {gpus(2), []Claim{taken("a-0", 1, "GPU-0")}, chat(0.1, Pack), "GPU-1", ""},
		"spread leaves its siblings":  {gpus(2), []Claim{taken("chat-0", 0.1, "GPU-0"), taken("a-0", 0.8, "GPU-1")}, chat(0.2, Spread), "GPU-1", ""},
		"spread takes the least used": {gpus(3), []Claim{taken("a-0", 0.2, "GPU-0"), taken("a-1", 0.1, "GPU-1"), taken("a-2", 0.3, "GPU-2")}, chat(0.2, Spread), "GPU-1", ""},
		"pack takes the most used":    {gpus(3), []Claim{taken("a-0", 0.2, "GPU-0"), taken("a-1", 0.9, "GPU-1"), taken("a-2", 0.3, "GPU-2")}, chat(0.2, Pack), "GPU-2", ""},
		"shares fill a device":        {gpus(1), []Claim{taken("a-0", 0.7, "GPU-0"), taken("a-1", 0.1, "GPU-0"), taken("a-2", 0.1, "GPU-0")}, chat(0.1, Pack), "GPU-0", ""},
		"a part of a GPU":             {divided(gpus(0), 2), []Claim{taken("a-0", 1, "MIG-0-0")}, chat(1, Spread), "MIG-0-1", ""},
		"spread over GPUs, not parts": {divided(divided(gpus(0), 3), 3), []Claim{taken("chat-0", 1, "MIG-0-0")}, chat(1, Spread), "MIG-3-0", ""},
		"pack fills a divided GPU":    {divided(divided(gpus(0), 3), 3), []Claim{taken("a-0", 1, "MIG-3-0")}, chat(1, Pack), "MIG-3-1", ""},
		"a share of a part":           {divided(gpus(1), 2), []Claim{taken("a-0", 1, "GPU-0")}, chat(0.5, Spread), "MIG-1-0", ""},
		"parts do not work together":  {divided(gpus(1), 2), nil, chat(2, Spread), "", "needs 2 GPUs, 1 of 3 is free (parts of a GPU that is divided by MIG do not count)"},
		"too few free":                {gpus(4), []Claim{taken("a-0", 2, "GPU-0", "GPU-1"), taken("b-0", 0.5, "GPU-3"), taken("b-1", 0.25, "GPU-3")}, chat(2, Spread), "", "needs 2 GPUs, 1 of 4 is free: GPU 0 has a-0, GPU 1 has a-0, GPU 3 has b-0 (0.5) and b-1 (0.25)"},
		"a part that is taken, and why more are missing": {engines.Node{GPUs: divided(gpus(0), 1).GPUs, Reason: "GPU 1 is lost"}, []Claim{taken("a-0", 1, "MIG-0-0")}, chat(1, Pack), "",
			"needs 1 GPU, 0 of 1 are free: MIG-0-0 has a-0; GPU 1 is lost"},
		"too few there":                {gpus(2), nil, chat(4, Spread), "", "needs 4 GPUs, 2 of 2 are free"},
		"none there":                   {gpus(0), nil, chat(1, Spread), "", "needs 1 GPU, this node has none"},
		"none there, and why":          {broken, nil, chat(0.5, Spread), "", "needs 0.5 of a GPU, this node has none (no driver)"},
		"no share that large":          {gpus(2), []Claim{taken("a-0", 0.75, "GPU-0"), taken("b-0", 1, "GPU-1")}, chat(0.3, Pack), "", "needs 0.3 of a GPU, none of 2 has that much left: GPU 0 has a-0 (0.75), GPU 1 has b-0"},
		"processors and memory":        {gpus(0), []Claim{taken("a-0", 0)}, Want{"chat", engines.Resources{CPU: 15, Memory: 63 << 30}, Spread}, "", ""},
		"more than is left of either":  {gpus(0), []Claim{taken("a-0", 0)}, Want{"chat", engines.Resources{CPU: 15.5, Memory: 63<<30 + 1<<29}, Spread}, "", "needs 15.5 CPUs, 15 of 16 are free; needs 63.5 GiB of memory, 63 GiB of 64 GiB is free"},
		"everything is missing":        {gpus(0), nil, Want{"chat", engines.Resources{CPU: 17, GPU: 1}, Spread}, "", "needs 17 CPUs, 16 of 16 are free; needs 1 GPU, this node has none"},
		"a full node, nothing counted": {gpus(1), []Claim{taken("a-0", 0), {ID: "b-0", Resources: engines.Resources{CPU: 99, Memory: 1 << 50}}}, chat(1, Spread), "GPU-0", ""},
		"a node that does not say":     {engines.Node{}, nil, Want{"chat", engines.Resources{CPU: 99, Memory: 1 << 50}, Spread}, "", ""},
		"memory that others hold":      {holding(gpus(2), 0, 60), nil, chat(1, Spread), "GPU-1", ""},
		"a little that others hold":    {holding(gpus(2), 0, 5), nil, chat(1, Spread), "GPU-0", ""},
		"half of it held by others":    {holding(gpus(1), 0, 40), nil, chat(0.5, Spread), "GPU-0", ""},
		"held by others, and a share":  {holding(gpus(1), 0, 40), []Claim{taken("a-0", 0.3, "GPU-0")}, chat(0.5, Spread), "", "needs 0.5 of a GPU, none of 1 has that much left: GPU 0 has a-0 (0.3), others hold 40 GiB of 80 GiB of GPU 0"},
		"all held by others":           {holding(holding(gpus(2), 0, 60), 1, 70), nil, chat(1, Spread), "", "needs 1 GPU, 0 of 2 are free: others hold 60 GiB of 80 GiB of GPU 0, others hold 70 GiB of 80 GiB of GPU 1"},
		"one of two held by others":    {holding(gpus(2), 1, 70), nil, chat(2, Spread), "", "needs 2 GPUs, 1 of 2 is free: others hold 70 GiB of 80 GiB of GPU 1"},
		"a device that vanished":       {gpus(1), []Claim{taken("a-0", 1, "GPU-7")}, chat(1, Spread), "GPU-0", ""},
	} {
		devices, missing := PickDevices(c.node, c.claims, c.want)
		if got := strings.Join(devices, ","); got != c.devices || missing != c.missing {
			t.Errorf("%s: %q, %q; want %q, %q", name, got, missing, c.devices, c.missing)
		}
	}
}

// Over random claims, no replica gets what another one holds, and none is refused that fits.
func TestPickDevicesProperties(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 7))
		node := gpus(random.IntN(5))
		for range random.IntN(3) {
			node = divided(node, 1+random.IntN(4))
		}
		var claims []Claim
		for step := range 40 {
			if len(claims) > 0 && random.IntN(3) == 0 {
				i := random.IntN(len(claims))
				claims = slices.Delete(claims, i, i+1)
				continue
			}
			w := randomWant(random)
			devices, missing := PickDevices(node, claims, w)
			again, _ := PickDevices(node, claims, w)
			if !slices.Equal(devices, again) {
				t.Fatalf("seed %d: %v and then %v", seed, devices, again)
			}
			checkChoice(t, node, claims, w, devices)
			if room := hasRoom(node, claims, w); room != (missing == "") {
				t.Fatalf("seed %d: %+v, room is %v: %q, with %+v", seed, w, room, missing, claims)
			} else if Fits(node, claims, w) != room {
				t.Fatalf("seed %d: %+v, room is %v, and Fits says otherwise, with %+v", seed, w, room, claims)
			}
			if missing == "" {
				claims = append(claims, Claim{fmt.Sprintf("%s-%d", w.Model, step), w.Model, w.Resources, devices})
			}
			checkInvariants(t, node, claims)
		}
	}
}

func randomWant(random *rand.Rand) Want {
	w := Want{
		Model:     string(rune('a' + random.IntN(3))),
		Policy:    []Policy{Spread, Pack, ""}[random.IntN(3)],
		Resources: engines.Resources{CPU: float64(random.IntN(8)) / 2, Memory: int64(random.IntN(16)) << 30},
	}
	w.GPU = []float64{0, 0.1, 0.25, 0.3, 0.5, 0.9, 1, 1, 2, 3}[random.IntN(10)]
	return w
}

// used returns the used share of a device and the number of its replicas. The share is in
// thousandths, so that sums are exact.
func used(claims []Claim, uuid string) (thousandths, replicas int) {
	for _, c := range claims {
		if slices.Contains(c.Devices, uuid) {
			thousandths += int(min(c.GPU, 1)*1000 + 0.5)
			replicas++
		}
	}
	return thousandths, replicas
}

func checkInvariants(t *testing.T, node engines.Node, claims []Claim) {
	t.Helper()
	for _, gpu := range node.GPUs {
		all, replicas := used(claims, gpu.UUID)
		whole := slices.ContainsFunc(claims, func(c Claim) bool { return c.GPU >= 1 && slices.Contains(c.Devices, gpu.UUID) })
		if all > 1000 || whole && replicas > 1 {
			t.Fatalf("%s is over-committed: %+v", gpu.UUID, claims)
		}
	}
	cpu, memory := 0.0, int64(0)
	for _, c := range claims {
		cpu, memory = cpu+c.CPU, memory+c.Memory
		distinct := slices.Compact(slices.Sorted(slices.Values(c.Devices)))
		if len(distinct) != c.Resources.Devices() {
			t.Fatalf("%+v", c)
		}
	}
	if cpu > node.CPUs+rounding || memory > node.Memory {
		t.Fatalf("%v CPUs and %d bytes are in use: %+v", cpu, memory, claims)
	}
}

// hasRoom computes in another way than PickDevices whether the replica fits.
func hasRoom(node engines.Node, claims []Claim, w Want) bool {
	cpu, memory, free := w.CPU, w.Memory, 0
	for _, c := range claims {
		cpu, memory = cpu+c.CPU, memory+c.Memory
	}
	for _, gpu := range node.GPUs {
		all, replicas := used(claims, gpu.UUID)
		if w.GPU < 1 && all+int(w.GPU*1000+0.5) <= 1000 || w.GPU >= 1 && replicas == 0 && !(w.GPU > 1 && gpu.MIG) {
			free++
		}
	}
	return (w.CPU == 0 || cpu <= node.CPUs) && (w.Memory == 0 || memory <= node.Memory) && (w.GPU == 0 || free >= w.Devices())
}

// checkChoice checks that no other device with room was the better choice for a share of a GPU.
func checkChoice(t *testing.T, node engines.Node, claims []Claim, w Want, devices []string) {
	t.Helper()
	if len(devices) != 1 || w.GPU >= 1 || slices.ContainsFunc(node.GPUs, func(gpu engines.GPU) bool { return gpu.MIG }) {
		return
	}
	siblings := func(uuid string) int {
		own := slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool { return c.Model != w.Model })
		_, n := used(own, uuid)
		return n
	}
	chosen, _ := used(claims, devices[0])
	for _, gpu := range node.GPUs {
		all, _ := used(claims, gpu.UUID)
		if all+int(w.GPU*1000+0.5) > 1000 {
			continue
		}
		worse := all > chosen
		if w.Policy != Pack {
			worse = siblings(gpu.UUID) < siblings(devices[0]) || siblings(gpu.UUID) == siblings(devices[0]) && all < chosen
		}
		if worse {
			t.Fatalf("%s was chosen and not %s: %+v, %+v", devices[0], gpu.UUID, w, claims)
		}
	}
}

// A device whose memory others hold is not chosen, and who evicts replicas does not count on it.
func TestU12_FreeMemoryCounts(t *testing.T) {
	t.Parallel()
	node := holding(holding(gpus(3), 0, 60), 1, 0)
	w := Want{Model: "chat", Resources: engines.Resources{GPU: 1}}
	if devices, missing := PickDevices(node, nil, w); strings.Join(devices, ",") != "GPU-1" {
		t.Errorf("picked %v, %s", devices, missing)
	}
	claims := []Claim{taken("a-0", 1, "GPU-1"), taken("b-0", 1, "GPU-2")}
	if Fits(node, claims, w) {
		t.Error("it fits beside what others hold")
	}
	nodes := []Node{{Node: node, Claims: claims}}
	if got := PickEvictions(nodes, w, []string{"a-0"}); !slices.Equal(got, []string{"a-0"}) {
		t.Errorf("evicted %v, want the replica on the GPU that nobody else uses", got)
	}
}
