package request

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// TestX20_ARequestOfAnotherProcessIsListedOnce: the other process and Envoy's log both tell of a
// request that has ended, in any order. The other process knows more.
func TestX20_ARequestOfAnotherProcessIsListedOnce(t *testing.T) {
	entry := Entry{Log: headers.LogRequests, RequestID: "1", Status: 200, Metadata: map[string]string{headers.MetadataTenant: "acme"}}
	whole := Summary{ID: "1", Tenant: "acme", Model: "m", State: Done, Status: 200, Started: time.Now()}
	for _, entryFirst := range []bool{false, true} {
		told := 0
		s := NewStore(0)
		s.Subscribe(Subscribers{Finished: []func(Summary){func(Summary) { told++ }}})
		if entryFirst {
			s.Observe(entry)
		}
		s.AddEnded(whole)
		s.AddEnded(whole)
		if !entryFirst {
			s.Observe(entry)
		}
		all, running := s.List(0)
		if running != 0 || len(all) != 1 || all[0].Model != "m" || told != 1 {
			t.Errorf("entry first %v: %d run, told of %d, listed %+v", entryFirst, running, told, all)
		}
	}
}

// TestX20_TheEntryOfANativeRequestCompletesWhatIsTold: a native request is over at the old process
// when the new one takes over, and Envoy's log entry of it comes after that. The old process does
// not know how the request has ended.
func TestX20_TheEntryOfANativeRequestCompletesWhatIsTold(t *testing.T) {
	t.Parallel()
	old, next := NewStore(0), NewStore(0)
	r := old.Begin(Arrival{ID: "1", ClientID: "mine", Tenant: "acme", Model: "m"})
	r.SetNative(nil, "m", "m-1", 0)
	r.Close(nil)
	told, _ := old.List(0)
	next.AddEnded(told[0])
	next.Observe(Entry{Log: headers.LogRequests, RequestID: "1", Model: "m", Replica: "m-1", Upstream: "127.0.0.1:1", Attempts: 1, Status: 200,
		Path: "/v1/chat/completions", Details: "via_upstream", Usage: UsageOf(7, 3, 0), Metadata: map[string]string{headers.MetadataTenant: "acme"}})
	all, running := next.List(0)
	if running != 0 || len(all) != 1 || all[0].Status != 200 || all[0].PromptTokens != 7 || all[0].Tenant != "acme" || all[0].ClientID != "mine" {
		t.Errorf("%d run, listed %+v", running, all)
	}
}

// TestX20_TheUsageThatComesLastIsTold: a named generation goes on at a replaced process after its
// client has left. The list of the new process shows what it has used, and how Envoy has ended the
// request. The log entry of the request comes before, between or after what the replaced process
// tells.
func TestX20_TheUsageThatComesLastIsTold(t *testing.T) {
	t.Parallel()
	for entryAt := range 3 {
		old, next := NewStore(0), NewStore(0)
		old.Subscribe(Subscribers{Elsewhere: next.AddEnded})
		r := old.Begin(Arrival{ID: "1", Tenant: "acme", Model: "m", Stream: true})
		r.SetOutcome(Outcome{Model: "m", Cause: CauseClient, Answered: true, UsedElsewhere: true})
		r.Close(nil)
		for step, tell := range []func(){func() { r.EndElsewhere(nil, func() {}) }, func() { r.SetUsage(UsageOf(7, 3, 0)) }, func() {}} {
			if step == entryAt {
				next.Observe(Entry{Log: headers.LogRequests, RequestID: "1", Cluster: headers.RelayCluster, Status: 200, BytesOut: 9})
			}
			tell()
		}
		all, running := next.List(0)
		if running != 0 || len(all) != 1 || all[0].Status != 200 || all[0].BytesOut != 9 || all[0].CompletionTokens != 3 || all[0].Model != "m" {
			t.Errorf("entry at %d: %d run, listed %+v", entryAt, running, all)
		}
	}
}

// TestX20_ARequestThatTheListHasForgottenStaysForgotten: the usage of a request comes when later
// ones have pushed it out of the list.
func TestX20_ARequestThatTheListHasForgottenStaysForgotten(t *testing.T) {
	t.Parallel()
	s, began := NewStore(2), time.Now()
	ended := func(id string, after time.Duration) Summary {
		return Summary{ID: id, Model: "m", State: Done, Status: 200, Started: began.Add(after), Duration: time.Second}
	}
	first := ended("1", 0)
	for _, q := range []Summary{first, ended("2", time.Minute), ended("3", 2*time.Minute)} {
		s.AddEnded(q)
	}
	first.setUsage(UsageOf(7, 3, 0))
	s.AddEnded(first)
	if all, running := s.List(0); running != 0 || len(all) != 2 || all[0].ID != "3" || all[1].ID != "2" {
		t.Errorf("%d run, listed %+v", running, all)
	}
}

// TestE3_X20_AStreamOfAReplacedProcessHasItsLine: the log entry of a managed stream goes to the
// successor of its process. If its Envoy has died there is none, and the request ends where it is.
func TestE3_X20_AStreamOfAReplacedProcessHasItsLine(t *testing.T) {
	t.Parallel()
	cut := Outcome{Model: "m", Cause: CauseClient, Answered: true, Usage: Usage{Completion: 7}}
	for name, c := range map[string]struct {
		outcome             Outcome
		alive               func() bool
		finished, elsewhere int
	}{
		"Envoy has died":   {cut, func() bool { return false }, 1, 1},
		"the client left":  {cut, func() bool { return true }, 0, 1},
		"nobody can tell":  {cut, nil, 0, 1},
		"it is whole":      {Outcome{Model: "m", Answered: true}, func() bool { return false }, 0, 1},
		"it had no answer": {Outcome{Model: "m", Cause: CauseClient}, func() bool { return false }, 1, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			var finished, elsewhere []Summary
			s := NewStore(0)
			s.Subscribe(Subscribers{
				Finished:  []func(Summary){func(q Summary) { finished = append(finished, q) }},
				Elsewhere: func(q Summary) { elsewhere = append(elsewhere, q) },
			})
			r := s.Begin(Arrival{ID: "1", Tenant: "acme", Model: "m", Stream: true})
			r.SetOutcome(c.outcome)
			r.Close(nil)
			done := make(chan struct{})
			r.EndElsewhere(c.alive, func() { close(done) })
			<-done
			if len(finished) != c.finished || len(elsewhere) != c.elsewhere {
				t.Errorf("%s: finished %+v, elsewhere %+v", name, finished, elsewhere)
			}
			if len(finished) == 1 && (finished[0].Model != "m" || finished[0].Cause != CauseGateway || finished[0].State != Done) {
				t.Errorf("%s: %+v", name, finished[0])
			}
		})
	}
}

// TestO5_X20_AManagedStreamOfAReplacedProcessIsCounted: the log entry of a managed stream knows
// neither its model nor its tokens. The process that was replaced has told them before.
func TestO5_X20_AManagedStreamOfAReplacedProcessIsCounted(t *testing.T) {
	t.Parallel()
	broken := whole()
	broken.Fault, broken.Cause = openai.Errorf(openai.CodeUpstreamError, "It broke."), CauseEngine
	for _, o := range []Outcome{whole(), broken} {
		old, told, own := NewStore(0), Summary{}, []Summary{}
		old.Subscribe(Subscribers{Elsewhere: func(q Summary) { told = q }})
		alone := NewStore(0)
		finish := subscribed(alone, func(q Summary) { own = append(own, q) })
		for _, s := range []*Store{old, alone} {
			r := s.Begin(Arrival{ID: "a", ClientID: "mine", Tenant: "acme", Model: "chat", Stream: true, Bytes: 9})
			r.SetDispatched("chat", "chat-1", 400*time.Millisecond)
			r.SetOutcome(o)
			r.Close(nil)
			if s == old {
				r.EndElsewhere(nil, func() {})
			}
		}
		finish(relayed("a"))
		next, counted := NewStore(0), []Summary{}
		observe := subscribed(next, func(q Summary) { counted = append(counted, q) })
		next.AddEnded(told)
		observe(relayed("a"))
		all, running := next.List(0)
		if len(counted) != 1 || len(all) != 1 || running != 0 {
			t.Fatalf("told of %+v, listed %+v, %d run", counted, all, running)
		}
		if diff := cmp.Diff(counted, all); diff != "" {
			t.Error("not as it is listed: ", diff)
		}
		counted[0].Started = own[0].Started // each process has its own record
		if diff := cmp.Diff(own, counted); diff != "" {
			t.Error("not as a process counts its own: ", diff)
		}
	}
}

// TestE3_X20_ANativeStreamOfAReplacedProcessIsCharged: the connection of a native request has
// broken at a process that was replaced. The process ends the request if its Envoy has died. Its
// successor may know the request by periodic entries of Envoy's log, and counts it no more.
func TestE3_X20_ANativeStreamOfAReplacedProcessIsCharged(t *testing.T) {
	t.Parallel()
	for _, alive := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := &hold{cost: Cost{Usage: Usage{Prompt: 70}}}
			_, r, used, finished := lostStore(h)
			done := make(chan struct{})
			r.EndElsewhere(func() bool { return alive }, func() { close(done) })
			<-done
			if alive {
				if len(*used)+len(*finished)+len(h.corrected) != 0 {
					t.Errorf("its Envoy lives, and it has ended: %+v, %+v", *used, *finished)
				}
				return
			}
			if len(*used) != 1 || len(*finished) != 1 || len(h.corrected) != 1 || (*used)[0].PromptTokens != 70 {
				t.Fatalf("used %+v, finished %+v, corrected %+v", *used, *finished, h.corrected)
			}
			next, told := NewStore(0), 0
			next.Subscribe(Subscribers{Used: func(*Summary) { told++ }, Finished: []func(Summary){func(Summary) { told++ }},
				Lives: func(int) bool { return false }})
			next.Observe(Entry{Log: headers.LogRequests, Interim: true, RequestID: "a", Model: "chat", PID: 7})
			next.AddEnded((*finished)[0])
			time.Sleep(2 * (lateNews + lostCheck))
			synctest.Wait()
			if all, running := next.List(0); running != 0 || len(all) != 1 || all[0].Code != "gateway_unavailable" || told != 0 {
				t.Errorf("told %d times, %d run, listed %+v", told, running, all)
			}
		})
	}
}
