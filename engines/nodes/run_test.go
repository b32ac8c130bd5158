package nodes

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

// running is a running controller over nodes that apply a Set at their ticks.
type running struct {
	t     *testing.T
	fleet *engines.Fleet
	local *fakeNode
	*Controller

	mu     sync.Mutex
	others []Node
}

// run runs a controller in a synctest bubble until check returns.
func run(t *testing.T, c Config, check func(t *testing.T, r *running)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &running{t: t, fleet: engines.NewFleet()}
		r.local = newFakeNode(with(here, 1), r.fleet, nil)
		c.Fleet, c.Local = r.fleet, r.local
		c.Joined = func() []Node {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.others
		}
		r.Controller = New(c)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		synctest.Wait()
		check(t, r)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, m := range r.fleet.Snapshot().Models {
			for _, replica := range m.Replicas {
				if replica.Node == "" {
					t.Errorf("after the end: %+v", replica)
				}
			}
		}
	})
}

// join adds a node.
func (r *running) join(m member) *fakeNode {
	n := newFakeNode(m, r.fleet, nil)
	r.mu.Lock()
	r.others = append(r.others, n)
	r.mu.Unlock()
	r.Trigger()
	synctest.Wait()
	return n
}

func (r *running) set(models ...local.Model) {
	r.Set(models)
	synctest.Wait()
}

// expect checks what is set on a node, and how often Set was called.
func (r *running) expect(n *fakeNode, sets int, indices map[string][]int) {
	r.t.Helper()
	got, count := n.applied()
	if diff := cmp.Diff(indices, got); diff != "" || count != sets {
		r.t.Errorf("Set was called %d times, want %d: %s", count, sets, diff)
	}
}

// live lets the nodes take steps until they have none left.
func (r *running) live(nodes ...*fakeNode) {
	for range 8 {
		for _, n := range nodes {
			n.tick()
		}
		synctest.Wait()
	}
}

func TestRunSetsNodes(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		r.Trigger()
		synctest.Wait()
		r.expect(r.local, 0, map[string][]int{})
		x := model("x", 2, 1)
		x.Env = map[string]string{"A": "1"}
		r.set(model("chat", 1, 0), x)
		r.expect(r.local, 1, map[string][]int{"chat": {0}, "x": {0}})
		if diff := cmp.Diff(map[string]string{"x": "needs 1 GPU, 0 of 1 are free: GPU 0 has x-0"}, r.Pending()); diff != "" {
			t.Error(diff)
		}

		a := r.join(with("a", 1))
		r.expect(a, 1, map[string][]int{"x": {1}})
		r.expect(r.local, 1, map[string][]int{"chat": {0}, "x": {0}})
		if got := r.Pending(); len(got) > 0 {
			t.Error(got)
		}
		x.Env = map[string]string{"A": "1"} // the same once more
		r.set(model("chat", 1, 0), x)
		r.expect(r.local, 1, map[string][]int{"chat": {0}, "x": {0}})
		x.Env = map[string]string{"A": "2"}
		r.set(model("chat", 1, 0), x)
		r.expect(r.local, 2, map[string][]int{"chat": {0}, "x": {0}})
		r.expect(a, 2, map[string][]int{"x": {1}})
		if len(a.set) != 1 || a.set[0].Env["A"] != "2" || a.set[0].Launcher != engines.Local || a.set[0].Desired != 2 {
			t.Errorf("%+v is set; a model's environment is only for the nodes that run it", a.set)
		}
	})
}

// Another value with the same name is another node. It does not know what was set on the old one.
func TestRunSetsNewNodes(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		r.set(model("x", 3, 1))
		r.join(with("a", 1))
		again := newFakeNode(with("a", 1), r.fleet, nil)
		r.mu.Lock()
		r.others = []Node{again}
		r.mu.Unlock()
		r.Trigger()
		synctest.Wait()
		r.expect(again, 1, map[string][]int{"x": {1}})
		r.expect(r.join(with("a", 1)), 1, map[string][]int{}) // the name is taken
		r.expect(again, 1, map[string][]int{"x": {1}})
		twin := r.join(with(here, 1))
		r.expect(twin, 1, map[string][]int{})
		r.expect(r.local, 1, map[string][]int{"x": {0}})
		lost := r.join(lost(with("b", 1)))
		r.expect(lost, 0, map[string][]int{})
		lost.change(func(m *member) { m.Lost = false })
		time.Sleep(reconcileInterval)
		synctest.Wait()
		r.expect(lost, 1, map[string][]int{"x": {2}})
	})
}

// A pending replica is in the fleet with a constant Since, and is assigned as soon as there is a
// node.
func TestRunReportsWhatWaits(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		r.local.change(func(m *member) { m.known = false })
		free := model("free", 1, 0)
		free.Aliases = []string{"gratis"}
		r.set(model("chat", 1, 1), free)
		r.expect(r.local, 1, map[string][]int{"free": {0}})
		began := time.Now()
		waits := func(reason string) {
			t.Helper()
			m, ok := r.fleet.Snapshot().Resolve("chat")
			want := []engines.Replica{{ID: "chat-0", Model: "chat", State: engines.Pending, Launcher: engines.Local, Reason: reason, Since: began}}
			if !ok {
				t.Error("the fleet has no chat")
			} else if diff := cmp.Diff(want, m.Replicas, cmp.Comparer(func(a, b engines.Replica) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
		}
		waits("waits until the resources of this node are known")
		if m, ok := r.fleet.Snapshot().Resolve("gratis"); !ok || m.Launcher != engines.Local || len(m.Replicas) > 0 {
			t.Errorf("%+v", m)
		}
		r.local.change(func(m *member) { m.known, m.GPUs = true, nil })
		time.Sleep(unknownNodeInterval)
		synctest.Wait()
		waits("needs 1 GPU, this node has none")
		r.local.change(func(m *member) { *m = with(here, 1) })
		time.Sleep(reconcileInterval)
		synctest.Wait()
		r.expect(r.local, 2, map[string][]int{"chat": {0}, "free": {0}})
		if m, _ := r.fleet.Snapshot().Resolve("chat"); len(m.Replicas) > 0 {
			t.Errorf("%+v", m.Replicas)
		}
		r.live(r.local)
		if m, _ := r.fleet.Snapshot().Resolve("chat"); len(m.Replicas) != 1 || m.Replicas[0].State != engines.Ready {
			t.Errorf("%+v", m.Replicas)
		}
	})
}

// Constant changes of other models in the fleet do not delay the regular reconciliation.
func TestRunLooksAtHostsInABusyFleet(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		r.local.change(func(m *member) { m.known = false })
		r.set(model("chat", 1, 1))
		r.local.change(func(m *member) { m.known = true })
		for i := range 10 {
			r.fleet.Set("other", engines.Part{Models: []engines.Model{{Name: "other", Desired: i + 1}}})
			time.Sleep(unknownNodeInterval / 2)
			synctest.Wait()
		}
		r.expect(r.local, 2, map[string][]int{"chat": {0}})
	})
}

// A change of the fleet triggers a plan: a replica that has stopped makes room.
func TestRunFollowsTheFleet(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		a := r.join(with("a", 1))
		r.set(model("x", 2, 1), model("y", 0, 1))
		r.live(r.local, a)
		r.set(model("x", 0, 1), model("y", 2, 1))
		r.expect(r.local, 2, map[string][]int{})
		r.live(r.local, a)
		r.expect(r.local, 3, map[string][]int{"y": {0}})
		r.expect(a, 3, map[string][]int{"y": {1}})
		a.change(func(m *member) { m.Lost = true })
		r.Trigger()
		synctest.Wait()
		r.expect(a, 4, map[string][]int{})
		if got := r.Pending()["y"]; got != "here: needs 1 GPU, 0 of 1 are free: GPU 0 has y-0; a: does not answer" {
			t.Error(got)
		}
	})
}

// A draining replica is assigned again when only the number of replicas has changed.
func TestRunCallsBack(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		r.set(model("x", 1, 1))
		r.live(r.local)
		r.set(model("x", 0, 1))
		r.local.tick()
		synctest.Wait()
		r.expect(r.local, 2, map[string][]int{})
		r.set(model("x", 1, 1))
		r.expect(r.local, 3, map[string][]int{"x": {0}})
	})
}

// A model that is desired again, and has changed, may still have draining replicas. Their numbers
// are in use.
func TestRunSeesWhatLeavesOfANewModel(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		a := r.join(with("a", 1))
		r.set(model("x", 2, 1))
		r.live(r.local, a)
		r.set(model("y", 0, 1))
		a.tick() // x-1 leaves, and no source but its own speaks of it
		r.local.replicas = map[string]*fakeReplica{}
		r.local.tick()
		synctest.Wait()
		r.set(model("y", 0, 1), changed(model("x", 2, 1), func(m *local.Model) { m.Env = map[string]string{"A": "1"} }))
		r.expect(a, 2, map[string][]int{})
		r.expect(r.local, 3, map[string][]int{"x": {0}})
		if m, _ := r.fleet.Snapshot().Resolve("x"); m == nil || !strings.Contains(fmt.Sprint(m.Replicas), "x-2") {
			t.Errorf("%+v", m)
		}
	})
}

// TestP3_EvictionIsSoon: a model becomes idle, and its replica is evicted soon after that.
func TestP3_EvictionIsSoon(t *testing.T) {
	t.Parallel()
	chat := model("chat", 1, 1)
	chat.EvictIdle = true
	var idle, evicted atomic.Bool
	config := Config{Idle: func() []string {
		if idle.Load() {
			return []string{"x"}
		}
		return nil
	}, Evict: func([]string) { evicted.Store(true) }}
	run(t, config, func(t *testing.T, r *running) {
		r.set(model("x", 1, 1))
		r.live(r.local)
		r.set(model("x", 1, 1), chat)
		time.Sleep(3 * time.Second)
		idle.Store(true)
		time.Sleep(time.Second)
		if !evicted.Load() {
			t.Error("a second after its model became idle the replica was not evicted")
		}
	})
}

func TestRunEvicts(t *testing.T) {
	t.Parallel()
	chat := model("chat", 1, 1)
	chat.EvictIdle = true
	var asked atomic.Int32
	var obey atomic.Bool
	var set func(...local.Model)
	config := Config{Idle: func() []string { return []string{"x"} }, Evict: func(models []string) {
		asked.Add(1)
		if cmp.Equal(models, []string{"x"}) && obey.Load() {
			set(model("x", 0, 1), chat)
		}
	}}
	run(t, config, func(t *testing.T, r *running) {
		set = func(models ...local.Model) { r.Set(models) }
		r.set(model("x", 1, 1))
		r.live(r.local)
		r.set(model("x", 1, 1), chat)
		time.Sleep(evictionTimeout - time.Second)
		synctest.Wait()
		if asked.Load() != 1 {
			t.Fatalf("asked %d times within 30 s", asked.Load())
		}
		obey.Store(true)
		time.Sleep(time.Second + reconcileInterval)
		synctest.Wait()
		if asked.Load() != 2 {
			t.Fatalf("asked %d times after 30 s", asked.Load())
		}
		r.expect(r.local, 2, map[string][]int{})
		r.live(r.local)
		r.expect(r.local, 3, map[string][]int{"chat": {0}})
		if asked.Load() != 2 {
			t.Errorf("asked %d times", asked.Load())
		}
	})
}

// TestRunTakesBackAModel: a model that is removed and comes back unchanged goes on with its
// replicas, which still have requests and hold their resources. One that comes back changed waits.
func TestRunTakesBackAModel(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		back    local.Model
		after   time.Duration
		indices map[string][]int
	}{
		"unchanged": {model("x", 1, 1), time.Second, map[string][]int{"x": {0}}},
		"late":      {model("x", 1, 1), time.Hour, map[string][]int{"x": {0}}},
		"too late":  {model("x", 1, 1), 3 * time.Hour, map[string][]int{}},
		"changed":   {changed(model("x", 1, 1), func(m *local.Model) { m.Env = map[string]string{"A": "1"} }), time.Second, map[string][]int{}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			run(t, Config{}, func(t *testing.T, r *running) {
				before := model("x", 1, 1)
				before.DrainTimeout, c.back.DrainTimeout = 2*time.Hour, 2*time.Hour
				r.set(before)
				r.live(r.local)
				r.set()
				r.local.replicas["x-0"].State = engines.Draining
				r.local.report(nil)
				synctest.Wait()
				time.Sleep(c.after)
				r.set(c.back)
				if got, _ := r.local.applied(); !cmp.Equal(got, c.indices) {
					t.Errorf("got %v, want %v", got, c.indices)
				}
			})
		})
	}
}
