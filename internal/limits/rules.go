package limits

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/admission"
)

// rule says what a field may be. Its usual value is least: weight 1, and no limit for all others.
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

// of reads a value that may be missing.
func (r rule) valueIn(v Values, field string) int64 {
	if n, ok := v[field]; ok {
		return n
	}
	return r.min
}

type rules map[string]rule

// patchableLimits are the limits that can be changed at run time, by the kind of key. They are rows of
// admission.LimitTable.
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

// whole gives every field a value within its bounds: the file has been validated elsewhere, and perhaps less strictly. Nil stays nil.
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

// fresh is the record of something that was never patched.
func (rs rules) newRecord(file Values) Record {
	if file == nil {
		return Record{Values: rs.complete(Values{})}
	}
	return Record{Values: maps.Clone(file), File: maps.Clone(file)}
}

// mend gives the record every field, within its bounds: it may have been written by another version, or by hand. Fields that are not
// known here stay.
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

// patched lists the fields whose value is not the file's, sorted.
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

// check finds the first fault of a change, in the order of the fields' names.
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
