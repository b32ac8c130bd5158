package dispatch

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/steady"
)

// expectCandidates checks who may be picked.
func (s stage) expectCandidates(t *testing.T, when string, want ...string) {
	t.Helper()
	v, _ := s.View("m")
	if got := slices.Sorted(maps.Keys(v.Loads)); !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", when, got, want)
	}
}

func launched(ids ...string) []engines.Replica {
	all := replicas(ids...)
	for i := range all {
		all[i].Launcher, all[i].PID = engines.Local, 100+i
	}
	return all
}

func TestWhichFailuresCount(t *testing.T) {
	t.Parallel()
	every := []Failure{Connect, Reset, FiveHundreds, Unavailable}
	for _, c := range []struct {
		launcher engines.Launcher
		own      Failure
		want     Failure
	}{
		{engines.Local, 0, Connect | FiveHundreds},
		{engines.Kubernetes, 0, Connect | FiveHundreds},
		{engines.Upstream, 0, Connect | Reset | FiveHundreds | Unavailable},
		{engines.Local, Unavailable, Unavailable},
		{engines.Upstream, Connect | Reset, Connect | Reset},
	} {
		for _, kind := range append(every, 0) {
			s := newStage(Policy{UnhealthyOn: c.own})
			all := launched("a", "b")
			all[0].Launcher, all[1].Launcher = c.launcher, c.launcher
			s.put("m", all...)
			told, want := s.Failed("a", kind, "it failed"), engines.Launcher("")
			if kind&c.want != 0 {
				want = c.launcher
			}
			if told != want {
				t.Errorf("%s with %b, %b: %q is to look at it, want %q", c.launcher, c.own, kind, told, want)
			}
			out := s.Suspended()
			if taken := want != "" && c.launcher != engines.Upstream; (out["a"] == "it failed") != taken || len(out) > 1 {
				t.Errorf("%s with %b, %b: suspended %v", c.launcher, c.own, kind, out)
			}
			s.EndSuspension("a") // ends the timer
		}
	}
	for status, want := range map[int]Failure{200: 0, 404: 0, 429: 0, 499: 0, 500: FiveHundreds, 502: FiveHundreds, 503: Unavailable, 504: FiveHundreds} {
		if got := Answered(status); got != want {
			t.Errorf("%d is %b", status, got)
		}
	}
	if s := newStage(Policy{}); s.Failed("nobody", Connect, "") != "" {
		t.Error("a replica that nobody has is looked at")
	}
}

// A server that several models share follows no single one's rule.
func TestASharedUpstreamHasTheDefaultRule(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{UnhealthyOn: Connect})
	shared := engines.Replica{ID: "up:80", Launcher: engines.Upstream}
	s.put("x", shared)
	if told := s.Failed("up:80", FiveHundreds, ""); told != "" {
		t.Errorf("alone: %q", told)
	}
	s.put("y", shared)
	if told := s.Failed("up:80", FiveHundreds, ""); told != engines.Upstream {
		t.Errorf("shared: %q", told)
	}
}

func TestSuspensionsEndAndGrow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		s.put("m", launched("a", "b", "c")...)
		for n, lasts := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute} {
			s.Failed("a", FiveHundreds, "answered 500")
			s.Failed("a", FiveHundreds, "answered 500") // one that was on its way
			if n > 0 {
				s.EndSuspension("a")
			}
			time.Sleep(lasts - time.Second)
			s.expectCandidates(t, fmt.Sprint(n, " just before the end"), "b", "c")
			time.Sleep(time.Second)
			synctest.Wait()
			s.expectCandidates(t, fmt.Sprint(n, " after the end"), "a", "b", "c")
			time.Sleep(healthyPeriod - time.Second)
		}
		time.Sleep(time.Second) // a minute of good service
		s.Failed("a", FiveHundreds, "answered 500")
		s.expectCandidates(t, "after good service", "b", "c")
		s.EndSuspension("a")
		s.expectCandidates(t, "its launcher finds it well", "a", "b", "c")
		if out := s.Suspended(); len(out) > 0 {
			t.Errorf("suspended %v", out)
		}
	})
}

func TestTheLastIsNeverSuspended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{MaxPerReplica: 1})
		all := launched("a", "b")
		s.put("m", all...)
		s.Failed("a", Connect, "refused")
		s.Failed("b", Connect, "refused")
		s.expectCandidates(t, "both fail", "b")
		// The other is merely full: the request waits rather than go to who failed.
		busy := s.must(t, newRequest("m", "k"))
		waiting := s.queue("m")
		if v, _ := s.View("m"); v.Queued != 1 || busy.Replica() != "b" {
			t.Errorf("%+v, the first is on %s", v, busy.Replica())
		}
		s.EndSuspension("a")
		if second := <-waiting; second.Replica() != "a" {
			t.Errorf("it went to %s", second.Replica())
		}
		// When the others are gone altogether, who failed is all there is.
		s.Failed("a", Connect, "refused")
		all[1].State = engines.Failed
		s.put("m", all...)
		s.expectCandidates(t, "only a suspended one is left", "a")
		if out := s.Suspended(); len(out) > 0 {
			t.Errorf("the operator is told that %v gets no requests", out)
		}
		all[1].State = engines.Ready
		s.put("m", all...)
		s.expectCandidates(t, "the other is back", "b")
		time.Sleep(time.Minute)
	})
}

// TestANewProcessStartsAfresh: what an earlier process did is not held against one that was started
// in its place.
func TestANewProcessStartsAfresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		all := launched("a", "b")
		s.put("m", all...)
		s.Failed("a", Connect, "refused")
		all[0].PID, all[0].Restarts = 200, 1
		s.put("m", all...)
		s.expectCandidates(t, "another process", "a", "b")
		time.Sleep(time.Hour) // the timer of the first has nothing to do
		s.Failed("a", Connect, "refused")
		s.EndSuspension("a")
		s.expectCandidates(t, "its first failure", "a", "b")
	})
}

// A replica that answers none of many requests for a long time is stuck. Then the count begins
// again. An answer ends it, and so does another process in its place.
func TestAReplicaThatAnswersNothingIsStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		s.put("m", replicas("a")...)
		var failures []Failure
		s.config.Failed = func(_, _ string, kind Failure, _ string) { failures = append(failures, kind) }
		request := func(took time.Duration, answered bool) {
			ticket := s.must(t, newRequest("m", "x"))
			time.Sleep(took)
			ticket.Release()
			ticket.Correct(Response{Failed: !answered, Abandoned: !answered})
		}
		silence := func(requests int, took time.Duration) (last Failure) {
			failures = nil
			for range requests {
				request(took, false)
			}
			if len(failures) == 0 {
				return 0
			}
			return failures[len(failures)-1]
		}
		for _, c := range []struct {
			requests int
			took     time.Duration
			want     Failure
		}{
			{stuckInARow - 1, stuckAfter, Silent}, // too few
			{1, stuckAfter, Stuck},
			{silentInARow - 1, stuckAfter, 0}, // it counts from the beginning
			{silentInARow - 1, stuckAfter, Silent},
		} {
			if got := silence(c.requests, c.took); got != c.want {
				t.Errorf("after %d more: %v, want %v", c.requests, got, c.want)
			}
		}
		request(time.Second, true)
		if got := silence(stuckInARow, silentAfter-time.Second); got != 0 {
			t.Errorf("clients that leave soon: %v, want none", got)
		}
		if got := silence(silentInARow-1, silentAfter); got != 0 {
			t.Errorf("after an answer: %v, want none", got)
		}
		if got := silence(10*stuckInARow, silentAfter); got != Silent {
			t.Errorf("after a short time: %v, want %v", got, Silent)
		}
		request(stuckAfter, true)
		if got := silence(stuckInARow, silentAfter); got != Silent {
			t.Errorf("soon after an answer: %v, want %v", got, Silent)
		}
		time.Sleep(stuckAfter)
		next := replicas("a")
		next[0].PID, next[0].Restarts = 200, 1
		s.put("m", next...)
		if got := silence(silentInARow-1, silentAfter); got != 0 {
			t.Errorf("of a new process: %v, want none", got)
		}
	})
}

// A replica is not stuck because others have counted their requests before the first one has noted
// its time, or because a count of long ago was as high.
func TestTheTimeOfAFirstSilentRequest(t *testing.T) {
	t.Parallel()
	now := steady.Nanos(time.Now())
	var c counter
	c.silent.Store(stuckInARow - 1)
	if got := c.countSilent(now); got != Silent {
		t.Errorf("in the first count: %v, want %v", got, Silent)
	}
	c.endSilence()
	c.silent.Store(stuckInARow - 1)
	if got := c.countSilent(now + int64(stuckAfter)); got != Silent {
		t.Errorf("in a later count: %v, want %v", got, Silent)
	}
}

// Requests that were lost with their Envoy are no silence of their replica, which may have answered
// them. They end its silence neither.
func TestE3_RequestsOfADeadEnvoyAreNoSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		s.put("m", replicas("a")...)
		var failures []string
		s.config.Failed = func(_, replica string, _ Failure, _ string) { failures = append(failures, replica) }
		for i := range 2 * silentInARow {
			ticket := s.must(t, newRequest("m", "x"))
			time.Sleep(silentAfter)
			ticket.Release()
			lost := i > 0 && i < 2*silentInARow-2
			ticket.Correct(Response{Failed: true, Abandoned: true, Lost: lost})
			if want := 0; i < 2*silentInARow-1 && len(failures) != want {
				t.Fatalf("after %d requests: %v", i+1, failures)
			}
		}
		if len(failures) != 1 {
			t.Errorf("the replica was silent %d times, and %d failures were told", silentInARow, len(failures))
		}
	})
}
