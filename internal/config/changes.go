package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// NeedsRestart returns the fields that differ in next and take effect only when Sluice is
// restarted, by their names in the file.
func (c *Config) NeedsRestart(next *Config) []string {
	var names []string
	walkRestart(reflect.ValueOf(c).Elem(), reflect.ValueOf(next).Elem(), func(name string, old, next reflect.Value) {
		if !reflect.DeepEqual(old.Interface(), next.Interface()) {
			names = append(names, name)
		}
	})
	return names
}

// WithoutRestart returns a copy of c whose fields that take effect only when Sluice is restarted
// have the values of started. Its File and its Hash are those of c.
func (c *Config) WithoutRestart(started *Config) *Config {
	result := *c
	walkRestart(reflect.ValueOf(started).Elem(), reflect.ValueOf(&result).Elem(), func(_ string, old, next reflect.Value) { next.Set(old) })
	return &result
}

// restartWalk is called for each field that takes effect only when Sluice is restarted, with its
// name in the file and its values in two configurations.
type restartWalk func(name string, old, next reflect.Value)

// walkRestart calls visit for the fields of two configurations.
func walkRestart(old, next reflect.Value, visit restartWalk) { visit.section(old, next, "", false) }

// section is walkRestart for a section, whose path ends with a dot. Its fields take effect at a
// restart if the section does, unless the tag of a field says otherwise.
func (visit restartWalk) section(old, next reflect.Value, path string, restart bool) {
	for i := range old.NumField() {
		field := old.Type().Field(i)
		name, waits := field.Tag.Get("yaml"), restart
		if tag := field.Tag.Get("restart"); tag != "" {
			waits = tag == "true"
		}
		switch {
		case name == "" || name == "-":
		case field.Type.Kind() == reflect.Struct:
			visit.section(old.Field(i), next.Field(i), path+name+".", waits)
		case waits:
			visit(path+name, old.Field(i), next.Field(i))
		}
	}
}

// Warnings returns what is probably a mistake in a valid file, one sentence each.
func (c *Config) Warnings() []string {
	var warnings []string
	switch {
	case c.Auth.Mode == AuthNone && c.Auth.Public:
		warnings = append(warnings, "auth.mode is none and auth.public is true: everybody who reaches listen may call")
	case c.Auth.Mode == AuthNone && len(c.Tenants) > 0:
		warnings = append(warnings, "auth.mode is none: everybody on this machine may call, and the tenants and their keys are ignored")
	case c.Auth.Mode == AuthKeys && len(c.Tenants) == 0:
		warnings = append(warnings, "auth.mode is keys and there is no tenant, so nobody may call: "+
			"put a tenant into the file, `sluice keys new --tenant NAME --print` prints its lines")
	}
	if j := c.Auth.JWT; j != nil && j.plainURL() {
		warnings = append(warnings, "auth.jwt.jwks_url has no TLS: anyone on the network path can add keys of his own and be any tenant")
	}
	warnings = append(warnings, c.emptyPools()...)
	warnings = append(warnings, c.expiredKeys(time.Now())...)
	if len(c.Models) == 0 && len(c.Upstreams) == 0 {
		warnings = append(warnings, "there is no model, and no upstream to discover models on: add models or upstreams")
	}
	for _, u := range c.servers() {
		if u.InsecureSkipVerify {
			warnings = append(warnings, u.Server()+" has insecure_skip_verify: anyone on the network path can read and change everything; set ca_file instead")
		}
	}
	return warnings
}

// emptyPools returns a warning for each tenant that may request a pool and none of its models.
func (c *Config) emptyPools() []string {
	var warnings []string
	for _, t := range c.Tenants {
		for _, p := range c.Pools {
			usable := func(model string) bool { return c.MayUse(t.Models, model) }
			if c.MayUse(t.Models, p.Name) && !slices.ContainsFunc(p.Models, usable) {
				warnings = append(warnings, fmt.Sprintf("tenant %s may request the pool %s and none of its models, so each request for the pool is refused: "+
					"add models of the pool to models of the tenant", t.Name, p.Name))
			}
		}
	}
	return warnings
}

// expiredKeys returns a warning for each key that has ended at a time.
func (c *Config) expiredKeys(now time.Time) []string {
	var warnings []string
	for _, t := range c.Tenants {
		for i, k := range t.Keys {
			if !k.Expires.IsZero() && !k.Expires.After(now) {
				warnings = append(warnings, fmt.Sprintf("tenants[%s].keys[%d] has expired at %s: remove it", t.Name, i, k.Expires.Format(time.RFC3339)))
			}
		}
	}
	return warnings
}

// servers returns the upstreams of the file and of its models, each once, sorted by name.
func (c *Config) servers() []Upstream {
	all := slices.Clone(c.Upstreams)
	for _, m := range c.Models {
		all = append(all, m.Upstreams...)
	}
	slices.SortStableFunc(all, func(a, b Upstream) int { return strings.Compare(a.Server(), b.Server()) })
	return slices.CompactFunc(all, func(a, b Upstream) bool { return a.Server() == b.Server() })
}

// Change is a part of the file that differs in another one.
type Change struct {
	// What is the field of the first level, in the singular for an item of a list: model, tenant,
	// listen. Name is the name of the item, and empty otherwise.
	What, Name string
	// Kind is added, changed or removed.
	Kind string
	// Fields are the fields that differ, as variables.ctx_size. It is empty unless Kind is changed.
	Fields []string
}

// The values of Change.Kind.
const (
	Added   = "added"
	Changed = "changed"
	Removed = "removed"
)

// Changes returns what differs in next, in the order of the fields, without the values.
func (c *Config) Changes(next *Config) []Change {
	var all []Change
	old, now := reflect.ValueOf(c).Elem(), reflect.ValueOf(next).Elem()
	for i := range old.NumField() {
		name := old.Type().Field(i).Tag.Get("yaml")
		if name == "" || name == "-" || reflect.DeepEqual(old.Field(i).Interface(), now.Field(i).Interface()) {
			continue
		}
		if key, ok := itemKey(old.Field(i).Type()); ok {
			all = append(all, itemChanges(strings.TrimSuffix(name, "s"), key, old.Field(i), now.Field(i))...)
			continue
		}
		all = append(all, Change{What: name, Kind: Changed, Fields: different(old.Field(i), now.Field(i), "")})
	}
	return all
}

// itemKey returns the index of the field that names the items of a list.
func itemKey(list reflect.Type) (int, bool) {
	if list.Kind() != reflect.Slice || list.Elem().Kind() != reflect.Struct {
		return 0, false
	}
	for i := range list.Elem().NumField() {
		f := list.Elem().Field(i)
		if tag := f.Tag.Get("yaml"); f.Type.Kind() == reflect.String && (tag == "name" || tag == "url") {
			return i, true
		}
	}
	return 0, false
}

// itemChanges compares two lists by the names of their items.
func itemChanges(what string, key int, old, now reflect.Value) []Change {
	var all []Change
	before := map[string]reflect.Value{}
	for i := range old.Len() {
		before[old.Index(i).Field(key).String()] = old.Index(i)
	}
	for i := range now.Len() {
		name := now.Index(i).Field(key).String()
		item, found := before[name]
		delete(before, name)
		if !found {
			all = append(all, Change{What: what, Name: name, Kind: Added})
		} else if fields := different(item, now.Index(i), ""); len(fields) > 0 {
			all = append(all, Change{What: what, Name: name, Kind: Changed, Fields: fields})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		all = append(all, Change{What: what, Name: name, Kind: Removed})
	}
	return all
}

// different returns the paths below at at which two values differ.
func different(a, b reflect.Value, at string) []string {
	if reflect.DeepEqual(a.Interface(), b.Interface()) {
		return nil
	}
	below := func(name string) string { return strings.TrimPrefix(at+"."+name, ".") }
	var all []string
	switch {
	case a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil():
		return different(a.Elem(), b.Elem(), at)
	case a.Kind() == reflect.Struct:
		for i := range a.NumField() {
			if name := a.Type().Field(i).Tag.Get("yaml"); name != "" && name != "-" {
				all = append(all, different(a.Field(i), b.Field(i), below(name))...)
			}
		}
		return all
	case a.Kind() == reflect.Map && a.Type().Key().Kind() == reflect.String:
		names := map[string]bool{}
		for _, key := range slices.Concat(a.MapKeys(), b.MapKeys()) {
			names[key.String()] = true
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			key := reflect.ValueOf(name).Convert(a.Type().Key())
			x, y := a.MapIndex(key), b.MapIndex(key)
			if !x.IsValid() || !y.IsValid() || !reflect.DeepEqual(x.Interface(), y.Interface()) {
				all = append(all, below(name))
			}
		}
		return all
	case at == "":
		return nil
	}
	return []string{at}
}
