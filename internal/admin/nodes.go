package admin

import (
	"math"
	"net/http"

	"github.com/sluice-gateway/sluice/engines"
)

// nodeView is a host: what it has, and what of that is given to replicas.
type nodeView struct {
	Name   string     `json:"name"`
	Labels []string   `json:"labels"`
	Lost   bool       `json:"lost"`
	CPUs   amountView `json:"cpus"`
	Memory amountView `json:"memory"` // bytes
	GPUs   []gpuView  `json:"gpus"`
	// Reason says why GPUs are missing.
	Reason string `json:"reason"`
}

// amountView is something that models may ask for. Total 0 is unknown, and then it is not counted.
type amountView struct {
	Total  float64 `json:"total"`
	Placed float64 `json:"placed"`
}

type gpuView struct {
	UUID   string        `json:"uuid"`
	Name   string        `json:"name"`
	Index  int           `json:"index"`
	MIG    bool          `json:"mig"`
	Memory gpuMemoryView `json:"memory"`
	// Free is what no replica has, from 0 to 1.
	Free     float64       `json:"free"`
	Replicas []tenancyView `json:"replicas"`
}

// gpuMemoryView is in bytes, by whomever it is used.
type gpuMemoryView struct {
	Total int64 `json:"total"`
	Used  int64 `json:"used"`
}

// tenancyView is a replica on a GPU.
type tenancyView struct {
	ID    string  `json:"id"`
	Model string  `json:"model"`
	Share float64 `json:"share"`
}

func (h *handler) nodes(w http.ResponseWriter, _ *http.Request) {
	models := sorted(h.Fleet())
	views := []nodeView{}
	for _, n := range h.Nodes() {
		if n.Name != "" {
			views = append(views, viewNode(n, models))
		}
	}
	writeJSON(w, http.StatusOK, map[string][]nodeView{"nodes": views})
}

// viewNode joins a host with the replicas that are on it.
func viewNode(n engines.Node, models []*engines.ModelSnapshot) nodeView {
	v := nodeView{Name: n.Name, Labels: orEmpty(n.Labels), Lost: n.Lost, Reason: n.Reason,
		CPUs: amountView{Total: n.CPUs}, Memory: amountView{Total: float64(n.Memory)}, GPUs: []gpuView{}}
	on := map[string][]tenancyView{}
	taken := map[string]float64{}
	for _, m := range models {
		for i := range m.Replicas {
			r := &m.Replicas[i]
			if r.Node != n.Name || r.Launcher != engines.Local {
				continue
			}
			v.CPUs.Placed += r.Resources.CPU
			v.Memory.Placed += float64(r.Resources.Memory)
			for _, uuid := range r.Devices() {
				on[uuid] = append(on[uuid], tenancyView{r.ID, r.Model, r.Resources.Share()})
				taken[uuid] += r.Resources.Share()
			}
		}
	}
	for _, g := range n.GPUs {
		v.GPUs = append(v.GPUs, gpuView{
			UUID: g.UUID, Name: g.Name, Index: g.Index, MIG: g.MIG, Memory: gpuMemoryView{g.MemoryTotal, g.MemoryUsed},
			Free: thousandths(max(1-taken[g.UUID], 0)), Replicas: orEmpty(on[g.UUID]),
		})
	}
	v.CPUs.Placed = thousandths(v.CPUs.Placed)
	return v
}

// thousandths hides what sums of fractions are off by.
func thousandths(f float64) float64 { return math.Round(f*1000) / 1000 }
