package local

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/placement"
)

// What replicas hold of a GPU is not foreign, and what others hold keeps replicas away until it is
// free.
func TestU12_ReplicasAvoidMemoryThatOthersHold(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	node := gpus(2)
	for i := range node.GPUs {
		node.GPUs[i].MemoryTotal = 80 << 30
	}
	node.GPUs[0].MemoryUsed = 70 << 30
	r := &rack{node: node}
	l := New(w.onRack(r))
	l.Set([]Model{w.needs("whole", 2, engines.Resources{GPU: 1})})
	run(t, l)
	w.eventually("whole-0: its GPU", func() bool { r := w.replica("whole-0"); return r.State == engines.Ready && r.GPUs == "GPU-1" })
	w.eventually("whole-1: its GPU", func() bool {
		r := w.replica("whole-1")
		return r.State == engines.Pending && strings.HasSuffix(r.Reason, "others hold 70 GiB of 80 GiB of GPU 0, GPU 1 has whole-0")
	})
	free := gpus(2)
	for i := range free.GPUs {
		free.GPUs[i].MemoryTotal, free.GPUs[i].MemoryUsed = 80<<30, int64(i)*70<<30 // now it is whole-0 that uses GPU 1
	}
	r.set(free, nil)
	w.eventually("whole-1: its GPU", func() bool { r := w.replica("whole-1"); return r.State == engines.Ready && r.GPUs == "GPU-0" })
	if foreign := l.Node().GPUs[1].MemoryForeign; foreign != 0 {
		t.Errorf("what whole-0 uses counts as foreign: %d", foreign)
	}
}

// A replica that has not loaded its model hides nothing of what others hold.
func TestU12_ReplicasThatLoadHideNoMemoryOfOthers(t *testing.T) {
	t.Parallel()
	claims := []placement.Claim{{ID: "a-0", Devices: []string{"GPU-0"}, Resources: engines.Resources{GPU: 0.3}}, {ID: "b-0", Devices: []string{"GPU-0"}, Resources: engines.Resources{GPU: 0.25}}}
	for name, c := range map[string]struct {
		used, before int64
		loaded       string
		want         int64
	}{
		"both have loaded":                 {used: 74, before: 50, loaded: "a-0 b-0", want: 30},
		"one has not loaded":               {used: 74, before: 50, loaded: "a-0", want: 50},
		"none has loaded":                  {used: 50, before: 50, want: 50},
		"what others held has become less": {used: 30, before: 50, loaded: "b-0", want: 10},
		"and more":                         {used: 80, before: 10, want: 36},
		"nothing was known":                {used: 60, want: 16},
	} {
		node := gpus(1)
		node.GPUs[0].MemoryTotal, node.GPUs[0].MemoryUsed = 80, c.used
		before := gpus(1)
		before.GPUs[0].MemoryForeign = c.before
		loaded := map[string]bool{}
		for id := range strings.FieldsSeq(c.loaded) {
			loaded[id] = true
		}
		if got := withForeign(node.GPUs, before.GPUs, claims, loaded)[0].MemoryForeign; got != c.want {
			t.Errorf("%s: others hold %d, want %d", name, got, c.want)
		}
	}
}

// A replica gets its GPU by a reading that is later than the wish for it: another program may have
// filled the GPU since the last one.
func TestU12_GPUsAreReadBeforeAReplicaGetsOne(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	node := gpus(1)
	node.GPUs[0].MemoryTotal = 80 << 30
	r := &rack{node: node}
	c := w.onRack(r)
	c.ReadEvery = time.Hour
	l := New(c)
	run(t, l)
	w.eventually("the GPU is known", func() bool { return len(l.Node().GPUs) == 1 })
	filled := gpus(1)
	filled.GPUs[0].MemoryTotal, filled.GPUs[0].MemoryUsed = 80<<30, 60<<30
	r.set(filled, nil)
	l.Set([]Model{w.needs("whole", 1, engines.Resources{GPU: 1})})
	w.eventually("whole-0: its GPU is full", func() bool {
		return strings.HasSuffix(w.replica("whole-0").Reason, "others hold 60 GiB of 80 GiB of GPU 0")
	})
	if r := w.replica("whole-0"); r.State != engines.Pending {
		t.Errorf("%+v", r)
	}
	r.set(node, nil)
	l.Set([]Model{w.needs("whole", 2, engines.Resources{GPU: 1})}) // the second replica has the GPU read again
	w.eventually("whole-0 starts", func() bool { return w.replica("whole-0").State == engines.Ready })
}
