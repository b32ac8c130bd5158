package admin

import (
	"math"
	"net/http"

	"github.com/sluice-gateway/sluice/engines"
)

// nodeView shows a node: its resources, and the part of them that is assigned to replicas.
type nodeView struct {
	Name   string   `json:"name"`
	Labels []string `json:"labels"`
	Lost   bool     `json:"lost"`
	// Left: a lost node has said that it stops.
	Left   bool       `json:"left"`
	CPUs   amountView `json:"cpus"`
	Memory amountView `json:"memory"` // bytes
	GPUs   []gpuView  `json:"gpus"`
	// Reason is why GPUs are missing. It is empty when none is.
	Reason string `json:"reason"`
}

// amountView shows a resource that models may ask for. If Total is 0, the total is unknown and the
// resource is not limited. Placed is the part that is assigned to replicas.
type amountView struct {
	Total  float64 `json:"total"`
	Placed float64 `json:"placed"`
}

// gpuView shows a GPU or a MIG instance.
type gpuView struct {
	UUID   string        `json:"uuid"`
	Name   string        `json:"name"`
	Index  int           `json:"index"`
	MIG    bool          `json:"mig"`
	Memory gpuMemoryView `json:"memory"`
	// Free is the share that is assigned to no replica, from 0 to 1.
	Free     float64          `json:"free"`
	Replicas []gpuReplicaView `json:"replicas"`
}

// gpuMemoryView shows the memory of a GPU in bytes. Used includes other programs.
type gpuMemoryView struct {
	Total int64 `json:"total"`
	Used  int64 `json:"used"`
}

// gpuReplicaView shows a replica on a GPU. Share is its share of the GPU, from 0 to 1.
type gpuReplicaView struct {
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

// viewNode returns the view of a node with the replicas that run on it.
func viewNode(n engines.Node, models []*engines.ModelSnapshot) nodeView {
	v := nodeView{Name: n.Name, Labels: orEmpty(n.Labels), Lost: n.Lost, Left: n.Left, Reason: n.Reason,
		CPUs: amountView{Total: n.CPUs}, Memory: amountView{Total: float64(n.Memory)}, GPUs: []gpuView{}}
	onGPU := map[string][]gpuReplicaView{}
	assigned := map[string]float64{}
	for _, m := range models {
		for i := range m.Replicas {
			r := &m.Replicas[i]
			if r.Node != n.Name || r.Launcher != engines.Local {
				continue
			}
			v.CPUs.Placed += r.Resources.CPU
			v.Memory.Placed += float64(r.Resources.Memory)
			for _, uuid := range r.Devices() {
				onGPU[uuid] = append(onGPU[uuid], gpuReplicaView{r.ID, r.Model, r.Resources.Share()})
				assigned[uuid] += r.Resources.Share()
			}
		}
	}
	for _, g := range n.GPUs {
		v.GPUs = append(v.GPUs, gpuView{
			UUID: g.UUID, Name: g.Name, Index: g.Index, MIG: g.MIG, Memory: gpuMemoryView{g.MemoryTotal, g.MemoryUsed},
			Free: thousandths(max(1-assigned[g.UUID], 0)), Replicas: orEmpty(onGPU[g.UUID]),
		})
	}
	v.CPUs.Placed = thousandths(v.CPUs.Placed)
	return v
}

// thousandths rounds to three decimals, which hides the rounding errors of sums.
func thousandths(f float64) float64 { return math.Round(f*1000) / 1000 }
