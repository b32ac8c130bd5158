package dispatch

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// replaced returns a process that was told what the one before knew.
func (s *stage) replaced() stage {
	next := newStage(Policy{})
	next.RestoreResponses(s.Responses(time.Time{}))
	return next
}

// holderOf returns the replica that has a response; "": it is not known.
func (s *stage) holderOf(tenant, id string) string {
	_, at, _ := s.Holder(tenant, id)
	return at.ID
}

// three are replicas of three launchers that have served before.
func three() []engines.Replica {
	return []engines.Replica{
		{ID: "a", Launcher: engines.Local, PID: 100},
		{ID: "b", Launcher: engines.Kubernetes, Restarts: 3},
		{ID: "c", Launcher: engines.Upstream, Address: netip.MustParseAddrPort("10.0.0.1:80")},
	}
}

// A process with restored responses finds them as soon as it knows their replicas. Even before that
// it passes them to the next process. No other tenant finds them.
func TestR7_ResponsesOutliveTheProcess(t *testing.T) {
	t.Parallel()
	first := newStage(Policy{Strategy: RoundRobin})
	first.put("m", three()...)
	homes := map[string]string{}
	for n := range 6 {
		id := fmt.Sprint("resp_", n)
		homes[id] = first.respond(t, "acme", id)
	}
	second := first.replaced()
	third := second.replaced() // the second one has never seen a replica
	third.put("m", three()...)
	fourth := third.replaced()
	fourth.put("m", three()...)
	for _, s := range []*stage{&third, &fourth} {
		for id, home := range homes {
			if at := s.holderOf("acme", id); at != home {
				t.Errorf("%s at %s is looked for at %q", id, home, at)
			}
			if at := s.answer(t, responseRequest("acme", id)); at != home {
				t.Errorf("%s at %s is continued at %q", id, home, at)
			}
			if at := s.holderOf("stranger", id); at != "" {
				t.Errorf("another tenant is told of %s", id)
			}
		}
	}
}

// Responses whose replica stays away are told once each, however often the process is replaced.
// Each process reads them from the file, and the one before tells it of them.
func TestR7_UnplacedResponsesDoNotPileUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{Strategy: RoundRobin})
		s.put("m", three()...)
		homes := map[string]string{}
		for n := range 6 {
			id := fmt.Sprint("resp_", n)
			homes[id] = s.respond(t, "acme", id)
		}
		count := func(told []ReplicaResponses) (n int) {
			for _, r := range told {
				n += len(r.Responses) / recordSize
			}
			return n
		}
		for range 5 {
			time.Sleep(time.Minute)
			file := s.Responses(time.Time{})
			next := s.replaced()
			next.RestoreResponses(file)
			s = next
		}
		if told := s.Responses(time.Time{}); len(told) != 3 || count(told) != len(homes) {
			t.Errorf("%d responses of %d replicas are told, want %d of 3", count(told), len(told), len(homes))
		}
		time.Sleep(50 * time.Minute) // 55 since they were learned
		s.put("m", three()...)
		for id, home := range homes {
			if at := s.holderOf("acme", id); at != home {
				t.Errorf("%s at %s is looked for at %q", id, home, at)
			}
		}
	})
}

// An engine that was started anew has lost its responses. A server that someone else runs may be
// known at another address. A replica that is not ready may still prove to be the former one.
func TestR7_ResponsesEndWithTheirEngine(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		replica int
		change  func(*engines.Replica)
		known   bool
	}{
		"same process":              {0, func(*engines.Replica) {}, true},
		"another process":           {0, func(r *engines.Replica) { r.PID++ }, false},
		"another start":             {1, func(r *engines.Replica) { r.Restarts++ }, false},
		"another port":              {1, func(r *engines.Replica) { r.Address = netip.MustParseAddrPort("127.0.0.1:1") }, false},
		"another id":                {1, func(r *engines.Replica) { r.ID = "d" }, false},
		"a server at a new address": {2, func(r *engines.Replica) { r.Address = netip.MustParseAddrPort("10.0.0.2:80") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := three()
			first := newStage(Policy{})
			first.put("m", all[test.replica])
			first.respond(t, "acme", "resp_1")
			second := first.replaced()
			next := three()[test.replica]
			next.Address = all[test.replica].Address
			test.change(&next)
			starting := next
			starting.PID, starting.State = 0, engines.Starting
			second.put("m", starting)
			second.put("m", next)
			if known := second.holderOf("acme", "resp_1") != ""; known != test.known {
				t.Errorf("known: %v", known)
			}
		})
	}
}

// Restored responses are forgotten as all others are: an hour after their last use. A clock that
// was set back keeps none for longer. What this process knows itself counts more.
func TestR7_RestoredResponsesAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := newStage(Policy{})
		first.put("m", three()[0])
		first.respond(t, "acme", "resp_1")
		told := first.Responses(time.Time{})
		time.Sleep(40 * time.Minute)
		first.respond(t, "acme", "resp_2")
		if recent := first.Responses(time.Now().Add(-time.Minute)); len(recent) != 1 || len(recent[0].Responses) != recordSize {
			t.Errorf("of the last minute: %+v", recent)
		}
		second := newStage(Policy{})
		second.RestoreResponses(told)
		time.Sleep(30 * time.Minute)
		if left := second.Responses(time.Time{}); len(left) != 0 {
			t.Errorf("%d are told for longer than they are known", len(left))
		}
		second.put("m", three()[0])
		if at := second.holderOf("acme", "resp_1"); at != "" {
			t.Error("a response is known after 70 minutes")
		}
		future := told[0]
		x := future.sessions(time.Now().Add(-time.Hour))[0]
		x.asked = time.Now().Add(24 * time.Hour).UnixNano()
		future.Responses = appendRecord(nil, &x)
		second.RestoreResponses([]ReplicaResponses{future})
		if at := second.holderOf("acme", "resp_1"); at != "a" {
			t.Errorf("a response of a later time is looked for at %q", at)
		}
		time.Sleep(61 * time.Minute)
		if at := second.holderOf("acme", "resp_1"); at != "" {
			t.Error("a response of a later time is known for longer than an hour")
		}
	})
}

// Records that are damaged or cut are ignored.
func TestR7_DamagedResponsesAreIgnored(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("m", three()...)
	s.RestoreResponses([]ReplicaResponses{{}, {Model: "m"}, {Model: "m", Replica: "c"}, {Model: "m", Replica: "c", Responses: make([]byte, 7)},
		{Model: "m", Replica: "c", Responses: make([]byte, 3*recordSize+1)}, {Model: "none", Replica: "c", Responses: make([]byte, recordSize)}})
	if all := s.Responses(time.Time{}); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

// Of too many responses only the latest are returned, and those fit into the table again.
func TestR7_TheLatestResponsesAreTold(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	names := []string{"m0", "m1", "m2"}
	for _, name := range names {
		s.put(name, engines.Replica{ID: name, Launcher: engines.Upstream})
	}
	from := time.Now().Add(-50 * time.Minute)
	for n := range maxEntries {
		for i, name := range names {
			e := s.estimators[name]
			e.sessions.put(responseOf("acme", fmt.Sprint(n)), s.counters[name], 1, from.Add(time.Duration(i)*10*time.Minute+time.Duration(n)))
		}
	}
	count := map[string]int{}
	for _, r := range s.Responses(time.Time{}) {
		count[r.Model] += len(r.Responses) / recordSize
	}
	if sum := count["m0"] + count["m1"] + count["m2"]; sum != maxResponses || count["m0"] >= count["m1"] {
		t.Errorf("%v", count)
	}
}

// What is learned while someone watches is told, with the run of the engine.
func TestR7_LearnedResponsesAreTold(t *testing.T) {
	t.Parallel()
	first := newStage(Policy{})
	first.put("m", three()...)
	next := newStage(Policy{})
	next.put("m", three()...)
	first.respond(t, "acme", "resp_0")
	var told []ReplicaResponses
	first.WatchResponses(func(r ReplicaResponses) { told = append(told, r) })
	home := first.respond(t, "acme", "resp_1")
	first.WatchResponses(nil)
	first.respond(t, "acme", "resp_2")
	if next.RestoreResponses(told); next.holderOf("acme", "resp_1") != home || next.holderOf("acme", "resp_0")+next.holderOf("acme", "resp_2") != "" {
		t.Errorf("%+v", told)
	}
}

// The number of changes tells of each response that is learned or used, and of nothing else.
func TestR7_ChangesOfResponses(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("m", replicas("a", "b")...)
	numbers := []uint64{s.ResponsesChanged()}
	changed := func() bool {
		numbers = append(numbers, s.ResponsesChanged())
		return numbers[len(numbers)-1] != numbers[len(numbers)-2]
	}
	plain := newRequest("m", "k")
	plain.Session = "x"
	if s.answer(t, plain); changed() {
		t.Error("a session that is no response is a change")
	}
	if s.respond(t, "acme", "resp_1"); !changed() {
		t.Error("a response is no change")
	}
	if s.holderOf("acme", "resp_1"); !changed() {
		t.Error("the use of a response is no change")
	}
	if s.holderOf("acme", "resp_none"); changed() || !slices.IsSorted(numbers) {
		t.Error("an unknown response is a change")
	}
}

// TestR7_ResponsesOfAbsentReplicasAreKept: what another process tells of a replica that this one
// does not know yet is a change that is to be written. The latest of too many are kept.
func TestR7_ResponsesOfAbsentReplicasAreKept(t *testing.T) {
	t.Parallel()
	now := time.Now()
	absent := func(replica string, first, n int) ReplicaResponses {
		r := ReplicaResponses{Model: "m", Replica: replica}
		for i := range n {
			used := now.Add(time.Duration(first+i-maxResponses) * 20 * time.Millisecond)
			r.Responses = appendRecord(r.Responses, &session{sessionID: sessionID{key: uint64(first + i + 1), owner: 1}, asked: used.UnixNano()})
		}
		return r
	}
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	before := s.ResponsesChanged()
	s.RestoreResponses([]ReplicaResponses{absent("x", 0, 1000)})
	if s.ResponsesChanged() == before {
		t.Error("the responses of an absent replica are no change")
	}
	s.RestoreResponses([]ReplicaResponses{absent("y", 1000, maxResponses-500)})
	kept := map[string]int{}
	for _, r := range s.Responses(time.Time{}) {
		kept[r.Replica] += len(r.Responses) / recordSize
	}
	if sum := kept["x"] + kept["y"]; sum > maxResponses || sum < maxResponses-100 || kept["y"] != maxResponses-500 {
		t.Errorf("kept %v, want the last %d", kept, maxResponses)
	}
}

// BenchmarkResponses measures what 30,000 responses at 8 replicas cost.
func BenchmarkResponses(b *testing.B) {
	s := newStage(Policy{})
	s.put("m", eight()...)
	for n := range 30_000 {
		s.estimators["m"].sessions.put(responseOf("acme", fmt.Sprint("resp_", n)), s.counters[string(rune('a'+n%8))], 1, time.Now())
	}
	b.Run("tell", func(b *testing.B) {
		for b.Loop() {
			s.Responses(time.Time{})
		}
	})
	b.Run("nothing new", func(b *testing.B) {
		for b.Loop() {
			s.ResponsesChanged()
		}
	})
	told := s.Responses(time.Time{})
	b.Run("restore", func(b *testing.B) {
		for b.Loop() {
			next := newStage(Policy{})
			next.put("m", eight()...)
			next.RestoreResponses(told)
		}
	})
}

// Responses returns each known response once, also while the table grows.
func TestR7_ResponsesAreToldWhileTheTableGrows(t *testing.T) {
	t.Parallel()
	for range 20 {
		tellWhileGrowing(t, new(sessionTable))
	}
}

func tellWhileGrowing(t *testing.T, table *sessionTable) {
	t.Helper()
	const before, after = 3000, 9000
	c, now := new(counter), time.Now()
	for n := range uint64(before) {
		table.put(sessionID{n * 0x9e3779b97f4a7c15, 1}, c, 1, now)
	}
	grown := make(chan struct{})
	go func() {
		defer close(grown)
		for n := uint64(before); n < after; n++ {
			table.put(sessionID{n * 0x9e3779b97f4a7c15, 1}, c, 2, now)
		}
	}()
	var all [][]session
	for growing := true; growing; {
		select {
		case <-grown:
			growing = false
		default:
		}
		all = append(all, table.responses(time.Time{}, now)) // checked later, to hit the moments of growth
	}
	for _, sessions := range all {
		told, seen := 0, map[sessionID]bool{}
		for _, x := range sessions {
			if seen[x.sessionID] {
				t.Fatal("a response is told twice")
			}
			seen[x.sessionID] = true
			if x.history == 1 {
				told++
			}
		}
		if told != before {
			t.Fatalf("%d of %d responses are told", told, before)
		}
	}
}
