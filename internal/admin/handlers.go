package admin

import (
	"maps"
	"math"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/condition"
)

// healthz answers 200 as long as the process runs.
func (h *handler) healthz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// readyz answers 200 when requests can be served, else 503 with the reasons.
func (h *handler) readyz(w http.ResponseWriter, _ *http.Request) {
	reasons := h.reasons()
	status := http.StatusOK
	if len(reasons) > 0 {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, struct {
		Ready   bool     `json:"ready"`
		Reasons []string `json:"reasons"`
	}{len(reasons) == 0, reasons})
}

// reasons returns why requests cannot be served, never nil.
func (h *handler) reasons() []string {
	reasons := slices.Clone(orEmpty(h.NotReady()))
	slices.Sort(reasons) // the order is the same in every answer
	return reasons
}

// conditions lists the conditions, those that need attention first.
func (h *handler) conditions(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string][]condition.Condition{"conditions": orEmpty(h.Conditions())})
}

func (h *handler) status(w http.ResponseWriter, _ *http.Request) {
	type sharedView struct {
		SharedStatus
		Since *time.Time `json:"since"`
	}
	type configView struct {
		Path     string     `json:"path"`
		LoadedAt *time.Time `json:"loaded_at"`
		Faults   []string   `json:"faults"`
		Held     bool       `json:"held"`

		NeedsRestart []string `json:"needs_restart"`
	}
	type upgradeView struct {
		Failed       string        `json:"failed"`
		FailedAt     *time.Time    `json:"failed_at"`
		Predecessors []Predecessor `json:"predecessors"`
	}
	s, reasons := h.Status(), h.reasons()
	s.XDS.Refused, s.Envoy.Predecessors = orEmpty(s.XDS.Refused), orEmpty(s.Envoy.Predecessors)
	writeJSON(w, http.StatusOK, struct {
		Version string      `json:"version"`
		PID     int         `json:"pid"`
		Listen  string      `json:"listen"`
		TLS     bool        `json:"tls"`
		Started *time.Time  `json:"started"`
		UptimeS float64     `json:"uptime_s"`
		Ready   bool        `json:"ready"`
		Reasons []string    `json:"reasons"`
		Envoy   EnvoyStatus `json:"envoy"`
		XDS     XDSStatus   `json:"xds"`
		Config  configView  `json:"config"`
		Shared  sharedView  `json:"shared"`
		Upgrade upgradeView `json:"upgrade"`
	}{
		PID:     s.PID,
		Upgrade: upgradeView{s.Upgrade.Failed, orNull(s.Upgrade.FailedAt), orEmpty(s.Upgrade.Predecessors)},
		Version: s.Version,
		Listen:  s.Listen,
		TLS:     s.TLS,
		Started: orNull(s.Started),
		UptimeS: math.Round(time.Since(s.Started).Seconds()),
		Ready:   len(reasons) == 0,
		Reasons: reasons,
		Envoy:   s.Envoy,
		XDS:     s.XDS,
		Config:  configView{s.Config.Path, orNull(s.Config.LoadedAt), orEmpty(s.Config.Faults), s.Config.Held, orEmpty(s.Config.NeedsRestart)},
		Shared:  sharedView{s.Shared, orNull(s.Shared.Since)},
	})
}

func (h *handler) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string][]modelView{"models": h.modelViews()})
}

func (h *handler) modelViews() []modelView {
	views := []modelView{}
	for _, m := range sorted(h.Fleet()) {
		views = append(views, h.viewModel(m))
	}
	return views
}

func (h *handler) replicas(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string][]replicaView{"replicas": h.replicaViews()})
}

func (h *handler) replicaViews() []replicaView {
	views := []replicaView{}
	for _, m := range sorted(h.Fleet()) {
		for _, r := range m.Replicas {
			load := h.ReplicaLoad(r)
			r.ServedModel = m.NameAt(&r)
			views = append(views, viewReplica(r, load))
		}
	}
	return views
}

// sorted returns the models in the order of their names.
func sorted(s *engines.Snapshot) []*engines.ModelSnapshot {
	models := make([]*engines.ModelSnapshot, 0, len(s.Models))
	for _, name := range slices.Sorted(maps.Keys(s.Models)) {
		models = append(models, s.Models[name])
	}
	return models
}

func (h *handler) tenants(w http.ResponseWriter, _ *http.Request) {
	views := []tenantView{}
	for _, t := range h.Tenants() {
		views = append(views, h.viewTenant(t))
	}
	writeJSON(w, http.StatusOK, map[string][]tenantView{"tenants": views})
}

func (h *handler) pools(w http.ResponseWriter, _ *http.Request) {
	pools := orEmpty(slices.Clone(h.Pools()))
	for i := range pools {
		pools[i].Models = orEmpty(pools[i].Models)
	}
	writeJSON(w, http.StatusOK, map[string][]Pool{"pools": pools})
}

func (h *handler) reload(w http.ResponseWriter, r *http.Request) {
	if s := r.URL.Query().Get("dry_run"); s != "" {
		h.planReload(w, r, s)
		return
	}
	var options struct {
		Force bool `json:"force"`
	}
	if !readAction(w, r, &options, `{} or {"force": true}`) {
		return
	}
	a := auditOf(r)
	a.old = h.Status().Config.Hash
	defer func() { a.new = h.Status().Config.Hash }()
	if err := h.Reload(r.Context(), options.Force); err != nil {
		h.Log.Warn("reload by the admin listener failed", zap.Error(err))
		writeError(w, refusal(http.StatusUnprocessableEntity, err.Error()))
		return
	}
	writeJSON(w, http.StatusOK, map[string]bool{"reloaded": true})
}
