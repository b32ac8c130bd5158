package config

import (
	"reflect"
	"slices"
	"strings"
)

// NeedsRestart names the fields that differ in next and take effect only when Sluice is started again, as the file has them.
func (c *Config) NeedsRestart(next *Config) []string {
	var names []string
	old, changed := reflect.ValueOf(c).Elem(), reflect.ValueOf(next).Elem()
	for i := range old.NumField() {
		field := old.Type().Field(i)
		if field.Tag.Get("restart") != "" && !reflect.DeepEqual(old.Field(i).Interface(), changed.Field(i).Interface()) {
			names = append(names, field.Tag.Get("yaml"))
		}
	}
	return names
}

// Warnings are things in a good file that are most likely not meant, a sentence each.
func (c *Config) Warnings() []string {
	var warnings []string
	switch {
	case c.Auth.Mode == AuthNone && len(c.Tenants) > 0:
		warnings = append(warnings, "auth.mode is none: everybody on this host may call, and the tenants and their keys are not looked at")
	case c.Auth.Mode == AuthKeys && len(c.Tenants) == 0:
		warnings = append(warnings, "auth.mode is keys and there is no tenant: nobody may call; `sluice keys new --tenant NAME` makes a key")
	}
	if len(c.Models) == 0 && len(c.Upstreams) == 0 {
		warnings = append(warnings, "there is no model and no upstream to find models on")
	}
	for _, u := range c.servers() {
		if u.InsecureSkipVerify {
			warnings = append(warnings, u.URL+" has insecure_skip_verify: whoever is on the way to it reads and changes everything")
		}
	}
	return warnings
}

// servers lists the upstreams of all lists, each once.
func (c *Config) servers() []Upstream {
	all := slices.Clone(c.Upstreams)
	for _, m := range c.Models {
		all = append(all, m.Upstreams...)
	}
	slices.SortStableFunc(all, func(a, b Upstream) int { return strings.Compare(a.URL, b.URL) })
	return slices.CompactFunc(all, func(a, b Upstream) bool { return a.URL == b.URL })
}
