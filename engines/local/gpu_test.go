package local

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// rack is the inventory of a node whose devices the test inserts and removes.
type rack struct {
	mu sync.Mutex
	// node and err are what Read returns; guarded by mu
	node engines.Node
	err  error
}

func (r *rack) Read() (engines.Node, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node, r.err
}

func (r *rack) set(node engines.Node, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node, r.err = node, err
}

// onRack returns the configuration of a launcher that reads the rack often.
func (w *fixture) onRack(r *rack) Config {
	c := w.config()
	c.Inventory, c.ReadEvery = r, 10*time.Millisecond
	return c
}

// needs returns a model whose replicas need these resources.
func (w *fixture) needs(name string, replicas int, r engines.Resources) Model {
	m := w.model(name, replicas)
	m.Resources = &r
	return m
}

// sees returns CUDA_VISIBLE_DEVICES of a replica's process.
func (w *fixture) sees(id string) string {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(w.replica(id).PID), "environ"))
	if err != nil {
		w.t.Fatalf("%s: %v", id, err)
	}
	for entry := range strings.SplitSeq(string(data), "\x00") {
		if value, ok := strings.CutPrefix(entry, visible+"="); ok {
			return "[" + value + "]"
		}
	}
	return "everything"
}

func TestN8_ReplicasSeeTheDevicesTheyWereGiven(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.onRack(&rack{node: divided(gpus(4), 2)}))
	pair := w.needs("pair", 1, engines.Resources{CPU: 2, GPU: 2})
	pair.Env[visible] = "0" // placement knows better
	whole := w.needs("whole", 2, engines.Resources{GPU: 1})
	share := w.needs("share", 2, engines.Resources{GPU: 0.5})
	share.Placement = Pack
	none := w.needs("none", 1, engines.Resources{CPU: 1})
	l.Set([]Model{pair, whole, share, none, w.model("bare", 1)})
	run(t, l)
	want := map[string]string{
		"pair-0": "[GPU-0,GPU-1]", "whole-0": "[GPU-2]", "whole-1": "[GPU-3]", "share-0": "[MIG-4-0]", "share-1": "[MIG-4-0]",
		"none-0": "[]", "bare-0": "everything",
	}
	for _, model := range []Model{pair, whole, share, none, w.model("bare", 1)} {
		w.awaitReady(model.Name, model.Desired)
	}
	got := map[string]string{}
	for id := range want {
		got[id] = w.sees(id)
		if told := "[" + w.replica(id).GPUs + "]"; told != got[id] && id != "bare-0" {
			t.Errorf("%s sees %s, and the fleet says %s", id, got[id], told)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if r := w.replica("pair-0").Resources; r != *pair.Resources {
		t.Errorf("resources: %+v", r)
	}
	if got := len(l.Node().GPUs); got != 6 {
		t.Errorf("the launcher tells of %d devices", got)
	}
}

// On a node without GPUs, the environment does not mention GPUs.
func TestN8_NoGPUsNothingHidden(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.onRack(&rack{node: gpus(0)}))
	l.Set([]Model{w.needs("cpu", 1, engines.Resources{CPU: 1})})
	run(t, l)
	w.awaitReady("cpu", 1)
	if got := w.sees("cpu-0"); got != "everything" {
		t.Errorf("it sees %s", got)
	}
}

func TestReplicaWithoutRoomWaits(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.onRack(&rack{node: gpus(1)}))
	first, second := w.needs("a", 1, engines.Resources{GPU: 1}), w.needs("b", 2, engines.Resources{GPU: 1})
	l.Set([]Model{first, second})
	run(t, l)
	pid := w.awaitReady("a", 1)[0].PID
	w.eventually("the others wait", func() bool { return w.states("b") == "b-0 pending, b-1 pending" })
	const why = "needs 1 GPU, 0 of 1 are free: GPU 0 has a-0"
	if got := w.replica("b-0").Reason; got != why {
		t.Errorf("reason: %q, want %q", got, why)
	}
	w.setLoad("a-0", 1)
	l.Set([]Model{second})
	w.eventually("the first one drains", func() bool { return w.states("a") == "" && w.states("b") == "b-0 pending, b-1 pending" })
	if got := w.replica("b-0").Reason; got != why || !processRuns(pid) {
		t.Errorf("while it drains: reason %q, it runs: %v", got, processRuns(pid))
	}
	w.setLoad("a-0", 0)
	w.eventually("the second one has its device", func() bool { return w.states("b") == "b-0 ready, b-1 pending" })
	if processRuns(pid) || w.sees("b-0") != "[GPU-0]" || w.replica("b-0").Reason != "" {
		t.Errorf("a-0 runs: %v; b-0 sees %s, reason %q", processRuns(pid), w.sees("b-0"), w.replica("b-0").Reason)
	}
	second.Desired = 1
	l.Set([]Model{second})
	w.eventually("one that waits can leave", func() bool { return w.states("b") == "b-0 ready" })
	second.Desired = 2
	l.Set([]Model{second})
	w.eventually("and come back", func() bool { return w.states("b") == "b-0 ready, b-1 pending" })
	if err := l.Stop(t.Context()); err != nil || len(w.dir.Records()) != 0 {
		t.Errorf("Stop = %v, left %v", err, w.dir.Records())
	}
}

func TestAdoptedReplicasKeepTheirDevices(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	node := &rack{node: gpus(3)}
	l := New(w.onRack(node))
	old := w.needs("old", 2, engines.Resources{GPU: 1})
	l.Set([]Model{old})
	stop := run(t, l)
	before := w.awaitReady("old", 2)
	w.crash(stop)

	l = New(w.onRack(node))
	models := []Model{w.needs("early", 2, engines.Resources{GPU: 1}), old} // first in the file, and later on this node
	l.Adopt(models)
	for i, r := range w.replicas("old") {
		if r.GPUs != before[i].GPUs || r.Resources != before[i].Resources || r.PID != before[i].PID {
			t.Errorf("adopted %+v, was %+v", r, before[i])
		}
	}
	run(t, l)
	w.eventually("a new one has what is left", func() bool { return w.states("early") == "early-0 ready, early-1 pending" })
	if got := w.sees("early-0"); got != "[GPU-2]" {
		t.Errorf("it sees %s", got)
	}
	if err := syscall.Kill(before[1].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.eventually("it starts anew", func() bool { r := w.replica("old-1"); return r.State == engines.Ready && r.PID != before[1].PID })
	if got := w.sees("old-1"); got != "[GPU-1]" {
		t.Errorf("after its next start it sees %s", got)
	}
}

func TestGPUThatVanishes(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	node := &rack{node: gpus(2)}
	l := New(w.onRack(node))
	l.Set([]Model{w.needs("chat", 1, engines.Resources{GPU: 1})})
	run(t, l)
	before := w.awaitReady("chat", 1)[0]
	less := gpus(2)
	less.GPUs = less.GPUs[1:]
	node.set(less, nil)
	w.eventually("it says so, and serves", func() bool {
		r := w.replica("chat-0")
		return r.State == engines.Ready && r.Reason == "its GPU is missing: GPU-0"
	})
	node.set(gpus(2), nil)
	w.eventually("it is there again", func() bool { return w.replica("chat-0") == before })
	node.set(engines.Node{}, errors.New("the driver hangs"))
	w.eventually("the driver is silent", func() bool { return l.Node().Reason == "the driver hangs" })
	if got := w.replica("chat-0"); got != before || len(l.Node().GPUs) != 2 {
		t.Errorf("silence was taken for a loss: %+v, %+v", got, l.Node())
	}
	node.set(less, nil)
	w.eventually("it is gone again", func() bool { return w.replica("chat-0").Reason != "" })
	if err := syscall.Kill(before.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.eventually("it has moved", func() bool { r := w.replica("chat-0"); return r.State == engines.Ready && r.GPUs == "GPU-1" })
	if got := w.sees("chat-0"); got != "[GPU-1]" {
		t.Errorf("it sees %s", got)
	}
}

func TestOneStartAtATimePerGPU(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.tell("loading")
	l := New(w.onRack(&rack{node: gpus(2)}))
	share := w.needs("share", 3, engines.Resources{GPU: 0.3})
	share.Placement = Pack
	l.Set([]Model{share, w.needs("whole", 1, engines.Resources{GPU: 1})})
	stop := run(t, l)
	waiting := func() (starting []engines.Replica, waiting int) {
		for _, r := range w.replicas("share") {
			if r.State == engines.Starting {
				starting = append(starting, r)
			} else if r.State == engines.Pending && strings.HasPrefix(r.Reason, "waits for share-") {
				waiting++
			}
		}
		return starting, waiting
	}
	w.eventually("one starts and two wait", func() bool { s, n := waiting(); return len(s) == 1 && n == 2 })
	w.eventually("another device is free to start on", func() bool { return w.states("whole") == "whole-0 starting" })
	first, _ := waiting()

	w.crash(stop) // and over a restart of ours
	l = New(w.onRack(&rack{node: gpus(2)}))
	l.Adopt([]Model{share})
	run(t, l)
	w.eventually("the two wait again", func() bool { s, n := waiting(); return len(s) == 1 && n == 2 && s[0].PID == first[0].PID })
	w.tell("exit")
	if err := syscall.Kill(first[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.eventually("one that fails gives its turn up", func() bool {
		return slices.ContainsFunc(w.replicas("share"), func(r engines.Replica) bool { return r.ID != first[0].ID && r.State == engines.Failed })
	})
	w.untell("exit")
	w.untell("loading")
	w.awaitReady("share", 3)
	for _, r := range w.replicas("share") {
		if r.GPUs != "GPU-0" || r.Reason != "" {
			t.Errorf("%+v", r)
		}
	}
}

func TestChangedResourcesReplace(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.onRack(&rack{node: gpus(2)}))
	m := w.needs("chat", 1, engines.Resources{GPU: 0.5})
	l.Set([]Model{m})
	run(t, l)
	before := w.awaitReady("chat", 1)[0]
	m.Placement = Pack // which is for the next one
	l.Set([]Model{m})
	w.eventually("nothing", func() bool { return w.replica("chat-0") == before })
	l.Set([]Model{w.needs("chat", 1, engines.Resources{GPU: 2})})
	w.eventually("it has two", func() bool { r := w.replica("chat-0"); return r.State == engines.Ready && r.GPUs == "GPU-0,GPU-1" })
	if got := w.sees("chat-0"); got != "[GPU-0,GPU-1]" {
		t.Errorf("it sees %s", got)
	}
}

func TestTurns(t *testing.T) {
	t.Parallel()
	startLocks := newStartLocks()
	if holder, _ := startLocks.tryLock("a", []string{"x", "y"}); holder != "" {
		t.Fatalf("%s has a free device", holder)
	}
	if holder, _ := startLocks.tryLock("a", []string{"x", "y"}); holder != "" {
		t.Errorf("its own turn holds it up: %s", holder)
	}
	if holder, _ := startLocks.tryLock("c", []string{"z"}); holder != "" {
		t.Errorf("%s holds another device", holder)
	}
	if holder, _ := startLocks.tryLock("d", nil); holder != "" {
		t.Errorf("%s holds up one that needs none", holder)
	}
	holder, again := startLocks.tryLock("b", []string{"w", "y"})
	if holder != "a" {
		t.Errorf("holder = %q", holder)
	}
	if holder, _ := startLocks.tryLock("e", []string{"w"}); holder != "" {
		t.Errorf("one that waits holds %s", holder)
	}
	startLocks.unlock("nobody")
	select {
	case <-again:
		t.Error("nothing became free")
	default:
	}
	startLocks.unlock("e")
	startLocks.unlock("a")
	<-again
	if holder, _ := startLocks.tryLock("b", []string{"w", "y"}); holder != "" {
		t.Errorf("%s still has it", holder)
	}
}

func TestResourcesOfARecord(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]engines.Resources{"": {}, "?": {}, `{"CPU":1.5,"Memory":7,"GPU":0.25}`: {CPU: 1.5, Memory: 7, GPU: 0.25}} {
		if got := resourcesOf(text); got != want {
			t.Errorf("%q: %+v", text, got)
		}
	}
	l := New(Config{Fleet: engines.NewFleet()})
	r := l.newRunner(Model{}, 0)
	r.replica.Resources = engines.Resources{CPU: 0.1, Memory: 1 << 40, GPU: 0.001}
	if got := resourcesOf(r.resources()); got != r.replica.Resources {
		t.Errorf("%+v", got)
	}
}
