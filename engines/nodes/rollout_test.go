package nodes

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

// env returns a model that differs from others only by its environment.
func env(desired int, value string) local.Model {
	return changed(model("x", desired, 1), func(m *local.Model) { m.Env = map[string]string{"A": value} })
}

// has checks the environment of the only model that was set on the node.
func (r *running) has(n *fakeNode, value string) {
	r.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.set) != 1 || n.set[0].Env["A"] != value {
		r.t.Errorf("%s: %+v is set, want %s", n.Name, n.set, value)
	}
}

// restart gives the node's only replica another process and this state.
func (n *fakeNode) restart(state engines.State) {
	for _, r := range n.replicas {
		r.PID++
		r.State = state
	}
	n.report(n.set)
	synctest.Wait()
}

// A command that does not work must not stop all replicas of a model, even if each has a node of
// its own.
func TestChangesGoFromNodeToNode(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		a := r.join(with("a", 1))
		r.set(env(2, "1"))
		r.live(r.local, a)
		r.set(env(2, "2"))
		r.has(r.local, "2")
		r.has(a, "1")
		r.local.restart(engines.Starting)
		time.Sleep(time.Minute)
		r.has(a, "1")
		r.set(env(2, "3")) // nothing serves on the first node: it hears at once
		r.has(r.local, "3")
		r.has(a, "1")
		r.local.restart(engines.Ready)
		r.has(a, "3")
		a.restart(engines.Ready)
		r.set(env(3, "3")) // the number alone is no change
		r.has(r.local, "3")
	})
}

// A change that is not in the command replaces no process. The rollout does not wait for one.
func TestChangesWithoutANewProcess(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		a := r.join(with("a", 1))
		r.set(env(2, "1"))
		r.live(r.local, a)
		r.set(env(2, "2"))
		r.has(a, "1")
		time.Sleep(unchangedTimeout + reconcileInterval)
		synctest.Wait()
		r.has(a, "2")
	})
}

// After a restart of the gateway a node may report late. Its replicas are neither started a second
// time on another node, nor stopped as surplus.
func TestNodesThatAreLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet := engines.NewFleet()
		here := newFakeNode(with(here, 4), fleet, nil)
		late := newFakeNode(unknown(with("a", 4)), fleet, nil)
		c := New(Config{Fleet: fleet, Local: here, Joined: func() []Node { return []Node{late} }})
		now := time.Now()
		step := func(in time.Duration) {
			now = now.Add(in)
			c.reconcile(now, true)
		}
		applied := func(n *fakeNode, want string) {
			t.Helper()
			got := ""
			for _, m := range n.set {
				for _, i := range m.Indices {
					got += " " + engines.ReplicaID(m.Name, i)
				}
			}
			if got != want {
				t.Errorf("%s:%s is set, want%s", n.Name, got, want)
			}
		}
		wanted := []local.Model{model("zero", 0, 1), model("x", 2, 1)}
		c.Set(wanted)
		step(0)
		applied(here, "")
		late.change(func(m *member) { *m = with("a", 4) })
		for id, name := range map[string]string{"zero-0": "zero", "x-0": "x"} {
			late.replicas[id] = &fakeReplica{Replica: engines.Replica{ID: id, Model: name, State: engines.Ready, Launcher: engines.Local, Node: "a",
				Resources: engines.Resources{CPU: 1, GPU: 1}, GPUs: "a/" + map[string]string{"zero": "0", "x": "1"}[name]}}
		}
		late.report(nil)
		step(time.Second)
		applied(late, " zero-0 x-0")
		applied(here, " x-1")
		step(RejoinTimeout)
		applied(late, " x-0")

		silent := newFakeNode(unknown(with("b", 4)), fleet, nil)
		never := New(Config{Fleet: engines.NewFleet(), Local: here, Joined: func() []Node { return []Node{silent} }})
		never.Set(wanted)
		never.reconcile(now, true)
		never.reconcile(now.Add(RejoinTimeout/2), true)
		applied(here, "")
		never.reconcile(now.Add(RejoinTimeout), true)
		applied(here, " x-0 x-1")
	})
}
