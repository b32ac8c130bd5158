package request

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
)

func TestO10_ARequestIsFoundByItsIDs(t *testing.T) {
	s := NewStore(4)
	old := s.Begin(Arrival{ID: "r-1", ClientID: "mine"})
	old.SetBody("chat", "mine", true, 10)
	s.Begin(Arrival{ID: "r-2", ClientID: "mine"})
	if d, ok := s.Find("r-1"); !ok || d.ID != "r-1" || d.State != Queued || d.Duration <= 0 {
		t.Errorf("by Envoy's id: %v %+v", ok, d)
	}
	if d, ok := s.Find("mine"); !ok || d.ID != "r-2" {
		t.Errorf("by the client's id: %v %s, want the newest", ok, d.ID)
	}
	old.Close(nil)
	if d, ok := s.Find("r-1"); !ok || d.State != Done {
		t.Errorf("after its end: %v %s", ok, d.State)
	}
	for _, id := range []string{"", "r-9"} {
		if _, ok := s.Find(id); ok {
			t.Errorf("%q is found", id)
		}
	}
}

func TestO10_ARequestKeepsItsRetries(t *testing.T) {
	s := NewStore(4)
	s.Begin(Arrival{ID: "r-1"})
	for _, e := range []Entry{
		{Log: headers.LogAttempts, RequestID: "r-1", Replica: "chat-0", Flags: "UF"},
		{Log: headers.LogAttempts, RequestID: "r-1", Replica: "chat-1", Upstream: "127.0.0.1:2", Interim: true},
	} {
		s.Observe(e)
	}
	managed := s.Begin(Arrival{ID: "r-2"})
	for range 20 {
		managed.AddRetry(ReasonPreempted, "chat-0")
	}
	if d, _ := s.Find("r-2"); len(d.Retries) != maxRetries || d.Retries[0].Replica != "chat-0" || d.Retries[0].Reason != ReasonPreempted {
		t.Errorf("retries of a managed request: %+v", d.Retries)
	}
	d, _ := s.Find("r-1")
	for i := range d.Retries {
		if d.Retries[i].After < 0 || d.Retries[i].After > time.Minute {
			t.Errorf("the attempt has failed after %s", d.Retries[i].After)
		}
		d.Retries[i].After = 0
	}
	if diff := cmp.Diff([]Retry{{Reason: ReasonConnect, Replica: "chat-0"}}, d.Retries); diff != "" {
		t.Errorf("retries (-want +got):\n%s", diff)
	}
}
