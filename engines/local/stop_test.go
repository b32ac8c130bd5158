package local

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

func TestReplicaIsRecalled(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.setLoad("chat-0", 1)
	l := New(w.onRack(&rack{node: gpus(1)}))
	m := w.needs("chat", 1, engines.Resources{GPU: 1})
	l.Set([]Model{m})
	run(t, l)
	before := w.awaitReady("chat", 1)[0]
	for range 3 {
		l.Set(nil)
		w.eventually("it leaves", func() bool { return len(w.replicas("chat")) == 0 }) // its model is unknown now
		l.Set([]Model{m})
		if got := w.awaitReady("chat", 1)[0]; got.PID != before.PID || got.Restarts != 0 || got.GPUs != "GPU-0" || got.Reason != "" {
			t.Errorf("%+v was recalled as %+v", before, got)
		}
	}
	// It is probed as before.
	w.tell("broken")
	w.eventually("it fails", func() bool { return w.replica("chat-0").State == engines.Failed })
	w.untell("broken")
	if got := w.awaitReady("chat", 1)[0]; got.PID == before.PID {
		t.Error("it was not replaced")
	}
	m.Desired = 0
	l.Set([]Model{m})
	w.setLoad("chat-0", 0)
	w.eventually("it leaves as before", func() bool { return len(w.dir.Records()) == 0 && w.states("chat") == "" })
}

func TestReplicaOfAnotherCommandIsNotRecalled(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.setLoad("chat-0", 1)
	l := New(w.config())
	m := w.model("chat", 1)
	l.Set([]Model{m})
	run(t, l)
	pid := w.awaitReady("chat", 1)[0].PID
	changed := w.model("chat", 1)
	changed.Env["EXTRA"] = "1"
	l.Set([]Model{changed})
	w.eventually("it drains", func() bool { return w.states("chat") == "chat-0 draining" })
	changed.Aliases = []string{"seen"}
	l.Set([]Model{changed})
	w.eventually("the launcher has looked again", func() bool { _, ok := w.fleet.Snapshot().Resolve("seen"); return ok })
	if got := w.states("chat"); got != "chat-0 draining" {
		t.Errorf("it is recalled: %s", got)
	}
	l.Set([]Model{m}) // back to its own command
	if got := w.awaitReady("chat", 1)[0]; got.PID != pid {
		t.Error("it has its own command again and was replaced")
	}
}

// Whether the cancellation or the stop comes first, the replica serves in the end, with one
// process. It is never ready while it stops.
func TestRecallAgainstTheEnd(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.config()
	l := New(c)
	m, none := w.model("chat", 1), w.model("chat", 0)
	l.Set([]Model{m})
	run(t, l)
	recalled, ended := 0, 0
	pid := w.awaitReady("chat", 1)[0].PID
	for i := range 24 {
		l.Set([]Model{none})
		w.eventually("it leaves", func() bool { return w.states("chat") != "chat-0 ready" })
		time.Sleep(c.DrainSettle * time.Duration(i%6) / 5) // the race is around the end of DrainSettle
		l.Set([]Model{m})
		r := w.awaitReady("chat", 1)[0]
		if records := w.dir.Records(); !processRuns(r.PID) || len(records) != 1 || records[0].PID != r.PID {
			t.Fatalf("ready is %d, recorded %+v", r.PID, records)
		}
		if r.PID == pid {
			recalled++
		} else {
			ended++
		}
		pid = r.PID
	}
	t.Logf("%d recalled, %d ended", recalled, ended)
}

func TestStopSignal(t *testing.T) {
	t.Parallel()
	var s stopSignal
	s.reset()
	first := s.current()
	if !s.cancel() || s.current() != first {
		t.Error("a cancellation without a request replaced the request")
	}
	s.request()
	if first.requested.Err() == nil || first.cancelled.Err() != nil {
		t.Error("the runner does not know of the request")
	}
	if !s.cancel() || first.cancelled.Err() == nil || s.current().requested.Err() != nil {
		t.Error("the runner does not know that the request was cancelled")
	}
	s.request() // again, before the runner has looked
	if s.commit(first) {
		t.Error("the runner committed a cancelled request, and did not drain for the new one")
	}
	if !s.commit(s.current()) || s.cancel() {
		t.Error("a committed request was cancelled")
	}
	for range 2000 {
		var s stopSignal
		s.reset()
		s.request()
		request := s.current()
		var committed, cancelled bool
		var both sync.WaitGroup
		both.Go(func() { committed = s.commit(request) })
		both.Go(func() { cancelled = s.cancel() })
		both.Wait()
		if committed == cancelled {
			t.Fatalf("committed: %v, cancelled: %v", committed, cancelled)
		}
	}
}

// If the gateway restarts in the middle of a drain, the next run continues the drain.
func TestDrainingReplicaOutlivesUs(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	c := w.config()
	asked := make(chan struct{}, 1)
	c.InFlight = func(string) int { // which is asked in a drain
		notify(asked)
		return 1
	}
	l := New(c)
	m := w.model("chat", 1)
	l.Set([]Model{m})
	stop := run(t, l)
	pid := w.awaitReady("chat", 1)[0].PID
	l.Set([]Model{w.model("chat", 0)})
	w.eventually("it drains", func() bool { return w.states("chat") == "chat-0 draining" })
	<-asked
	stop()
	if !processRuns(pid) {
		t.Fatal("it was ended with its request")
	}
	w.crash(stop)
	w.setLoad("chat-0", 1)
	l = New(w.config())
	l.Adopt([]Model{w.model("chat", 0)})
	if got := w.states("chat"); got != "chat-0 draining" {
		t.Errorf("adopted: %s", got)
	}
	run(t, l)
	l.Set([]Model{m})
	if got := w.awaitReady("chat", 1)[0]; got.PID != pid {
		t.Error("a replica of an earlier run was not recalled")
	}
}

func TestIndices(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := New(w.config())
	m := w.model("chat", 5)
	m.MaxReplicas, m.Indices = 7, []int{1, 3}
	l.Set([]Model{m})
	stop := run(t, l)
	w.awaitReady("chat", 2)
	if got := w.states("chat"); got != "chat-1 ready, chat-3 ready" {
		t.Errorf("there are %s", got)
	}
	if got := w.fleet.Snapshot().Models["chat"]; got.Desired != 5 || got.MaxReplicas != 7 {
		t.Errorf("the fleet is told of %d replicas, at most %d", got.Desired, got.MaxReplicas)
	}
	m.Indices = []int{3, 9}
	l.Set([]Model{m})
	w.eventually("one has gone and one has come", func() bool { return w.states("chat") == "chat-3 ready, chat-9 ready" })
	before := w.replica("chat-3").PID
	w.crash(stop)
	l = New(w.config())
	if diff := cmp.Diff(map[string][]int{"chat": {3, 9}}, l.Found()); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	m.Indices = []int{0, 3}
	l.Adopt([]Model{m})
	if got := w.states("chat"); got != "chat-3 ready, chat-9 draining" {
		t.Errorf("adopted: %s", got)
	}
	run(t, l)
	w.eventually("they are as wanted", func() bool { return w.states("chat") == "chat-0 ready, chat-3 ready" })
	if got := w.replica("chat-3").PID; got != before {
		t.Error("the adopted one was replaced")
	}
	m.Indices = []int{}
	l.Set([]Model{m})
	w.eventually("none is left", func() bool { return len(w.dir.Records()) == 0 && w.states("chat") == "" })
}
