package nodes

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

// env is a model that is told apart by its environment.
func env(desired int, value string) local.Model {
	return changed(model("x", desired, 1), func(m *local.Model) { m.Env = map[string]string{"A": value} })
}

// has compares what the host was told of the only model.
func (r *running) has(h *fakeHost, value string) {
	r.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.wish) != 1 || h.wish[0].Env["A"] != value {
		r.t.Errorf("%s was told %+v, want %s", h.Name, h.wish, value)
	}
}

// restart gives the host's only replica another process in a state.
func (h *fakeHost) restart(state engines.State) {
	for _, r := range h.replicas {
		r.PID++
		r.State = state
	}
	h.report(h.wish)
	synctest.Wait()
}

// A command that does not work must not cost a model all its replicas because each is on a host of its own.
func TestChangesGoFromHostToHost(t *testing.T) {
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
		r.set(env(2, "3")) // nothing serves on the first host: it hears at once
		r.has(r.local, "3")
		r.has(a, "1")
		r.local.restart(engines.Ready)
		r.has(a, "3")
		a.restart(engines.Ready)
		r.set(env(3, "3")) // the number alone is no change
		r.has(r.local, "3")
	})
}

// What is not in the command ends no process: nobody waits for that.
func TestChangesWithoutANewProcess(t *testing.T) {
	t.Parallel()
	run(t, Config{}, func(t *testing.T, r *running) {
		a := r.join(with("a", 1))
		r.set(env(2, "1"))
		r.live(r.local, a)
		r.set(env(2, "2"))
		r.has(a, "1")
		time.Sleep(unchangedFor + lookAgain)
		synctest.Wait()
		r.has(a, "2")
	})
}

// After a restart of the gateway a host may be a moment late. What it has is neither begun a second time elsewhere, nor too many.
func TestHostsThatAreLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet := engines.NewFleet()
		here := newFakeHost(with(here, 4), fleet, nil)
		late := newFakeHost(unknown(with("a", 4)), fleet, nil)
		c := New(Config{Fleet: fleet, Local: here, Others: func() []Host { return []Host{late} }})
		now := time.Now()
		step := func(in time.Duration) {
			now = now.Add(in)
			c.step(now, true)
		}
		told := func(h *fakeHost, want string) {
			t.Helper()
			got := ""
			for _, m := range h.wish {
				for _, i := range m.Indices {
					got += " " + idOf(m.Name, i)
				}
			}
			if got != want {
				t.Errorf("%s was told%s, want%s", h.Name, got, want)
			}
		}
		wanted := []local.Model{model("zero", 0, 1), model("x", 2, 1)}
		c.Set(wanted)
		step(0)
		told(here, "")
		late.change(func(m *member) { *m = with("a", 4) })
		for id, name := range map[string]string{"zero-0": "zero", "x-0": "x"} {
			late.replicas[id] = &fakeReplica{Replica: engines.Replica{ID: id, Model: name, State: engines.Ready, Launcher: engines.Local, Node: "a",
				Resources: engines.Resources{CPU: 1, GPU: 1}, GPUs: "a/" + map[string]string{"zero": "0", "x": "1"}[name]}}
		}
		late.report(nil)
		step(time.Second)
		told(late, " zero-0 x-0")
		told(here, " x-1")
		step(Settle)
		told(late, " x-0")

		silent := newFakeHost(unknown(with("b", 4)), fleet, nil)
		never := New(Config{Fleet: engines.NewFleet(), Local: here, Others: func() []Host { return []Host{silent} }})
		never.Set(wanted)
		never.step(now, true)
		never.step(now.Add(Settle/2), true)
		told(here, "")
		never.step(now.Add(Settle), true)
		told(here, " x-0 x-1")
	})
}
