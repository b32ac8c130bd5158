package local

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/supervise"
)

func TestReplicasStart(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	l.Set([]Model{w.model("chat", 3), w.model("none", 0)})
	run(t, l)
	got := w.awaitReady("chat", 3)
	want := make([]engines.Replica, 3)
	seen := map[int]bool{}
	for i := range want {
		want[i] = engines.Replica{ID: fmt.Sprintf("chat-%d", i), Model: "chat", State: engines.Ready, Launcher: engines.Local, Node: hostName(), Slots: 4}
		response, err := http.Get("http://" + got[i].Address.String())
		if err != nil {
			t.Errorf("%s is ready and does not answer: %v", got[i].ID, err)
		} else {
			response.Body.Close()
		}
		if !processRuns(got[i].PID) || seen[got[i].PID] {
			t.Errorf("%s has pid %d", got[i].ID, got[i].PID)
		}
		seen[got[i].PID] = true
	}
	volatile := cmpopts.IgnoreFields(engines.Replica{}, "PID", "Address", "Since", "LoadTime")
	if diff := cmp.Diff(want, got, volatile, cmpopts.EquateComparable()); diff != "" {
		t.Errorf("replicas (-want +got):\n%s", diff)
	}
	if m, ok := w.fleet.Snapshot().Models["none"]; !ok || len(m.Replicas) != 0 {
		t.Error("a model without replicas is not in the fleet")
	}
}

func TestKilledReplicaIsReplaced(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.config()
	c.BackOff.First = time.Second // long enough to be seen
	c.BackOff.Max = time.Second
	l := New(c)
	l.Set([]Model{w.model("chat", 3)})
	run(t, l)
	before := w.awaitReady("chat", 3)
	history := w.history("chat")
	if err := syscall.Kill(before[1].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is another process", func() bool {
		r := w.replica("chat-1")
		return r.State == engines.Ready && r.PID != before[1].PID
	})
	after := w.awaitReady("chat", 3)
	if after[0] != before[0] || after[2] != before[2] || after[1].Restarts != 1 {
		t.Errorf("replicas before %+v and after %+v", before, after)
	}
	want := []string{"chat-0 ready, chat-1 ready, chat-2 ready", "chat-0 ready, chat-1 failed, chat-2 ready"}
	if diff := cmp.Diff(want, history()[:2]); diff != "" {
		t.Errorf("history begins (-want +got):\n%s", diff)
	}
}

func TestEarlyExitIsExplained(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.tell("exit")
	c := w.config()
	c.BackOff.First = time.Hour
	c.BackOff.Max = time.Hour
	l := New(c)
	m := w.model("chat", 1)
	m.Version.Ready.Path = neverReadyPath
	l.Set([]Model{m})
	run(t, l)
	w.eventually("it fails", func() bool {
		return strings.HasSuffix(w.replica("chat-0").Reason, "next start after a pause of 1h0m0s")
	})
	want := "exit status 7; its log ends: loading the model | boom: no such model; next start after a pause of 1h0m0s"
	if got := w.replica("chat-0"); got.Reason != want || got.PID != 0 || got.Address.IsValid() {
		t.Errorf("replica = %+v, want the reason %q", got, want)
	}
}

func TestReasonOfAServingReplicaQuotesNoLog(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.config()
	c.BackOff = supervise.BackOff{First: time.Hour, Max: time.Hour}
	l := New(c)
	l.Set([]Model{w.model("chat", 1)})
	run(t, l)
	r := w.awaitReady("chat", 1)[0]
	records := w.dir.Records()
	if err := os.WriteFile(records[0].LogFile, []byte("prompt: secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.eventually("it fails", func() bool { return strings.HasSuffix(w.replica(r.ID).Reason, "next start after a pause of 1h0m0s") })
	want := "signal: killed; its log is " + records[0].LogFile + "; next start after a pause of 1h0m0s"
	if got := w.replica(r.ID).Reason; got != want {
		t.Errorf("Reason = %q, want %q", got, want)
	}
}

func TestBackOffGrows(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.tell("exit")
	l := New(w.config())
	l.Set([]Model{w.model("chat", 1)})
	run(t, l)
	var pauses []string
	w.eventually("the longest pause", func() bool {
		r := w.replica("chat-0")
		_, pause, known := strings.Cut(r.Reason, "next start after a pause of ")
		if known && (len(pauses) == 0 || pauses[len(pauses)-1] != pause) {
			pauses = append(pauses, pause)
		}
		return pause == "400ms"
	})
	// The states are so short that the test may miss some. None comes in another order.
	left := []string{"20ms", "40ms", "80ms", "160ms", "320ms", "400ms"}
	for _, pause := range pauses {
		i := slices.Index(left, pause)
		if i < 0 {
			t.Fatalf("pauses = %v", pauses)
		}
		left = left[i+1:]
	}
	w.untell("exit")
	w.awaitReady("chat", 1)
	if got := w.replica("chat-0").Restarts; got < 6 {
		t.Errorf("Restarts = %d after six failures", got)
	}
}

func TestBackOffIsReset(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.tell("exit")
	c := w.config()
	c.BackOff = supervise.BackOff{First: time.Second, Max: 3 * time.Second, Reset: time.Nanosecond} // long enough to be seen
	l := New(c)
	l.Set([]Model{w.model("chat", 1)})
	run(t, l)
	w.eventually("two failures", func() bool {
		_, pause, _ := strings.Cut(w.replica("chat-0").Reason, "next start after a pause of ")
		return pause == "2s" || pause == "3s"
	})
	w.untell("exit")
	r := w.awaitReady("chat", 1)[0]
	w.tell("exit")
	if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var got string
	w.eventually("it fails", func() bool {
		got = w.replica("chat-0").Reason
		return strings.Contains(got, "signal: killed")
	})
	if !strings.HasSuffix(got, "next start after a pause of 1s") {
		t.Errorf("Reason = %q, want the first pause again", got)
	}
}

func TestNeverReady(t *testing.T) {
	t.Parallel()
	for what, reason := range map[string]string{"mute": "connection refused", "loading": "answers 503", "hang": "no answer in time"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			w.tell(what)
			c := w.config()
			// A pause is long enough to be seen.
			c.BackOff = supervise.BackOff{First: 200 * time.Millisecond, Max: time.Second}
			if what == "hang" { // on a busy machine the other answers take longer than that
				c.ProbeTimeout = 100 * time.Millisecond
			}
			l := New(c)
			m := w.model("chat", 1)
			m.StartTimeout = 600 * time.Millisecond
			l.Set([]Model{m})
			run(t, l)
			// On a busy machine the process may not even listen in that time. It starts again then.
			w.eventually("it fails, and says why", func() bool {
				r := w.replica("chat-0")
				if r.State == engines.Ready || r.State == engines.Failed && !strings.HasPrefix(r.Reason, "not ready after 600ms: probe /health") {
					t.Fatalf("%s: %s", r.State, r.Reason)
				}
				return r.State == engines.Failed && strings.Contains(r.Reason, reason)
			})
			w.eventually("its process ends", func() bool { return len(w.dir.Records()) == 0 })
		})
	}
}

func TestLostPortIsNoFailure(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.tell("collide")
	c := w.config()
	c.BackOff = supervise.BackOff{First: time.Hour, Max: time.Hour}
	l := New(c)
	l.Set([]Model{w.model("chat", 1)})
	run(t, l)
	w.eventually("it gives up", func() bool {
		return strings.HasSuffix(w.replica("chat-0").Reason, "next start after a pause of 1h0m0s")
	})
	if got := w.replica("chat-0").Restarts; got != maxPortRetries {
		t.Errorf("it started %d times anew, want %d", got, maxPortRetries)
	}
}

func TestOccupied(t *testing.T) {
	t.Parallel()
	p := newPorts(loopback())
	listener, address, err := p.hold()
	if err != nil {
		t.Fatal(err)
	}
	if !occupied(address) {
		t.Error("a port with a listener is not occupied")
	}
	listener.Close()
	if occupied(address) {
		t.Error("a port without a listener is occupied")
	}
	seen := map[uint16]bool{address.Port(): true}
	for range 500 {
		listener, address, err := p.hold()
		if err != nil {
			t.Fatal(err)
		}
		listener.Close() // as when the engine has not bound it yet
		if seen[address.Port()] {
			t.Fatalf("port %d was given out twice", address.Port())
		}
		seen[address.Port()] = true
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tell   string
		load   int
		reason string // empty: it stays
	}{
		"deaf":                  {tell: "deaf", load: 1, reason: "probe /health: connection refused"},
		"broken":                {tell: "broken", load: 1, reason: "3 times in a row: probe /health answers 500"},
		"hangs with nothing":    {tell: "hang", reason: "3 times in a row: probe /health: no answer in time"},
		"hangs under load":      {tell: "hang", load: 1},
		"asks for patience":     {tell: "loading", load: 1},
		"unwilling and without": {tell: "loading", reason: "3 times in a row: probe /health answers 503"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			w.setLoad("chat-0", test.load)
			c := w.config()
			if test.tell == "hang" { // on a busy machine the other answers take longer than that
				c.ProbeTimeout = 100 * time.Millisecond
			}
			c.BackOff.First = 200 * time.Millisecond // long enough to be seen
			l := New(c)
			l.Set([]Model{w.model("chat", 1)})
			run(t, l)
			before := w.awaitReady("chat", 1)[0]
			history := w.history("chat")
			w.tell(fmt.Sprintf("%s-%d", test.tell, before.PID))
			if test.reason == "" {
				time.Sleep(5 * (c.ProbeTimeout + 20*time.Millisecond)) // that nothing happens shows only in time
				if got := w.replica("chat-0"); got != before {
					t.Errorf("a busy replica became %+v", got)
				}
				return
			}
			w.eventually("it fails", func() bool { return strings.HasPrefix(w.replica("chat-0").Reason, test.reason) })
			w.eventually("it is replaced", func() bool {
				r := w.replica("chat-0")
				return r.State == engines.Ready && r.PID != before.PID
			})
			if processRuns(before.PID) {
				t.Error("the failed process still runs")
			}
			if got := history(); !slices.Contains(got, "chat-0 failed") {
				t.Errorf("history = %q", got)
			}
		})
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	m := w.model("chat", 1)
	m.Version.Ready.Path, m.Version.Health.Path = "", ""
	w.tell("broken") // which nobody asks
	l.Set([]Model{m})
	run(t, l)
	r := w.awaitReady("chat", 1)[0]
	w.tell("deaf")
	w.eventually("it fails", func() bool { return w.replica(r.ID).State == engines.Failed })
}

func TestCommandThatCannotBeRendered(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	m := w.model("chat", 1)
	m.Launch.Model = ""
	l.Set([]Model{m})
	run(t, l)
	w.eventually("it fails", func() bool { return w.replica("chat-0").State == engines.Failed })
	if got := w.replica("chat-0").Reason; !strings.Contains(got, "the model has no source") {
		t.Errorf("Reason = %q", got)
	}
	l.Set([]Model{w.model("chat", 1)})
	w.awaitReady("chat", 1)
}
