package config

import (
	"slices"

	"github.com/sluice-gateway/sluice/engines"
)

// checkPools checks that a pool's models exist, and replaces aliases by the names of their models.
// It returns the names of the pools.
func (k *checker) checkPools() []named {
	var names []named
	models, pools := k.modelNames(), k.poolNames()
	for i := range k.config.Pools {
		pool, at := &k.config.Pools[i], path{"pools"}.item(i)
		names = append(names, named{pool.Name, at.field("name")})
		k.checkName(at.field("name"), pool.Name)
		where := at.field("models")
		if len(pool.Models) == 0 && k.isSet(where) && k.valid(where) {
			k.faultf(where, "must name at least one model, is empty")
		}
		var members []named
		for j, model := range pool.Models {
			if !k.checkPoolModel(where.item(j), model, models, pools) {
				continue
			}
			pool.Models[j] = k.config.ModelName(model)
			members = append(members, named{pool.Models[j], where.item(j)})
		}
		k.checkRepeated(members, "model")
	}
	return names
}

// checkPoolModel checks that the model exists, as far as Sluice can know. It returns false for a
// model with a fault.
func (k *checker) checkPoolModel(at path, model string, models, pools []string) bool {
	switch {
	case !k.valid(at):
		return false
	case k.config.isAdapter(model):
		// The pool would answer with its model instead.
		k.faultf(at, "must be the name or alias of a model, and %s is an adapter of %s", quoted(model), quoted(k.config.ModelName(model)))
		return false
	case slices.Contains(models, model):
		return true
	case model == "" || model == "*":
		k.faultf(at, "must be the name or alias of a model, is %s", quoted(model))
	case slices.Contains(pools, model):
		k.faultf(at, "must be the name or alias of a model, and %s is a pool", quoted(model))
	case k.config.DiscoversModels():
		return true
	default:
		k.faultf(at, "there is no model %s; %s", quoted(model), suggest(model, models))
	}
	return false
}

// checkDefaultModel checks that the default model exists, as far as Sluice can know, and that
// Sluice serves it.
func (k *checker) checkDefaultModel(at path) {
	name := k.config.DefaultModel
	known := append(k.modelNames(), k.poolNames()...)
	switch {
	case name == "" || !k.valid(at):
	case !k.config.DiscoversModels() && !slices.Contains(known, name):
		k.faultf(at, "there is no model %s; %s", quoted(name), suggest(name, known))
	case k.isServedElsewhere(name):
		k.faultf(at, "%s has launcher none, so Sluice serves no request for it: name a model that Sluice serves, or leave default_model out", quoted(name))
	}
}

// isServedElsewhere reports whether the model of this name, or every model of the pool, has
// launcher none. Models of custom resources do not count: whoever writes them is not at fault.
func (k *checker) isServedElsewhere(name string) bool {
	members := k.config.modelsOf(name)
	elsewhere := map[string]bool{}
	for _, m := range k.config.Models[:len(k.config.Models)-k.config.objectModels] {
		elsewhere[m.Name] = m.Launcher == engines.None
	}
	served := func(name string) bool { return !elsewhere[name] }
	return len(members) > 0 && !slices.ContainsFunc(members, served)
}

func (k *checker) poolNames() []string {
	var names []string
	for _, p := range k.config.Pools {
		names = append(names, p.Name)
	}
	return names
}

// Model returns the model with this name.
func (c *Config) Model(name string) (m Model, ok bool) {
	i := slices.IndexFunc(c.Models, func(m Model) bool { return m.Name == name })
	if i < 0 {
		return Model{}, false
	}
	return c.Models[i], true
}

// Tenant returns the tenant with this name.
func (c *Config) Tenant(name string) (t Tenant, ok bool) {
	i := slices.IndexFunc(c.Tenants, func(t Tenant) bool { return t.Name == name })
	if i < 0 {
		return Tenant{}, false
	}
	return c.Tenants[i], true
}

// HasModel reports whether a model of the file has this name, alias or adapter, or a pool has this
// name.
func (c *Config) HasModel(name string) bool {
	return slices.ContainsFunc(c.Models, func(m Model) bool { return m.Name == name || slices.Contains(m.OtherNames(), name) }) ||
		slices.ContainsFunc(c.Pools, func(p Pool) bool { return p.Name == name })
}

// ModelName returns the name of the model that has this name, alias or adapter. It returns name
// unchanged if no model in the file has it.
func (c *Config) ModelName(name string) string {
	for _, m := range c.Models {
		if m.Name == name || slices.Contains(m.OtherNames(), name) {
			return m.Name
		}
	}
	return name
}

func (c *Config) isAdapter(name string) bool {
	return slices.ContainsFunc(c.Models, func(m Model) bool { return slices.Contains(m.Adapters, name) })
}

// modelsOf returns the names of the models of the pool of this name, or the name of the model that
// has this name.
func (c *Config) modelsOf(name string) []string {
	for _, p := range c.Pools {
		if p.Name == name {
			return p.Models
		}
	}
	return []string{c.ModelName(name)}
}
