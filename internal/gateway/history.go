package gateway

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/history"
)

// makeHistory makes what keeps the last 24 hours, and what tells the clients of the admin listener
// of the present.
func (g *Gateway) makeHistory() {
	g.events, g.traffic = admin.NewEvents(), history.NewTraffic(g.knownModel)
	g.past = history.New(history.Config{
		Dir:      filepath.Join(g.dir.Path(), "history"),
		Sample:   g.sample,
		OnSample: g.events.Sampled,
		OnDamage: func(files []string) {
			for _, name := range files {
				g.conditions.Set(condition.HistoryDamaged, name, "BadChecksum", fmt.Sprintf("The file history/%s is damaged and is not used.", name))
			}
			g.log.Error("files of the history damaged, they are not used", zap.String("files", strings.Join(files, ", ")))
		},
		OnError: func(err error) { g.log.Warn("history neither read nor written as a whole", zap.Error(err)) },
	})
}

// observeGaps counts measured times between two tokens of a managed stream.
func (g *Gateway) observeGaps(model string, gaps ...time.Duration) {
	g.metrics.Gaps(model, gaps...)
	g.traffic.Gaps(model, gaps...)
}

// sample returns the values of now for the history.
func (g *Gateway) sample() history.Sample {
	fleet, memory := g.fleet.Snapshot(), map[string]int64{}
	s := history.Sample{Total: history.None(), Models: make(map[string]history.Values, len(fleet.Models))}
	var used int64
	for _, node := range g.launchers.allNodes() {
		for _, gpu := range node.GPUs {
			if gpu.MemoryTotal > 0 {
				memory[gpu.UUID] = gpu.MemoryUsed
				used += gpu.MemoryUsed
			}
		}
	}
	total := &s.Total
	for _, series := range []history.Series{history.Queued, history.Running, history.ReplicasReady, history.ReplicasWanted} {
		total[series] = 0
	}
	for name, m := range fleet.Models {
		v := g.sampleModel(m, memory)
		for _, series := range []history.Series{history.Queued, history.Running, history.ReplicasReady, history.ReplicasWanted} {
			total[series] += v[series]
		}
		s.Models[name] = v
	}
	for _, p := range g.config().Pools {
		total[history.Queued] += float64(g.admission.PoolStats(p.Name).Queued)
	}
	if len(memory) > 0 {
		total[history.GPUMemoryBytes] = float64(used)
	}
	g.requests.TellFinished()
	g.traffic.Take(&s)
	return s
}

// sampleModel returns the values of a model now. memory is what is used of each GPU in bytes.
func (g *Gateway) sampleModel(m *engines.ModelSnapshot, memory map[string]int64) history.Values {
	v := history.None()
	stats := g.admission.Stats(m.Name)
	v[history.Queued], v[history.Running] = float64(stats.Queued), float64(stats.InFlight)
	v[history.ReplicasWanted], v[history.ReplicasReady] = float64(m.Desired), 0
	if view, ok := g.dispatcher.View(m.Name); ok {
		v[history.ReplicasReady] = float64(view.Ready)
	}
	seen := map[string]bool{}
	for i := range m.Replicas {
		r := &m.Replicas[i]
		for _, uuid := range r.Devices() {
			if used, ok := memory[uuid]; ok && !seen[uuid] { // replicas may share a GPU
				seen[uuid] = true
				v[history.GPUMemoryBytes] = float64(used) + zeroIfNaN(v[history.GPUMemoryBytes])
			}
		}
	}
	return v
}

func zeroIfNaN(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return v
}

// traceURL returns the address of a trace, with {trace_id} in the place of its id; empty: none.
func (g *Gateway) traceURL() string {
	if t := g.options.Config.Tracing; t != nil {
		return t.TraceURL
	}
	return ""
}

// strategy returns the name of the routing strategy of a model; empty if it is not known.
func (g *Gateway) strategy(model string) string {
	v, _ := g.dispatcher.View(model)
	return string(v.Policy.Strategy)
}
