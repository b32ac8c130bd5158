package config

import (
	"reflect"
	"slices"
	"strings"
)

// NeedsRestart returns the fields that differ in next and take effect only when Sluice is
// restarted, by their names in the file.
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

// Warnings returns what is probably a mistake in a valid file, one sentence each.
func (c *Config) Warnings() []string {
	var warnings []string
	switch {
	case c.Auth.Mode == AuthNone && c.Auth.Public:
		warnings = append(warnings, "auth.mode is none and auth.public is true: everybody who reaches listen may call")
	case c.Auth.Mode == AuthNone && len(c.Tenants) > 0:
		warnings = append(warnings, "auth.mode is none: everybody on this machine may call, and the tenants and their keys are ignored")
	case c.Auth.Mode == AuthKeys && len(c.Tenants) == 0:
		warnings = append(warnings, "auth.mode is keys and there is no tenant, so nobody may call: make a key with `sluice keys new --tenant NAME`")
	}
	if j := c.Auth.JWT; j != nil && j.plainURL() {
		warnings = append(warnings, "auth.jwt.jwks_url has no TLS: anyone on the network path can add keys of his own and be any tenant")
	}
	if len(c.Models) == 0 && len(c.Upstreams) == 0 {
		warnings = append(warnings, "there is no model, and no upstream to discover models on: add models or upstreams")
	}
	for _, u := range c.servers() {
		if u.InsecureSkipVerify {
			warnings = append(warnings, u.URL+" has insecure_skip_verify: anyone on the network path can read and change everything; set ca_file instead")
		}
	}
	return warnings
}

// servers returns the upstreams of the file and of its models, each once, sorted by URL.
func (c *Config) servers() []Upstream {
	all := slices.Clone(c.Upstreams)
	for _, m := range c.Models {
		all = append(all, m.Upstreams...)
	}
	slices.SortStableFunc(all, func(a, b Upstream) int { return strings.Compare(a.URL, b.URL) })
	return slices.CompactFunc(all, func(a, b Upstream) bool { return a.URL == b.URL })
}
