package gateway

import (
	"maps"
	"reflect"
	"slices"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
)

// planReload returns what a reload with this content of the file would change now. It is PlanReload
// of the admin listener.
func (g *Gateway) planReload(content []byte) (admin.ReloadPlan, error) {
	next, needsForce, err := g.watcher.Next(content)
	if err != nil {
		return admin.ReloadPlan{}, err
	}
	now := g.watcher.Current()
	if _, err := newPlan(g.parts, next); err != nil {
		return admin.ReloadPlan{}, err
	}
	plan := admin.ReloadPlan{RestartRequired: g.options.Config.NeedsRestart(next), NeedsForce: needsForce}
	replaced := g.replacedModels(now, next)
	for _, c := range now.Changes(next) {
		change := admin.ReloadChange{What: c.What, Name: c.Name, Change: c.Kind, Fields: c.Fields}
		if c.What == "model" {
			switch {
			case c.Kind == config.Removed:
				change.Ends = g.replicaIDs(c.Name)
			case replaced[c.Name]:
				change.Replaces = g.replicaIDs(c.Name)
				delete(replaced, c.Name)
			}
		}
		plan.Changed = append(plan.Changed, change)
	}
	for _, name := range slices.Sorted(maps.Keys(replaced)) { // by a change of their engine
		if !slices.ContainsFunc(plan.Changed, func(c admin.ReloadChange) bool { return c.What == "model" && c.Name == name }) {
			plan.Changed = append(plan.Changed, admin.ReloadChange{What: "model", Name: name, Change: config.Changed, Replaces: g.replicaIDs(name)})
		}
	}
	return plan, nil
}

func (g *Gateway) replicaIDs(model string) []string {
	var ids []string
	if m, ok := g.fleet.Snapshot().Models[model]; ok {
		for i := range m.Replicas {
			ids = append(ids, m.Replicas[i].ID)
		}
	}
	return ids
}

// replacedModels returns the models in both configurations whose replicas would be replaced.
func (g *Gateway) replacedModels(now, next *config.Config) map[string]bool {
	replaced := map[string]bool{}
	none := func(string) int { return 0 }
	before := map[string]local.Model{}
	for _, m := range localModels(now, g.self, none) {
		before[m.Name] = m
	}
	for _, m := range localModels(next, g.self, none) {
		if old, ok := before[m.Name]; ok && !old.SameProcess(m) {
			replaced[m.Name] = true
		}
	}
	for _, m := range next.Models {
		old, ok := now.Model(m.Name)
		if !ok || m.Launcher != engines.Kubernetes && m.Launcher != engines.Ray {
			continue
		}
		oldVersion, oldLaunch := now.Launch(old)
		version, launch := next.Launch(m)
		if !reflect.DeepEqual([]any{oldVersion, oldLaunch, old.Env, old.Secrets, old.Resources, old.Pod, old.Hosts},
			[]any{version, launch, m.Env, m.Secrets, m.Resources, m.Pod, m.Hosts}) {
			replaced[m.Name] = true
		}
	}
	return replaced
}
