package gateway

import (
	"maps"
	"slices"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/predict"
	"github.com/sluice-gateway/sluice/internal/scale"
)

// idleModels lists the local models that no request uses and that have more replicas than their
// least number, once for each replica that they may lose.
func (l *launchers) idleModels() []string {
	return slices.DeleteFunc(l.scaler.IdleModels(), func(model string) bool {
		m := l.fleet.Snapshot().Models[model]
		return m == nil || m.Launcher != engines.Local
	})
}

// evict stops one replica for each of these names of models, unless a request has come for the
// model.
func (l *launchers) evict(models []string) {
	changed := false
	for _, model := range models {
		changed = l.scaler.Evict(model) || changed
	}
	if changed {
		l.apply()
	}
}

// override sets the bounds of a model's number of replicas in the place of those of the file. nil
// restores those of the file.
func (l *launchers) override(model string, to *admin.Bounds) {
	l.overridesMu.Lock()
	switch {
	case to == nil:
		delete(l.overrides, model)
	case l.overrides == nil:
		l.overrides = map[string]admin.Bounds{model: *to}
	default:
		l.overrides[model] = *to
	}
	l.overridesMu.Unlock()
	l.setScales()
	l.apply()
}

// setScales gives the scaler the bounds in force: those of the configuration, with the overrides.
func (l *launchers) setScales() {
	l.applying.Lock()
	defer l.applying.Unlock()
	l.scaler.Set(scales(l.withOverrides(l.config())))
}

// scaledBy returns the name of another gateway that decides how many replicas a model has. It is
// empty for a model that this gateway scales.
func (l *launchers) scaledBy(model string) string {
	m := l.fleet.Snapshot().Models[model]
	switch {
	case m != nil && m.Launcher == engines.Kubernetes:
		return l.kubernetes.ScaledBy(model)
	case m != nil && m.Launcher == engines.Ray:
		return l.ray.ScaledBy()
	}
	return ""
}

// setOverrides replaces all overrides. The caller applies them.
func (l *launchers) setOverrides(next map[string]admin.Bounds) {
	l.overridesMu.Lock()
	defer l.overridesMu.Unlock()
	l.overrides = next
}

// currentOverrides returns a copy of the overrides.
func (l *launchers) currentOverrides() map[string]admin.Bounds {
	l.overridesMu.Lock()
	defer l.overridesMu.Unlock()
	return maps.Clone(l.overrides)
}

// withOverrides returns c with the numbers of replicas that an operator has set.
func (l *launchers) withOverrides(c *config.Config) *config.Config {
	l.overridesMu.Lock()
	defer l.overridesMu.Unlock()
	if len(l.overrides) == 0 {
		return c
	}
	next := *c
	next.Models = slices.Clone(c.Models)
	for i := range next.Models {
		if to, ok := l.overrides[next.Models[i].Name]; ok {
			next.Models[i].Replicas = config.Replicas(to)
		}
	}
	return &next
}

// scaleOf returns the bounds of a model's number of replicas; nil if it is not launched.
func (l *launchers) scaleOf(model string) *admin.Scale {
	m, ok := l.config().Model(model)
	if !ok || !m.Launched() {
		return nil
	}
	file := admin.Bounds{Min: m.Replicas.Min, Max: m.Replicas.Max}
	l.overridesMu.Lock()
	defer l.overridesMu.Unlock()
	if own, ok := l.overrides[model]; ok {
		return &admin.Scale{Bounds: own, File: file, Overridden: true}
	}
	return &admin.Scale{Bounds: file, File: file}
}

// demand reports that a request waits for a model.
func (l *launchers) demand(model string) {
	l.scaler.ReportDemand(model)
	l.publishLoad()
}

// applyScaled applies numbers of replicas that the scaler has changed. A gateway elsewhere that
// starts the replicas learns at once what load has changed them.
func (l *launchers) applyScaled() {
	l.apply()
	l.publishLoad()
}

// publishLoad tells the other gateways that launch the same models what waits here.
func (l *launchers) publishLoad() {
	if l.kubernetes != nil {
		l.kubernetes.PublishLoad()
	}
	if l.ray != nil {
		l.ray.PublishLoad()
	}
}

// lastScaled returns the last change of the model's number of replicas; nil if it never changed.
func (l *launchers) lastScaled(model string) *admin.Scaled {
	c := l.scaler.LastChange(model)
	if c.At.IsZero() {
		return nil
	}
	return &admin.Scaled{From: c.From, To: c.To, Reason: string(c.Reason), At: c.At}
}

// load is the load of a model at all gateways that launch it together.
func (l *launchers) load(model string) scale.Load {
	own := l.ownLoad(model)
	var others engines.Load // a model has one launcher
	own.RefusedElsewhere = map[string]uint64{}
	if l.kubernetes != nil {
		others = others.Add(l.kubernetes.OthersLoad(model))
		maps.Copy(own.RefusedElsewhere, l.kubernetes.OthersRefused(model))
	}
	if l.ray != nil {
		others = others.Add(l.ray.OthersLoad(model))
		maps.Copy(own.RefusedElsewhere, l.ray.OthersRefused(model))
	}
	own.Running, own.Queued, own.Held = own.Running+others.Running, own.Queued+others.Queued, own.Held+others.Held
	own.Admitted += others.Admitted
	own.Predicted = own.Predicted.Add(predict.Flow(others.Predicted))
	return own
}

// ownLoad is the load of a model at this gateway. A request that waits for a pool counts for each
// of the pool's models.
func (l *launchers) ownLoad(model string) scale.Load {
	v, _ := l.dispatcher.View(model)
	load := scale.Load{
		Running: v.InFlight, Queued: v.Queued, Held: v.AtTenantLimits, Admitted: v.Admitted, Refused: v.Refused, PerReplica: v.PerReplica,
		MaxRunning: v.Policy.Limits.MaxConcurrent, Ready: v.Ready, Failing: v.Failing, Predicted: v.Predicted,
	}
	for _, p := range l.config().Pools {
		if slices.Contains(p.Models, model) {
			pool := l.admission.PoolStats(p.Name)
			load.Queued, load.Held = load.Queued+pool.Queued, load.Held+pool.AtTenantLimits
		}
	}
	if v.LacksTokens {
		load.Held = load.Queued
	}
	return load
}

// reportedLoad returns ownLoad in the form that is reported to the other gateways.
func (l *launchers) reportedLoad(model string) engines.Load {
	own := l.ownLoad(model)
	return engines.Load{Running: own.Running, Queued: own.Queued, Held: own.Held, Admitted: own.Admitted, Refused: own.Refused,
		Predicted: engines.Predicted(own.Predicted)}
}
