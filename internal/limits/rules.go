package limits

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/admission"
)

// rule is the bounds of a limit. min is also its default: weight 1, and no limit for all others.
type rule struct{ min, max int64 }

func (r rule) check(v int64) string {
	switch {
	case v < r.min:
		return fmt.Sprintf("must be at least %d", r.min)
	case v > r.max:
		return fmt.Sprintf("must be at most %d", r.max)
	}
	return ""
}

// valueIn returns the value of a field, or the default if it is missing.
func (r rule) valueIn(v Values, field string) int64 {
	if n, ok := v[field]; ok {
		return n
	}
	return r.min
}

type rules map[string]rule

// patchableLimits are the limits that can be changed at run time, by the kind of key. They are rows
// of admission.LimitTable.
func patchableLimits() map[string]rules {
	kinds := map[string]rules{}
	for _, scope := range []admission.LimitScope{admission.ModelScope, admission.TenantScope} {
		rs := rules{}
		for _, l := range admission.LimitTable(scope) {
			if l.Patchable {
				rs[l.Name] = rule{l.Min, l.Max}
			}
		}
		kinds[string(scope)] = rs
	}
	return kinds
}

func kindOf(key string) string {
	kind, _, _ := strings.Cut(key, "/")
	return kind
}

// kindsOf returns the kinds of the keys of a file.
func kindsOf(file map[string]Values) map[string]bool {
	kinds := map[string]bool{}
	for key := range file {
		kinds[kindOf(key)] = true
	}
	return kinds
}

// complete returns all fields with values within their bounds. The file was validated elsewhere,
// and perhaps less strictly. nil stays nil.
func (rs rules) complete(v Values) Values {
	if v == nil {
		return nil
	}
	out := Values{}
	for field, r := range rs {
		out[field] = min(max(r.valueIn(v, field), r.min), r.max)
	}
	return out
}

// newRecord returns the record of a model or tenant without patches.
func (rs rules) newRecord(file Values) Record {
	if file == nil {
		return Record{Values: rs.complete(Values{})}
	}
	return Record{Values: maps.Clone(file), File: maps.Clone(file)}
}

// repair gives the record all fields, within their bounds: another version or a person may have
// written it. Unknown fields stay.
func (rs rules) repair(r *Record) {
	for field, rule := range rs {
		if len(r.File) > 0 {
			r.File[field] = min(max(rule.valueIn(r.File, field), rule.min), rule.max)
		}
		if v, ok := r.Values[field]; !ok || rule.check(v) != "" {
			r.Values[field] = rule.valueIn(r.File, field)
		}
	}
}

// patched returns the fields whose value is not that of the file, sorted.
func (rs rules) patched(r Record) []string {
	fields := []string{}
	for field, rule := range rs {
		if r.Values[field] != rule.valueIn(r.File, field) {
			fields = append(fields, field)
		}
	}
	slices.Sort(fields)
	return fields
}

// check returns the first fault of a change, in the order of the fields' names, or nil.
func (rs rules) check(changes map[string]*int64) *Invalid {
	for _, field := range slices.Sorted(maps.Keys(changes)) {
		rule, ok := rs[field]
		if !ok {
			return &Invalid{field, "is not a limit that can be changed; those are " + strings.Join(slices.Sorted(maps.Keys(rs)), ", ")}
		}
		if v := changes[field]; v != nil {
			if reason := rule.check(*v); reason != "" {
				return &Invalid{field, reason}
			}
		}
	}
	return nil
}
