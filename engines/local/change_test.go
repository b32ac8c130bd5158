package local

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

func TestScaleUpAndDown(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	l.Set([]Model{w.model("chat", 1)})
	run(t, l)
	first := w.awaitReady("chat", 1)[0]
	l.Set([]Model{w.model("chat", 3)})
	three := w.awaitReady("chat", 3)
	w.setLoad("chat-2", 1)
	l.Set([]Model{w.model("chat", 1)})
	w.eventually("the idle one has left", func() bool { return w.states("chat") == "chat-0 ready, chat-2 draining" })
	if !processRuns(three[2].PID) {
		t.Error("a replica with a request was ended")
	}
	w.setLoad("chat-2", 0)
	w.eventually("the other one has left", func() bool { return w.states("chat") == "chat-0 ready" })
	if processRuns(three[1].PID) || processRuns(three[2].PID) || w.replica("chat-0") != first {
		t.Error("the wrong replicas have left")
	}
	if got := len(w.dir.Records()); got != 1 {
		t.Errorf("%d processes are recorded, want 1", got)
	}
}

// A replica must have left the fleet before its process gets the first signal.
func TestDrainingComesBeforeTheEnd(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.config()
	c.DrainSettle = 300 * time.Millisecond
	l := New(c)
	l.Set([]Model{w.model("chat", 1)})
	run(t, l)
	pid := w.awaitReady("chat", 1)[0].PID
	m := w.model("chat", 1)
	m.Desired = 0
	told := time.Now()
	l.Set([]Model{m})
	w.eventually("it leaves the fleet", func() bool {
		ended, ready := !processRuns(pid), w.states("chat") == "chat-0 ready"
		if ended && ready {
			t.Error("its process has ended, and requests are sent to it")
		}
		return !ready
	})
	w.eventually("it ends", func() bool { return !processRuns(pid) })
	if waited := time.Since(told); waited < c.DrainSettle {
		t.Errorf("it ended %v after it was to leave the fleet, want at least %v", waited, c.DrainSettle)
	}
	w.eventually("it is gone", func() bool { return w.states("chat") == "" })
}

func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.setLoad("chat-0", 1)
	c := w.config()
	c.DrainTimeout = 50 * time.Millisecond
	l := New(c)
	l.Set([]Model{w.model("chat", 1)})
	run(t, l)
	w.awaitReady("chat", 1)
	l.Set(nil)
	w.eventually("it ends with its request", func() bool { return len(w.dir.Records()) == 0 })
}

func TestChangedCommandReplacesOneAtATime(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	l.Set([]Model{w.model("chat", 3)})
	run(t, l)
	before := w.awaitReady("chat", 3)
	history := w.history("chat")
	changed := w.model("chat", 3)
	changed.Env["EXTRA"] = "1"
	l.Set([]Model{changed})
	w.eventually("all are new", func() bool {
		for i, r := range w.replicas("chat") {
			if r.State != engines.Ready || r.PID == before[i].PID {
				return false
			}
		}
		return true
	})
	for _, line := range history() {
		if ready := strings.Count(line, "ready"); ready < 2 {
			t.Errorf("only %d replicas were ready: %s", ready, line)
		}
	}
	for _, r := range w.awaitReady("chat", 3) {
		env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(r.PID), "environ"))
		if err != nil || !strings.Contains(string(env), "\x00EXTRA=1\x00") {
			t.Errorf("%s has the old environment (%v)", r.ID, err)
		}
	}
}

func TestChangedCommandThatFailsStopsAtOne(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	l.Set([]Model{w.model("chat", 3)})
	run(t, l)
	before := w.awaitReady("chat", 3)
	broken := w.model("chat", 3)
	broken.Version.Command = []string{"false"}
	l.Set([]Model{broken})
	w.eventually("one fails again and again", func() bool {
		r := w.replica("chat-0")
		return r.State == engines.Failed && r.Restarts > 2
	})
	if w.replica("chat-1") != before[1] || w.replica("chat-2") != before[2] {
		t.Errorf("the others did not stay: %s", w.states("chat"))
	}
	l.Set([]Model{w.model("chat", 3)}) // and back
	after := w.awaitReady("chat", 3)
	if after[1] != before[1] || after[2] != before[2] {
		t.Error("replicas that had the right command were replaced")
	}
}

func TestOtherChangesReplaceNothing(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	l.Set([]Model{w.model("chat", 2)})
	run(t, l)
	before := w.awaitReady("chat", 2)
	changed := w.model("chat", 3)
	changed.Aliases = []string{"default"}
	changed.StartTimeout = time.Hour
	changed.Version.Health.Every = 10 * time.Millisecond
	l.Set([]Model{changed})
	after := w.awaitReady("chat", 3)
	if after[0] != before[0] || after[1] != before[1] {
		t.Errorf("replicas before %+v and after %+v", before, after)
	}
	if _, ok := w.fleet.Snapshot().Resolve("default"); !ok {
		t.Error("the new alias is not known")
	}
}

func TestAdoptionAfterACrash(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	l.Set([]Model{w.model("chat", 3), w.model("gone", 1)})
	stop := run(t, l)
	before := w.awaitReady("chat", 3)
	gone := w.awaitReady("gone", 1)[0]
	w.crash(stop)

	l = New(w.config())
	l.Adopt([]Model{w.model("chat", 2)})
	// This is before Run: already the first snapshot must be right.
	if got := w.fleet.Snapshot().Version; got != 1 {
		t.Errorf("the fleet is at version %d, want one step to the whole truth", got)
	}
	if got, want := w.states("chat"), "chat-0 ready, chat-1 ready, chat-2 draining"; got != want {
		t.Errorf("adopted: %s, want %s", got, want)
	}
	type life struct {
		ID, Address string
		PID, Slots  int
	}
	lives := func(replicas []engines.Replica) (all []life) {
		for _, r := range replicas {
			all = append(all, life{r.ID, r.Address.String(), r.PID, r.Slots})
		}
		return all
	}
	if diff := cmp.Diff(lives(before), lives(w.replicas("chat"))); diff != "" {
		t.Errorf("adopted (-before +after):\n%s", diff)
	}
	run(t, l)
	w.eventually("the surplus ones leave", func() bool {
		return w.states("chat") == "chat-0 ready, chat-1 ready" && !processRuns(before[2].PID) && !processRuns(gone.PID)
	})
	if err := syscall.Kill(before[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.eventually("an adopted one is replaced", func() bool {
		r := w.replica("chat-0")
		return r.State == engines.Ready && r.PID != before[0].PID && r.Restarts == 1
	})
}

func TestAdoptionOfDifferentStates(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	m := w.model("chat", 3)
	m.Version.Health.Every = time.Hour
	l.Set([]Model{m})
	stop := run(t, l)
	before := w.awaitReady("chat", 3)
	w.crash(stop)
	w.tell("hang-" + strconv.Itoa(before[0].PID)) // busy
	w.tell("loading-" + strconv.Itoa(before[1].PID))
	w.tell("broken-" + strconv.Itoa(before[2].PID))
	c := w.config()
	c.ProbeTimeout = 300 * time.Millisecond
	l = New(c)
	l.Adopt([]Model{m})
	if got, want := w.states("chat"), "chat-0 ready, chat-1 ready, chat-2 starting"; got != want {
		t.Errorf("adopted: %s, want %s", got, want)
	}
	w.untell("broken-" + strconv.Itoa(before[2].PID))
	run(t, l)
	if after := w.awaitReady("chat", 3); after[2].PID != before[2].PID {
		t.Error("a replica that became ready after its adoption was replaced")
	}
}

func TestAdoptionWhileStarting(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.tell("loading")
	l := New(w.config())
	l.Set([]Model{w.model("chat", 1)})
	stop := run(t, l)
	w.eventually("it starts", func() bool { return w.replica("chat-0").State == engines.Starting })
	pid := w.replica("chat-0").PID
	w.crash(stop)
	l = New(w.config())
	l.Adopt([]Model{w.model("chat", 1)})
	if got := w.states("chat"); got != "chat-0 starting" {
		t.Errorf("a loading engine was adopted as %s", got)
	}
	run(t, l)
	w.untell("loading")
	if got := w.awaitReady("chat", 1)[0]; got.PID != pid || got.Restarts != 0 {
		t.Errorf("replica = %+v, want pid %d", got, pid)
	}
}

func TestAdoptionOfAnOldCommand(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	l.Set([]Model{w.model("chat", 2)})
	stop := run(t, l)
	before := w.awaitReady("chat", 2)
	w.crash(stop)
	changed := w.model("chat", 2)
	changed.Env["EXTRA"] = "1"
	l = New(w.config())
	l.Adopt([]Model{changed})
	history := w.history("chat")
	run(t, l)
	w.eventually("both are replaced", func() bool {
		now := w.replicas("chat")
		return len(now) == 2 && now[0].PID != before[0].PID && now[1].PID != before[1].PID
	})
	w.awaitReady("chat", 2)
	for _, line := range history() {
		if !strings.Contains(line, "ready") {
			t.Errorf("none was ready: %s", line)
		}
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.setLoad("chat-0", 1)
	l := New(w.config())
	l.Set([]Model{w.model("chat", 2)})
	stop := run(t, l)
	all := w.awaitReady("chat", 2)
	stopped := make(chan error, 1)
	go func() { stopped <- l.Stop(context.Background()) }()
	w.eventually("all drain", func() bool { return w.states("chat") == "chat-0 draining, chat-1 draining" })
	w.eventually("the idle one ends", func() bool { return !processRuns(all[1].PID) })
	if !processRuns(all[0].PID) {
		t.Error("a replica with a request was ended")
	}
	w.setLoad("chat-0", 0)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if processRuns(all[0].PID) || len(w.dir.Records()) != 0 || w.states("chat") != "" {
		t.Errorf("something is left: %v, %s", w.dir.Records(), w.states("chat"))
	}
	stop() // Run has returned nil already
	if err := l.Run(t.Context()); err != nil || len(w.dir.Records()) != 0 {
		t.Errorf("Run after Stop = %v, and started %v", err, w.dir.Records())
	}
	if err := l.Stop(t.Context()); err != nil {
		t.Errorf("second Stop = %v", err)
	}
}

// StopUnread waits for requests, but not for readers of older snapshots: their time, and the time
// for requests, are an hour here.
func TestStopUnread(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.setLoad("chat-0", 1)
	c := w.config()
	c.DrainSettle, c.DrainTimeout = time.Hour, time.Hour
	l := New(c)
	l.Set([]Model{w.model("chat", 2)})
	run(t, l)
	all := w.awaitReady("chat", 2)
	stopped := make(chan error, 1)
	go func() { stopped <- l.StopUnread(context.Background()) }()
	w.eventually("the idle one ends", func() bool { return !processRuns(all[1].PID) })
	if !processRuns(all[0].PID) {
		t.Error("a replica with a request was ended")
	}
	w.setLoad("chat-0", 0)
	w.eventually("all end", func() bool { return len(w.dir.Records()) == 0 })
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.setLoad("chat-0", 1)
	l := New(w.config())
	l.Set([]Model{w.model("chat", 1)})
	stop := run(t, l)
	w.awaitReady("chat", 1)
	stop() // Stop finds the processes of a launcher that does not run any more
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := l.Stop(ctx); err != nil || len(w.dir.Records()) != 0 {
		t.Errorf("Stop = %v, left %v", err, w.dir.Records())
	}
}

// If a model is no longer in the configuration when the gateway comes back, its requests still have
// the model's DrainTimeout.
func TestAdoptedReplicaOfNoModelHasItsTimeToDrain(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	m := w.model("chat", 1)
	m.DrainTimeout = time.Hour
	l.Set([]Model{m})
	stop := run(t, l)
	pid := w.awaitReady("chat", 1)[0].PID
	w.setLoad("chat-0", 1)
	w.crash(stop)
	c := w.config()
	c.DrainTimeout = time.Nanosecond
	l = New(c)
	l.Adopt(nil)
	leaving := l.table.entries["chat-0"].runner
	if got := leaving.model.Load().DrainTimeout; got != time.Hour {
		t.Fatalf("it has %v, want an hour", got)
	}
	run(t, l)
	w.eventually("it is told to stop", func() bool { return leaving.stopSignal.current().requested.Err() != nil })
	if !processRuns(pid) {
		t.Error("it was ended with a request on it")
	}
	w.setLoad("chat-0", 0)
	w.eventually("it has left", func() bool { return !processRuns(pid) })
}
