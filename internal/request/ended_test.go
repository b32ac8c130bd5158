package request

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
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
		"Envoy has died":   {cut, func() bool { return false }, 1, 0},
		"the client left":  {cut, func() bool { return true }, 0, 1},
		"nobody can tell":  {cut, nil, 0, 1},
		"it is whole":      {Outcome{Model: "m", Answered: true}, func() bool { return false }, 0, 1},
		"it had no answer": {Outcome{Model: "m", Cause: CauseClient}, func() bool { return false }, 1, 0},
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
