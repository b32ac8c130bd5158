package config

import "slices"

// pools checks that a pool's models exist, and replaces aliases by the names of their models. It returns the names of the pools.
func (k *checker) pools() []named {
	var names []named
	models, pools := k.modelNames(), k.poolNames()
	for i := range k.config.Pools {
		pool, at := &k.config.Pools[i], path{"pools"}.item(i)
		names = append(names, named{pool.Name, at.field("name")})
		k.name(at.field("name"), pool.Name)
		where := at.field("models")
		if len(pool.Models) == 0 && k.given(where) && k.sound(where) {
			k.fault(where, "must name at least one model")
		}
		var members []named
		for j, model := range pool.Models {
			if !k.poolModel(where.item(j), model, models, pools) {
				continue
			}
			pool.Models[j] = k.config.ModelName(model)
			members = append(members, named{pool.Models[j], where.item(j)})
		}
		k.repeated(members, "model")
	}
	return names
}

// poolModel checks that the model exists, as far as it can be known.
func (k *checker) poolModel(at path, model string, models, pools []string) bool {
	switch {
	case !k.sound(at):
		return false
	case slices.Contains(models, model):
		return true
	case model == "" || model == "*":
		k.fault(at, "must be the name or alias of a model")
	case slices.Contains(pools, model):
		k.fault(at, "%s is a pool; a pool has models only", shown(model))
	case k.discovers():
		return true
	default:
		k.fault(at, "there is no model %s; %s", shown(model), suggestion(model, models))
	}
	return false
}

func (k *checker) poolNames() []string {
	var names []string
	for _, p := range k.config.Pools {
		names = append(names, p.Name)
	}
	return names
}

// ModelName is the name of the model that goes by this name or alias; a name of no model stays.
func (c *Config) ModelName(name string) string {
	for _, m := range c.Models {
		if m.Name == name || slices.Contains(m.OtherNames(), name) {
			return m.Name
		}
	}
	return name
}
