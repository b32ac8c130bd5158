package request

import (
	"testing"
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
