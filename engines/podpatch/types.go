package podpatch

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

var (
	podTemplate = reflect.TypeFor[corev1.PodTemplateSpec]()
	unmarshaler = reflect.TypeFor[json.Unmarshaler]()
)

// checker collects the faults of one patch.
type checker struct{ faults []Fault }

func (c *checker) faultf(at []string, format string, args ...any) {
	c.faults = append(c.faults, Fault{Path: at, Message: fmt.Sprintf(format, args...)})
}

// below returns the path of a part of the value at a path.
func below(at []string, name string) []string { return append(slices.Clip(at), name) }

// checkType reports unknown fields and values of a wrong type in the value of type t at a path.
// mergeKey is the field by which items of a list are matched; "" is a list that a patch replaces.
func (c *checker) checkType(at []string, value any, t reflect.Type, mergeKey string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case reflect.PointerTo(t).Implements(unmarshaler):
		c.checkScalar(at, value, t)
	case t.Kind() == reflect.Struct:
		c.checkStruct(at, value, t)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		c.checkList(at, value, t, mergeKey)
	case t.Kind() == reflect.Map:
		fields, ok := value.(map[string]any)
		if !ok {
			c.faultf(at, "must be a mapping")
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if !isDirective(name) {
				c.checkType(below(at, name), fields[name], t.Elem(), "")
			}
		}
	default:
		c.checkScalar(at, value, t)
	}
}

// checkStruct reports the faults of an object.
func (c *checker) checkStruct(at []string, value any, t reflect.Type) {
	fields, ok := value.(map[string]any)
	if !ok {
		c.faultf(at, "must be a mapping")
		return
	}
	known := fieldsOf(t)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		field, ok := known[name]
		switch {
		case isDirective(name):
		case !ok:
			c.faults = append(c.faults, Fault{Path: below(at, name), Known: slices.Sorted(maps.Keys(known))})
		default:
			mergeKey := ""
			if strings.Contains(field.Tag.Get("patchStrategy"), "merge") {
				mergeKey = field.Tag.Get("patchMergeKey")
			}
			c.checkType(below(at, name), fields[name], field.Type, mergeKey)
		}
	}
}

// checkList reports the faults of a list and of its items.
func (c *checker) checkList(at []string, value any, t reflect.Type, mergeKey string) {
	items, ok := value.([]any)
	if !ok {
		c.faultf(at, "must be a list")
		return
	}
	for i, item := range items {
		where := below(at, strconv.Itoa(i))
		object, _ := item.(map[string]any)
		if object[patchDirective] == "replace" && len(object) == 1 {
			continue // It tells that the other items replace the list.
		}
		c.checkType(where, item, t.Elem(), "")
		if mergeKey != "" && object != nil && object[mergeKey] == nil {
			c.faultf(where, "must have the field %s, by which the item is found in the list", mergeKey)
		}
	}
}

// checkScalar reports a value that does not fit the type.
func (c *checker) checkScalar(at []string, value any, t reflect.Type) {
	data, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(data, reflect.New(t).Interface())
	}
	if err == nil {
		return
	}
	switch t.Kind() {
	case reflect.String:
		c.faultf(at, "must be text, is %s", data)
	case reflect.Bool:
		c.faultf(at, "must be true or false, is %s", data)
	case reflect.Int32, reflect.Int64:
		c.faultf(at, "must be a whole number, is %s", data)
	default:
		c.faultf(at, "must be a %s, is %s", strings.ToLower(t.Name()), data)
	}
}

// fieldsOf returns the fields of a type of the API by their names in JSON. Fields of embedded types
// are among them.
func fieldsOf(t reflect.Type) map[string]reflect.StructField {
	fields := map[string]reflect.StructField{}
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous && (name == "" || strings.Contains(options, "inline")):
			maps.Copy(fields, fieldsOf(field.Type))
		case name != "" && name != "-":
			fields[name] = field
		}
	}
	return fields
}
