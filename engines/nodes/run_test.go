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

// running is a controller that runs, over hosts that do at their ticks what they are told.
type running struct {
	t     *testing.T
	fleet *engines.Fleet
	local *fakeHost
	*Controller

	mu     sync.Mutex
	others []Host
}

// run runs a controller in a bubble of its own until check returns.
func run(t *testing.T, c Config, check func(t *testing.T, r *running)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &running{t: t, fleet: engines.NewFleet()}
		r.local = newFakeHost(with(here, 1), r.fleet, nil)
		c.Fleet, c.Local = r.fleet, r.local
		c.Others = func() []Host {
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

// join adds a host.
func (r *running) join(m member) *fakeHost {
	h := newFakeHost(m, r.fleet, nil)
	r.mu.Lock()
	r.others = append(r.others, h)
	r.mu.Unlock()
	r.Kick()
	synctest.Wait()
	return h
}

func (r *running) set(models ...local.Model) {
	r.Set(models)
	synctest.Wait()
}

// expect compares what a host was told, and how often.
func (r *running) expect(h *fakeHost, sets int, indices map[string][]int) {
	r.t.Helper()
	got, count := h.told()
	if diff := cmp.Diff(indices, got); diff != "" || count != sets {
		r.t.Errorf("told %d times, want %d: %s", count, sets, diff)
	}
}

// live lets the hosts do things until nothing is left to do.
func (r *running) live(hosts ...*fakeHost) {
	for range 8 {
		for _, h := range hosts {
			h.tick()
		}
		synctest.Wait()
	}
}

func TestRunTellsHosts(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		r.Kick()
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
		if len(a.wish) != 1 || a.wish[0].Env["A"] != "2" || a.wish[0].Launcher != engines.Local || a.wish[0].Desired != 2 {
			t.Errorf("%+v; what is in a model's environment is for the hosts that run it", a.wish)
		}
	})
}

// Another value of the same name is another host: what the old one was told it does not know.
func TestRunTellsNewHosts(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		r.set(model("x", 3, 1))
		r.join(with("a", 1))
		again := newFakeHost(with("a", 1), r.fleet, nil)
		r.mu.Lock()
		r.others = []Host{again}
		r.mu.Unlock()
		r.Kick()
		synctest.Wait()
		r.expect(again, 1, map[string][]int{"x": {1}})
		r.join(with("a", 1))
		twin := r.join(with(here, 1))
		r.expect(twin, 1, map[string][]int{})
		r.expect(r.local, 1, map[string][]int{"x": {0}})
		lost := r.join(lost(with("b", 1)))
		r.expect(lost, 0, map[string][]int{})
		lost.change(func(m *member) { m.Lost = false })
		time.Sleep(lookAgain)
		synctest.Wait()
		r.expect(lost, 1, map[string][]int{"x": {2}})
	})
}

// What waits is pending in the fleet, with one moment of beginning, and goes to the host as soon as there is one.
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
		waits("waits until it is known what this host has")
		if m, ok := r.fleet.Snapshot().Resolve("gratis"); !ok || m.Launcher != engines.Local || len(m.Replicas) > 0 {
			t.Errorf("%+v", m)
		}
		r.local.change(func(m *member) { m.known, m.GPUs = true, nil })
		time.Sleep(lookSoon)
		synctest.Wait()
		waits("needs 1 GPU, this host has none")
		r.local.change(func(m *member) { *m = with(here, 1) })
		time.Sleep(lookAgain)
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

// A fleet in which something else changes all the time does not put off the look at the hosts.
func TestRunLooksAtHostsInABusyFleet(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		r.local.change(func(m *member) { m.known = false })
		r.set(model("chat", 1, 1))
		r.local.change(func(m *member) { m.known = true })
		for i := range 10 {
			r.fleet.Set("other", engines.Part{Models: []engines.Model{{Name: "other", Desired: i + 1}}})
			time.Sleep(lookSoon / 2)
			synctest.Wait()
		}
		r.expect(r.local, 2, map[string][]int{"chat": {0}})
	})
}

// Changes of the fleet are enough to go on: what has left makes room.
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
		r.Kick()
		synctest.Wait()
		r.expect(a, 4, map[string][]int{})
		if got := r.Pending()["y"]; got != "here: needs 1 GPU, 0 of 1 are free: GPU 0 has y-0; a: does not answer" {
			t.Error(got)
		}
	})
}

// What has hardly left is called back: the number of replicas alone makes nothing else of them.
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

// A model that is new again may still have replicas that leave; their numbers are in use.
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
		r.set(model("y", 0, 1), model("x", 2, 1))
		r.expect(a, 2, map[string][]int{})
		r.expect(r.local, 3, map[string][]int{"x": {0}})
		if m, _ := r.fleet.Snapshot().Resolve("x"); m == nil || !strings.Contains(fmt.Sprint(m.Replicas), "x-2") {
			t.Errorf("%+v", m)
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
		time.Sleep(evictAgain - time.Second)
		synctest.Wait()
		if asked.Load() != 1 {
			t.Fatalf("asked %d times within 30 s", asked.Load())
		}
		obey.Store(true)
		time.Sleep(time.Second + lookAgain)
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
