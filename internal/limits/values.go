package limits

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/sluice-gateway/sluice/admission"
)

// ModelKey returns the key of a model in Records.
func ModelKey(name string) string { return string(admission.ModelScope) + "/" + name }

// TenantKey returns the key of a tenant in Records.
func TenantKey(name string) string { return string(admission.TenantScope) + "/" + name }

// FromFile returns the values of all limits of a scope that structs of the configuration file hold.
// The field of a limit has the tag `yaml:"<name>"`. FromFile panics if no struct has the field,
// which is a fault of the program.
func FromFile(scope admission.LimitScope, structs ...any) Values {
	values := Values{}
	for _, l := range admission.LimitTable(scope) {
		v, ok := fileField(l.Name, structs)
		if !ok {
			panic(fmt.Sprintf("limits: no field of %T has the tag yaml:%q of a limit", structs, l.Name))
		}
		values[l.Name] = v
	}
	return values
}

// fileField finds the value of the integer field with this yaml name.
func fileField(name string, structs []any) (int64, bool) {
	for _, s := range structs {
		v := reflect.ValueOf(s)
		for i := range v.NumField() {
			tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
			if tag == name && v.Field(i).CanInt() {
				return v.Field(i).Int(), true
			}
		}
	}
	return 0, false
}

// Patchable returns the values of those limits that can be changed at run time, which is what Sync
// takes.
func (v Values) Patchable(scope admission.LimitScope) Values {
	out := Values{}
	for _, l := range admission.LimitTable(scope) {
		if value, ok := v[l.Name]; ok && l.Patchable {
			out[l.Name] = value
		}
	}
	return out
}

// SetModel writes the values into l. Limits without a value stay as they are.
func (v Values) SetModel(l *admission.Limits) {
	for _, row := range admission.LimitTable(admission.ModelScope) {
		if value, ok := v[row.Name]; ok {
			row.SetModel(l, value)
		}
	}
}

// SetTenant writes the values into l. Limits without a value stay as they are.
func (v Values) SetTenant(l *admission.TenantLimits) {
	for _, row := range admission.LimitTable(admission.TenantScope) {
		if value, ok := v[row.Name]; ok {
			row.SetTenant(l, value)
		}
	}
}
