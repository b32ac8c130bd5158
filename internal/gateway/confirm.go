package gateway

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/config"
)

// mustConfirm says why a new file needs the word of an operator. It would shut out every tenant,
// end every model that serves, or judge no answer any more. Such a file is more often one that an
// editor or a full disk has cut than one that is meant. "" means that it needs none. It is the
// watcher's Confirm.
func (g *Gateway) mustConfirm(next *config.Config) string {
	var reasons []string
	current := g.watcher.Current()
	if rules := current.Moderation; len(rules) > 0 && len(next.Moderation) == 0 {
		names := make([]string, len(rules))
		for i := range rules {
			names[i] = rules[i].Name
		}
		reasons = append(reasons, "every moderation rule ("+few(names)+")")
	}
	if old := current.Tenants; len(old) > 0 && len(next.Tenants) == 0 && next.Auth.Mode != config.AuthNone {
		names := make([]string, len(old))
		for i, t := range old {
			names[i] = t.Name
		}
		reasons = append(reasons, "every tenant ("+few(names)+")")
	}
	if served := g.servedModels(); len(served) > 0 && !slices.ContainsFunc(served, func(m *engines.ModelSnapshot) bool { return g.keeps(next, m) }) {
		names := make([]string, len(served))
		for i, m := range served {
			names[i] = m.Name
		}
		reasons = append(reasons, "every model that has replicas ("+few(names)+")")
	}
	if len(reasons) == 0 {
		return ""
	}
	return "the new content removes " + strings.Join(reasons, " and ")
}

// servedModels lists the models that have replicas, by name.
func (g *Gateway) servedModels() []*engines.ModelSnapshot {
	models := g.fleet.Snapshot().Models
	var served []*engines.ModelSnapshot
	for _, name := range slices.Sorted(maps.Keys(models)) {
		if len(models[name].Replicas) > 0 {
			served = append(served, models[name])
		}
	}
	return served
}

// keeps reports whether a model goes on under the file. Custom resources do not depend on the file.
// Discovered models do not have names there, so any server of upstreams counts for all of them.
func (g *Gateway) keeps(next *config.Config, m *engines.ModelSnapshot) bool {
	if m.Discovered && len(next.Upstreams) > 0 || g.launchers.resources.owner(m.Name) != nil {
		return true
	}
	_, named := next.Model(m.Name)
	return named
}

// checkFound returns an error if the file of a start has none of the models whose replicas run on
// this node. The start would end all of them.
func (g *Gateway) checkFound(c *config.Config) error {
	found := g.launchers.local.Found()
	if len(found) == 0 || g.options.Force || c.Kubernetes != nil && c.Kubernetes.CustomResources {
		return nil
	}
	for _, m := range c.Models {
		if len(found[m.Name]) > 0 {
			return nil
		}
	}
	return fmt.Errorf("%s has none of the models whose replicas run here (%s), so a start would end them: correct it, "+
		"start with --force, or wait until the guard has ended them (orphan_grace, %v)", c.File, few(slices.Sorted(maps.Keys(found))), c.OrphanGrace)
}

// maxListed is how many names a message lists.
const maxListed = 5

// few lists names, at most maxListed of them.
func few(names []string) string {
	if len(names) > maxListed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), len(names)-maxListed)
	}
	return strings.Join(names, ", ")
}
