package config

import (
	"slices"
	"strings"
)

// tenants checks names, keys, and that the models exist that a tenant may use.
func (k *checker) tenants() {
	var names, keys []named
	models := append(k.modelNames(), k.poolNames()...)
	for i := range k.config.Tenants {
		tenant, at := &k.config.Tenants[i], path{"tenants"}.item(i)
		names = append(names, named{tenant.Name, at.field("name")})
		k.name(at.field("name"), tenant.Name)
		keys = append(keys, k.keys(at.field("keys"), tenant)...)
		for j, model := range tenant.Models {
			k.tenantModel(at.field("models").item(j), model, models)
		}
	}
	k.unique(names)
	k.repeated(keys, "key")
}

// keys checks the keys of a tenant and gives the tenant's priority to those that have none. It returns the hashes that are sound.
func (k *checker) keys(at path, tenant *Tenant) []named {
	var hashes []named
	for i := range tenant.Keys {
		key, where := &tenant.Keys[i], at.item(i)
		k.keyPriority(where.field("priority"), key, tenant.Priority)
		field := where.field("hash")
		if !k.sound(where) || !k.sound(field) {
			continue
		}
		if k.given(field) {
			where = field
		}
		key.Hash = strings.ToLower(key.Hash)
		if k.keyHash(where, key.Hash) {
			hashes = append(hashes, named{key.Hash, where})
		}
	}
	return hashes
}

// keyPriority checks that a key does not go before its tenant.
func (k *checker) keyPriority(at path, key *Key, tenant Priority) {
	if !k.given(at) {
		key.Priority = tenant
		return
	}
	order := []Priority{Interactive, DefaultPriority, Batch}
	if own := slices.Index(order, key.Priority); own >= 0 && own < slices.Index(order, tenant) {
		k.fault(at, "must be the tenant's, which is %s, or a lower one, is %s: a key can only lower the priority of its tenant", tenant, key.Priority)
	}
}

// keyHash checks the form of a key's hash. What stands there may be a key itself, so no message repeats it.
func (k *checker) keyHash(at path, hash string) bool {
	digits, ok := strings.CutPrefix(hash, "sha256:")
	if !ok || len(digits) != 64 || strings.Trim(digits, "0123456789abcdef") != "" {
		k.fault(at, "must be sha256: and 64 hex digits, the hash that `sluice keys new` prints, never a key itself")
		return false
	}
	return true
}

// tenantModel checks that the model or pool exists. Where models are discovered nobody can know.
func (k *checker) tenantModel(at path, model string, known []string) {
	if !k.sound(at) || model == "*" || k.discovers() || slices.Contains(known, model) {
		return
	}
	k.fault(at, "there is no model %s; %s", shown(model), suggestion(model, append(known, `"*"`)))
}

// discovers tells whether there are models that are not in the file.
func (k *checker) discovers() bool {
	return len(k.config.Upstreams) > 0 || k.config.Kubernetes != nil && k.config.Kubernetes.CustomResources
}

// modelNames are the names and aliases of all models.
func (k *checker) modelNames() []string {
	var names []string
	for _, m := range k.config.Models {
		names = append(names, m.Name)
		names = append(names, m.OtherNames()...)
	}
	return names
}
