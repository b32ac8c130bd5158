package admin

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/history"
	"github.com/sluice-gateway/sluice/internal/request"
)

// BenchmarkEventsSecond is what one second costs while somebody watches 1,000 models with a replica
// each, and 500 requests for all of them end.
func BenchmarkEventsSecond(b *testing.B) {
	const models, requests = 1000, 500
	f, part := engines.NewFleet(), engines.Part{}
	conditions := make([]condition.Condition, 0, models)
	for i := range models {
		name := fmt.Sprint("model-", i)
		part.Models = append(part.Models, engines.Model{Name: name, Launcher: engines.Local, Desired: 1})
		part.Replicas = append(part.Replicas, engines.Replica{ID: name + "-0", Model: name, State: engines.Ready, Launcher: engines.Local,
			Address: netip.MustParseAddrPort("127.0.0.1:41000"), Since: noon})
		conditions = append(conditions, condition.OK(condition.ModelReady, name, "Ready", "Model has 1 of 1 replicas."))
	}
	f.Set("test", part)
	snapshot, round := f.Snapshot(), 0
	// Each second other models have a request more or less.
	load := func(model string) int {
		var n int
		fmt.Sscanf(model, "model-%d", &n)
		return (n*7 + round) % 3
	}
	loads := map[string]int{}
	c := newConfig()
	c.Fleet = func() *engines.Snapshot { return snapshot }
	c.Conditions = func() []condition.Condition { return conditions }
	c.ModelLoad = func(model string) ModelLoad { return ModelLoad{InFlight: loads[model]} }
	c.ReplicaLoad = func(r engines.Replica) ReplicaLoad { return ReplicaLoad{InFlight: loads[r.Model]} }
	h, s := New(c).(*handler), newState()
	s.update(h.present())
	finished := make([]request.Summary, 0, maxEventRequests)
	for i := range maxEventRequests {
		finished = append(finished, request.Summary{ID: fmt.Sprint("request-", i), Model: "model-1", Status: 200, Duration: time.Second, Started: noon})
	}
	sample := history.Sample{Total: history.None(), Models: map[string]history.Values{}}
	for i := range part.Models {
		sample.Models[part.Models[i].Name] = history.None()
	}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		round++
		for i := range 400 {
			name := part.Models[(i*2+round)%models].Name
			loads[name] = load(name)
		}
		b.StartTimer()
		frame("state", first(s.update(h.present())))
		frame("requests", encodeFinished(finished, requests-maxEventRequests))
		if round%10 == 0 {
			frame("sample", encodeSample(noon, sample))
		}
	}
}

func first(data []byte, _ bool) []byte { return data }
