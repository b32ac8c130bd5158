package local

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/process"
)

func TestReplicasListenWhereTheyAreTold(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.config()
	c.Address = netip.MustParseAddr("127.0.0.2")
	l := New(c)
	m := w.model("chat", 1)
	l.Set([]Model{m})
	stop := run(t, l)
	before := w.awaitReady("chat", 1)[0]
	if before.Address.Addr() != c.Address {
		t.Errorf("it listens at %s", before.Address)
	}
	w.crash(stop)
	c = w.config() // at another address
	l = New(c)
	l.Adopt([]Model{m})
	run(t, l)
	w.eventually("it is replaced", func() bool {
		r := w.replica("chat-0")
		return r.State == engines.Ready && r.PID != before.PID && r.Address.Addr() == netip.MustParseAddr("127.0.0.1")
	})
}

func TestFingerprintKnowsTheAddress(t *testing.T) {
	t.Parallel()
	m := Model{Version: engines.Version{Command: []string{"run"}}}
	if m.fingerprint(loopback()) == m.fingerprint(netip.MustParseAddr("127.0.0.2")) {
		t.Error("replicas at different addresses are taken for the same")
	}
}

// tough makes stopping a process fail until the test allows it.
func tough(l *Launcher) (relent func(), attempts *atomic.Int32) {
	var soft atomic.Bool
	attempts = new(atomic.Int32)
	l.stop = func(p *process.Process, ctx context.Context, grace time.Duration) error {
		attempts.Add(1)
		if !soft.Load() {
			return errors.New("process 7 is still there after SIGKILL")
		}
		return p.Stop(ctx, grace)
	}
	return func() { soft.Store(true) }, attempts
}

// A process keeps its GPU, its port and its entry as long as it lives.
func TestProcessThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.onRack(&rack{node: gpus(1)}))
	relent, attempts := tough(l)
	first, second := w.needs("a", 1, engines.Resources{GPU: 1}), w.needs("b", 1, engines.Resources{GPU: 1})
	l.Set([]Model{first, second})
	run(t, l)
	before := w.awaitReady("a", 1)[0]
	first.Desired = 0
	l.Set([]Model{first, second})
	const why = "its process cannot be stopped, retrying: process 7 is still there after SIGKILL"
	w.eventually("it says why it is still there", func() bool {
		r := w.replica("a-0")
		return r.State == engines.Draining && r.Reason == why && r.PID == before.PID
	})
	if got := w.replica("b-0"); got.State != engines.Pending || got.Reason != "needs 1 GPU, 0 of 1 are free: GPU 0 has a-0" {
		t.Errorf("%+v", got)
	}
	first.Desired = 1
	l.Set([]Model{first, second})
	w.eventually("it is tried again", func() bool { return attempts.Load() > 1 })
	if got := w.states("a"); got != "a-0 draining" {
		t.Errorf("one that was told to end was recalled: %s", got)
	}
	relent()
	w.eventually("its place is free", func() bool { return !processRuns(before.PID) })
	w.eventually("the other waits for it no longer, or its successor has it", func() bool {
		return w.replica("a-0").State == engines.Ready || w.replica("b-0").State == engines.Ready
	})
}

func TestFailedProcessThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	relent, attempts := tough(l)
	l.Set([]Model{w.model("chat", 1)})
	run(t, l)
	before := w.awaitReady("chat", 1)[0]
	w.tell("broken")
	w.eventually("it cannot be ended", func() bool {
		return strings.HasPrefix(w.replica("chat-0").Reason, "its process cannot be stopped") && attempts.Load() > 1
	})
	if r := w.replica("chat-0"); r.State != engines.Failed || !processRuns(before.PID) {
		t.Errorf("%+v", r)
	}
	w.untell("broken")
	relent()
	if r := w.awaitReady("chat", 1)[0]; r.PID == before.PID || processRuns(before.PID) {
		t.Errorf("%+v", r)
	}
}

func TestRecordFollowsTheDrainTimeout(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	m := w.model("chat", 1)
	m.DrainTimeout, m.Version.Health.Every = time.Minute, time.Hour // not with the next probe, but at once
	l.Set([]Model{m})
	stop := run(t, l)
	before := w.awaitReady("chat", 1)[0]
	recorded := func(d time.Duration) func() bool {
		return func() bool { return w.dir.Records()[0].Meta[metaDrain] == d.String() }
	}
	w.eventually("it is recorded", recorded(time.Minute))
	m.DrainTimeout = time.Hour
	l.Set([]Model{m})
	w.eventually("it is recorded anew", recorded(time.Hour))
	w.crash(stop)
	m.DrainTimeout = 2 * time.Hour // with a file that was changed while we were away
	l = New(w.config())
	l.Adopt([]Model{m})
	run(t, l)
	w.eventually("it is recorded after the adoption", recorded(2*time.Hour))
	if got := w.replica("chat-0"); got.PID != before.PID {
		t.Errorf("%+v was replaced by %+v", before, got)
	}
}

func TestSuspectIsProbedAtOnce(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.config()
	found := make(chan string, 100)
	c.OnHealthy = func(id string) { found <- id }
	l := New(c)
	m := w.model("chat", 2)
	m.Version.Health.Every = time.Hour
	l.Set([]Model{m})
	run(t, l)
	before := w.awaitReady("chat", 2)
	l.Suspect("nobody", false)
	for range 100 {
		l.Suspect("chat-0", false) // which is well
	}
	if id := <-found; id != "chat-0" {
		t.Errorf("%s was found well", id)
	}
	w.tell("deaf")
	for _, r := range before {
		w.eventually("it does not listen any more", func() bool { return !occupied(r.Address) })
	}
	l.Suspect("chat-1", false)
	w.eventually("it has failed and is replaced", func() bool { r := w.replica("chat-1"); return r.PID != 0 && r.PID != before[1].PID })
	w.untell("deaf")
	w.awaitReady("chat", 2)
	if got := w.replica("chat-0"); got != before[0] {
		t.Errorf("nobody has asked whether this one serves: %+v", got)
	}
}

// startLoaded starts a launcher with one replica that has a request and is probed only when it is
// suspected.
func startLoaded(t *testing.T, w *fixture, c Config) (*Launcher, engines.Replica) {
	t.Helper()
	w.setLoad("chat-0", 1)
	c.ProbeTimeout = 100 * time.Millisecond
	l := New(c)
	m := w.model("chat", 1)
	m.Version.Health.Every = time.Hour
	l.Set([]Model{m})
	run(t, l)
	return l, w.awaitReady("chat", 1)[0]
}

// A replica that hangs under load is excused as busy. It is replaced when its requests have no
// answer either for too long.
func TestASilentReplicaIsBusyForSomeTimeOnly(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.config()
	found := make(chan string, 100)
	c.OnHealthy = func(id string) { found <- id }
	c.MaxBusy = 1 // no time
	l, before := startLoaded(t, w, c)
	w.tell("hang-" + strconv.Itoa(before.PID))
	l.Suspect("chat-0", false)
	<-found
	if got := w.replica("chat-0"); got != before {
		t.Errorf("a replica that answers requests became %+v", got)
	}
	l.Suspect("chat-0", true)
	w.eventually("it is replaced", func() bool {
		r := w.replica("chat-0")
		return r.State == engines.Ready && r.PID != before.PID
	})
}

// A silent replica that was healthy a short time ago goes on. It is not called healthy before it
// is.
func TestASilentReplicaMayBeSlow(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.config()
	var busy atomic.Int64 // probes that the requests have excused
	c.InFlight = func(id string) int { busy.Add(1); return w.load(id) }
	found := make(chan int64, 100)
	c.OnHealthy = func(string) { found <- busy.Load() }
	l, before := startLoaded(t, w, c)
	hang := "hang-" + strconv.Itoa(before.PID)
	w.tell(hang)
	l.Suspect("chat-0", true)
	known, _ := l.suspected.Load("chat-0")
	w.eventually("it is probed", func() bool { return !known.(*runner).silent.Load() })
	l.Suspect("chat-0", false) // its probe comes after the first one has ended
	if n := <-found; n != 2 {
		t.Errorf("it was called healthy after probe %d, want the second one, which is of no silence", n)
	}
	w.untell(hang)
	w.eventually("it is called healthy", func() bool { // a busy machine may miss the time of a probe
		l.Suspect("chat-0", true)
		return len(found) > 0
	})
	if got := w.replica("chat-0"); got != before {
		t.Errorf("it became %+v", got)
	}
}

// However many requests fail, an engine has the time that maxBadProbes probes take.
func TestDoubtsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, boundedDoubts)
}

func boundedDoubts(t *testing.T) {
	l := New(Config{Fleet: engines.NewFleet()})
	r := l.newRunner(Model{Version: engines.Version{Health: engines.Probe{Every: time.Hour}}}, 0)
	begun := time.Now()
	r.suspect()
	r.awaitProbe(t.Context())
	if r.suspectedAt.Before(begun) {
		t.Error("the doubt was not driverAnswered")
	}
	first := r.suspectedAt
	for range 10 {
		r.suspect()
	}
	r.awaitProbe(t.Context())
	if pause := r.suspectedAt.Sub(first); pause < suspectPause {
		t.Errorf("the second probe came after %v", pause)
	}
	if len(r.suspected) != 0 {
		t.Error("ten doubts bring more than one probe")
	}
}

func TestProgressOfAStart(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.tell("loading")
	l := New(w.config())
	l.Set([]Model{w.model("chat", 1)})
	stop := run(t, l)
	w.eventually("it starts", func() bool { return w.replica("chat-0").State == engines.Starting })
	w.say("one\nloading 1/2\n")
	w.eventually("it shows", func() bool { r := w.replica("chat-0"); return r.State == engines.Starting && r.Reason == "loading 1/2" })
	since := w.replica("chat-0").Since
	w.untell("loading")
	w.tell("hang") // a probe that waits holds up nothing
	w.say("\x1b[1mloading\x1b[0m 2/2\n")
	w.eventually("it changes", func() bool { return w.replica("chat-0").Reason == "[1mloading[0m 2/2" })
	if r := w.replica("chat-0"); r.Since != since {
		t.Error("a line of the log is taken for a new state")
	}
	w.untell("hang")
	if r := w.awaitReady("chat", 1)[0]; r.Reason != "" {
		t.Errorf("ready, and %q", r.Reason)
	}
	// After the engine has served, its log may hold prompts.
	w.crash(stop)
	w.tell("broken")
	w.say("prompt: secret\n")
	l = New(w.config())
	l.Adopt([]Model{w.model("chat", 1)})
	r := l.table.entries["chat-0"].runner
	r.reportProgress(t.Context())
	if r.replica.State != engines.Starting || strings.Contains(r.replica.Reason, "secret") {
		t.Errorf("%+v", r.replica)
	}
}

func TestLogsAreRotatedWhileReplicasRun(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.config()
	core, logs := observer.New(zap.WarnLevel)
	c.Log = zap.New(core)
	l := New(c)
	l.rotateInterval = 5 * time.Millisecond
	l.Set([]Model{w.model("chat", 2)})
	run(t, l)
	before := w.awaitReady("chat", 2)
	fill := func(id string) (path string) {
		path = w.dir.LogFile("replica/" + id)
		if err := os.WriteFile(path, make([]byte, 11<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// The log of the other replica cannot be rotated, which the launcher says once.
	if err := os.Mkdir(w.dir.LogFile("replica/chat-1")+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	fill("chat-1")
	for range 3 {
		path := fill("chat-0")
		w.eventually("it is empty", func() bool { info, err := os.Stat(path); return err == nil && info.Size() == 0 })
		if info, err := os.Stat(path + ".1"); err != nil || w.replica("chat-0") != before[0] {
			t.Errorf("%v, %v; %+v", info, err, w.replica("chat-0"))
		}
	}
	if all := logs.FilterMessageSnippet("log rotation failed").All(); len(all) != 1 {
		t.Errorf("the log has %d lines of the one that fails: %v", len(all), all)
	}
}
