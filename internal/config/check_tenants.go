package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// checkTenants checks names and keys of tenants, and that the models of a tenant exist.
func (k *checker) checkTenants() {
	var names, keys []named
	models := append(k.modelNames(), k.poolNames()...)
	for i := range k.config.Tenants {
		tenant, at := &k.config.Tenants[i], path{"tenants"}.item(i)
		names = append(names, named{tenant.Name, at.field("name")})
		k.checkName(at.field("name"), tenant.Name)
		k.checkBudgets(at.field("budgets"), tenant.Budgets, tenant.Models)
		keys = append(keys, k.checkKeys(at.field("keys"), tenant, models)...)
		for j, model := range tenant.Models {
			k.checkModelName(at.field("models").item(j), model, models)
		}
		k.checkKeyModels(at.field("keys"), tenant, models)
	}
	k.checkUnique(names)
	k.checkRepeated(keys, "key")
}

// checkKeys checks the keys of a tenant and gives the tenant's priority to those that have none. It
// returns the hashes that are valid. models are the names of all models and pools.
func (k *checker) checkKeys(at path, tenant *Tenant, models []string) []named {
	var hashes []named
	for i := range tenant.Keys {
		key, where := &tenant.Keys[i], at.item(i)
		k.checkKeyPriority(where.field("priority"), key, tenant.Priority)
		k.checkBudgets(where.field("budgets"), key.Budgets, tenant.Models, key.Models)
		if !ValidKeyName(key.Name) {
			k.faultf(where.field("name"), "must be at most %d bytes and not begin with sk-, as a key does", maxKeyName)
		}
		for j, model := range key.Models {
			k.checkModelName(where.field("models").item(j), model, models)
		}
		if key.Models != nil && len(key.Models) == 0 {
			k.faultf(where.field("models"), "must name at least one model, is empty: remove the key, or remove models if it may use all of its tenant")
		}
		field := where.field("hash")
		if !k.valid(where) || !k.valid(field) {
			continue
		}
		if k.isSet(field) {
			where = field
		}
		key.Hash = strings.ToLower(key.Hash)
		if k.checkHash(where, key.Hash, "sluice keys new") {
			hashes = append(hashes, named{key.Hash, where})
		}
	}
	return hashes
}

// checkKeyModels checks that a key with models of its own may use at least one of them. Where
// models are discovered, it is not known yet what the names stand for. A tenant without any model
// has been shut out, and its keys may stay as they are. models are the names of all models and
// pools.
func (k *checker) checkKeyModels(at path, tenant *Tenant, models []string) {
	unknown := func(name string) bool { return name != "*" && !slices.Contains(models, name) }
	if len(tenant.Models) == 0 || k.config.DiscoversModels() || slices.ContainsFunc(tenant.Models, unknown) {
		return
	}
	usable := func(name string) bool {
		return name == "*" || unknown(name) || k.config.MayUse(tenant.Models, name)
	}
	for i, key := range tenant.Keys {
		if where := at.item(i).field("models"); len(key.Models) > 0 && k.valid(where) && !slices.ContainsFunc(key.Models, usable) {
			k.faultf(where, "must name a model that the tenant may use: add %s to models of the tenant, or name another one", quoted(key.Models[0]))
		}
	}
}

// MayUse reports whether a list of models, as a tenant has it, permits the model, adapter or pool
// of this name.
func (c *Config) MayUse(models []string, name string) bool {
	return slices.ContainsFunc(models, func(m string) bool { return m == "*" || slices.Contains(c.Permits(m), c.Permits(name)[0]) })
}

// Permits returns the names that a tenant or key may use because its list of models has this name.
// The name is that of an adapter alone, of a model with its adapters, or of a pool. An alias stands
// for its model.
func (c *Config) Permits(name string) []string {
	for _, m := range c.Models {
		switch {
		case slices.Contains(m.Adapters, name):
			return []string{name}
		case m.Name == name || slices.Contains(m.Aliases, name):
			return append([]string{m.Name}, m.Adapters...)
		}
	}
	return []string{name}
}

// checkBudgets checks that each budget bounds something, and something that no other one does.
// lists are the lists of models of who has the budgets, as for WrongBudget.
func (k *checker) checkBudgets(at path, all []Budget, lists ...[]string) {
	for i, b := range all {
		where := at.item(i)
		if !k.valid(where) || !k.valid(where.field("soft")) || !k.valid(where.field("hard")) {
			continue
		}
		if field, message := k.config.WrongBudget(b, lists...); field != "" {
			k.faultf(where.field(field), "%s", message)
		} else if message != "" {
			k.faultf(where, "%s", message)
		}
		if slices.ContainsFunc(all[:i], func(o Budget) bool { return o.Per == b.Per && o.Of == b.Of }) {
			k.faultf(where, "there is a budget of %s per %s already: give it both soft and hard", b.Of, b.Per)
		}
	}
}

// WrongBudget says what is wrong with a budget whose fields have values that they may have, and in
// which field; an empty field stands for the whole budget. An empty message: nothing is wrong.
// lists are the lists of models of who has the budget: the tenant's, and the key's. An empty list
// leaves every model.
func (c *Config) WrongBudget(b Budget, lists ...[]string) (field, message string) {
	switch {
	case b.Soft == 0 && b.Hard == 0:
		return "", "needs soft, hard or both, above 0"
	case b.Hard > 0 && b.Soft > b.Hard:
		return "soft", "must not be above hard, which is " + strconv.FormatFloat(b.Hard, 'f', -1, 64)
	case b.Per == "month" && c.Usage.DailyDays < 31:
		return "per", fmt.Sprintf("is month, but usage.daily_days keeps %d days: a restart would forget the rest of the month", c.Usage.DailyDays)
	case b.Of == "cost" && !c.hasPrices():
		return "of", "is cost, but no model of the file has prices, so it would count nothing: give models prices, or bound tokens"
	case b.Of == "cost" && !c.hasPrices(lists...):
		return "of", "is cost, but no model that the tenant or key may use has prices, so it would count nothing: give one of them prices, or bound tokens"
	}
	return "", ""
}

// hasPrices reports whether the tokens of any model cost something that each of the lists permits.
// An empty list permits every model here: a tenant that has been shut out keeps its budgets. A
// model of a custom resource may come at any time, with prices.
func (c *Config) hasPrices(lists ...[]string) bool {
	return c.Kubernetes != nil && c.Kubernetes.CustomResources || slices.ContainsFunc(c.Models, func(m Model) bool {
		priced := m.Prices.Prompt > 0 || m.Prices.Completion > 0 || m.Prices.Cached != nil && *m.Prices.Cached > 0
		return priced && slices.ContainsFunc(c.Permits(m.Name), func(name string) bool {
			forbids := func(list []string) bool { return len(list) > 0 && !c.MayUse(list, name) }
			return !slices.ContainsFunc(lists, forbids)
		})
	})
}

// maxKeyName is the length of the longest name of a key, in bytes.
const maxKeyName = 100

// ValidKeyName reports whether a key may have this name. A key itself may have been written there
// by mistake.
func ValidKeyName(name string) bool {
	return len(name) <= maxKeyName && !strings.HasPrefix(name, "sk-")
}

// checkKeyPriority checks that the priority of a key is not higher than that of its tenant.
func (k *checker) checkKeyPriority(at path, key *Key, tenant Priority) {
	if !k.isSet(at) {
		key.Priority = tenant
		return
	}
	order := []Priority{Interactive, DefaultPriority, Batch}
	if own := slices.Index(order, key.Priority); own >= 0 && own < slices.Index(order, tenant) {
		k.faultf(at, "must be %s, which is the priority of the tenant, or lower, is %s: a key cannot raise the priority of its tenant", tenant, key.Priority)
	}
}

// checkHash checks the form of the hash of a key, which command prints. The text may be a key
// itself, so no message repeats it.
func (k *checker) checkHash(at path, hash, command string) bool {
	digits, ok := strings.CutPrefix(hash, "sha256:")
	if !ok || len(digits) != 64 || strings.Trim(digits, "0123456789abcdef") != "" {
		k.faultf(at, "must be sha256: and 64 hex digits, the hash that `%s` prints, never a key itself", command)
		return false
	}
	return true
}

// checkModelName checks that the model or pool exists. It accepts every name where models are
// discovered, because they are not known yet.
func (k *checker) checkModelName(at path, model string, known []string) {
	if !k.valid(at) || model == "*" || k.config.DiscoversModels() || slices.Contains(known, model) {
		return
	}
	k.faultf(at, "there is no model %s; %s", quoted(model), suggest(model, append(known, `"*"`)))
}

// DiscoversModels tells whether models may exist that are not in the file: on upstreams or in
// custom resources.
func (c *Config) DiscoversModels() bool {
	return len(c.Upstreams) > 0 || c.Kubernetes != nil && c.Kubernetes.CustomResources
}

// modelNames returns the names, aliases and adapters of all models.
func (k *checker) modelNames() []string {
	var names []string
	for _, m := range k.config.Models {
		names = append(names, m.Name)
		names = append(names, m.OtherNames()...)
	}
	return names
}

func (k *checker) tenantNames() []string {
	var names []string
	for _, t := range k.config.Tenants {
		names = append(names, t.Name)
	}
	return names
}
