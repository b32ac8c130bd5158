package config

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// decodeValue reads a node into v, whatever its type is. After a fault v keeps its zero value.
func (d *decoder) decodeValue(n *yaml.Node, v reflect.Value, at path, r rules) {
	if n = d.resolveAlias(n); n == nil {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decodeValue(n, v.Elem(), at, r)
	case reflect.Struct:
		switch to := v.Addr().Interface().(type) {
		case *Key:
			d.decodeKey(n, to, at)
		case *time.Time:
			d.decodeTime(n, to, at)
		case *Upstream:
			d.decodeShort(n, v, &to.URL, at)
		case *Redis:
			d.decodeShort(n, v, &to.URL, at)
		case *Control:
			d.decodeShort(n, v, &to.Nodes, at)
		default:
			d.decodeStruct(n, v, at)
		}
	case reflect.Slice:
		d.decodeList(n, v, at, r)
	case reflect.Map:
		d.decodeMap(n, v, at)
	case reflect.Interface:
		if value, ok := d.decodeAny(n, at); ok && value != nil {
			v.Set(reflect.ValueOf(value))
		}
	default:
		d.decodeScalar(n, v, at, r)
	}
}

// decodeShort reads a struct: a mapping, or the value of one of its fields alone.
func (d *decoder) decodeShort(n *yaml.Node, v reflect.Value, alone *string, at path) {
	if n.Kind == yaml.ScalarNode {
		d.decodeScalar(n, reflect.ValueOf(alone).Elem(), at, rules{})
		return
	}
	d.decodeStruct(n, v, at)
}

// decodeKey reads a Key: a mapping, or the hash alone. A key itself may have been written there by
// mistake, even as the name of a field, so no message repeats a name.
func (d *decoder) decodeKey(n *yaml.Node, key *Key, at path) {
	switch n.Kind {
	case yaml.MappingNode:
		known := fieldNames(reflect.TypeFor[Key]())
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !slices.Contains(known, n.Content[i].Value) {
				d.faultOnLine(n.Content[i].Line, at, "has an unknown field; known are "+strings.Join(known, ", "))
				return
			}
		}
		d.decodeStruct(n, reflect.ValueOf(key).Elem(), at)
	case yaml.ScalarNode:
		d.decodeScalar(n, reflect.ValueOf(&key.Hash).Elem(), at, rules{})
	default:
		d.faultf(at, "must be a hash or a mapping with hash, is %s", describe(n))
	}
}

// decodeTime reads a moment: a day and a time with its zone, or a day, which begins in UTC.
func (d *decoder) decodeTime(n *yaml.Node, moment *time.Time, at path) {
	if n.Kind == yaml.ScalarNode {
		for _, form := range []string{time.RFC3339, time.DateOnly} {
			if t, err := time.Parse(form, n.Value); err == nil {
				if t.IsZero() { // which stands for no time
					d.faultf(at, "must be later than %s", t.Format(time.DateOnly))
				}
				*moment = t.UTC()
				return
			}
		}
	}
	d.faultf(at, "must be a time such as 2027-01-31T18:00:00Z or 2027-01-31, is %s", describe(n))
}

// decodeMap reads a mapping with arbitrary keys into a map.
func (d *decoder) decodeMap(n *yaml.Node, v reflect.Value, at path) {
	entries := d.mappingEntries(n, at)
	v.Set(reflect.MakeMapWithSize(v.Type(), len(entries)))
	for name, entry := range entries {
		element := reflect.New(v.Type().Elem()).Elem()
		d.decodeValue(entry, element, at.field(name), rules{})
		if element.Kind() == reflect.Interface && element.IsNil() {
			continue
		}
		v.SetMapIndex(reflect.ValueOf(name).Convert(v.Type().Key()), element)
	}
}

// decodeScalar reads a text, a number, a duration, a size or a boolean.
func (d *decoder) decodeScalar(n *yaml.Node, v reflect.Value, at path, r rules) {
	message := ""
	switch v.Interface().(type) {
	case time.Duration:
		message = decodeQuantity(n, v, r, parseDuration)
	case Size:
		message = decodeQuantity(n, v, r, ParseSize)
	case PerReplica:
		message = decodePerReplica(n, v)
	default:
		switch v.Kind() {
		case reflect.String:
			message = decodeText(n, v, r)
		case reflect.Bool:
			message = decodeBool(n, v)
		case reflect.Int:
			message = decodeInt(n, v, r)
		case reflect.Float64:
			message = decodeFloat(n, v, r)
		}
	}
	if message != "" {
		d.faultf(at, "%s", message)
	}
}

// decodeText reads a string and returns the message of a fault, or "". Any scalar is accepted, as
// it is written: version: 0.10 is the text 0.10.
func decodeText(n *yaml.Node, v reflect.Value, r rules) string {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		return "must be text, is " + describe(n)
	}
	if len(r.oneof) > 0 && !slices.Contains(r.oneof, n.Value) {
		return "must be one of " + strings.Join(r.oneof, ", ") + ", is " + quoted(n.Value)
	}
	v.SetString(n.Value)
	return ""
}

// decodeBool reads a boolean and returns the message of a fault, or "".
func decodeBool(n *yaml.Node, v reflect.Value) string {
	var truth bool
	if n.ShortTag() != "!!bool" {
		return "must be true or false, is " + describe(n)
	}
	if n.Decode(&truth) != nil {
		return "must be true or false"
	}
	v.SetBool(truth)
	return ""
}

// maxInteger is the largest whole number that a field may have. It is larger than any count in the
// file needs to be.
const maxInteger = 1 << 40

// decodeInt reads a whole number and returns the message of a fault, or "".
func decodeInt(n *yaml.Node, v reflect.Value, r rules) string {
	if n.ShortTag() != "!!int" {
		return "must be a whole number, is " + describe(n)
	}
	var number int
	if err := n.Decode(&number); err != nil || number > maxInteger {
		return "must be a whole number of at most " + strconv.Itoa(maxInteger) + ", is larger"
	}
	if minimum, err := strconv.Atoi(r.min); err == nil && number < minimum {
		return "must be at least " + r.min + ", is " + strconv.Itoa(number)
	}
	if maximum, err := strconv.Atoi(r.max); err == nil && number > maximum {
		return "must be at most " + r.max + ", is " + strconv.Itoa(number)
	}
	v.SetInt(int64(number))
	return ""
}

// decodeFloat reads a number and returns the message of a fault, or "".
func decodeFloat(n *yaml.Node, v reflect.Value, r rules) string {
	var number float64
	tag := n.ShortTag()
	if tag != "!!int" && tag != "!!float" {
		return "must be a number, is " + describe(n)
	}
	if n.Decode(&number) != nil || math.IsNaN(number) || math.IsInf(number, 0) {
		return "must be a finite number"
	}
	if minimum, err := strconv.ParseFloat(r.min, 64); err == nil && number < minimum {
		return "must be at least " + r.min + ", is " + strconv.FormatFloat(number, 'g', -1, 64)
	}
	v.SetFloat(number)
	return ""
}

// decodeQuantity reads a number with a unit and returns the message of a fault, or "".
func decodeQuantity[T cmp.Ordered](n *yaml.Node, v reflect.Value, r rules, parse func(string) (T, error)) string {
	if n.Kind != yaml.ScalarNode {
		_, err := parse("")
		return err.Error() + ", is " + describe(n)
	}
	number, err := parse(n.Value)
	if err != nil {
		return err.Error() + ", is " + describe(n)
	}
	if minimum, err := parse(r.min); err == nil && number < minimum {
		return "must be at least " + r.min + ", is " + n.Value
	}
	if maximum, err := parse(r.max); err == nil && number > maximum {
		return "must be at most " + r.max + ", is " + n.Value
	}
	v.Set(reflect.ValueOf(number))
	return ""
}

// decodePerReplica reads a PerReplica and returns the message of a fault, or "".
func decodePerReplica(n *yaml.Node, v reflect.Value) string {
	if n.Kind == yaml.ScalarNode && n.Value == "auto" {
		v.SetInt(0)
		return ""
	}
	if decodeInt(n, v, rules{min: "1"}) != "" {
		return "must be auto or a whole number of at least 1, is " + describe(n)
	}
	return ""
}

// decodeAny reads a value of arbitrary shape, as JSON would represent it. The second result is
// false after a fault.
func (d *decoder) decodeAny(n *yaml.Node, at path) (any, bool) {
	if n = d.resolveAlias(n); n == nil {
		return nil, false
	}
	switch n.Kind {
	case yaml.MappingNode:
		return d.decodeAnyMap(n, at), true
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for i, item := range n.Content {
			d.recordLine(at.item(i), item.Line)
			value, _ := d.decodeAny(item, at.item(i))
			list = append(list, value)
		}
		return list, true
	}
	var value any
	switch n.ShortTag() {
	case "!!null":
		return nil, true
	case "!!bool", "!!int", "!!float":
		err := n.Decode(&value)
		if f, ok := value.(float64); err != nil || ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
			d.faultf(at, "must be a finite number")
			return nil, false
		}
		return value, true
	}
	return n.Value, true
}

// decodeAnyMap reads a mapping of arbitrary shape.
func (d *decoder) decodeAnyMap(n *yaml.Node, at path) map[string]any {
	values := map[string]any{}
	for name, entry := range d.mappingEntries(n, at) {
		if value, ok := d.decodeAny(entry, at.field(name)); ok {
			values[name] = value
		}
	}
	return values
}

// describe returns the kind of a node, without its value, which may be a secret.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a mapping"
	case yaml.AliasNode:
		return describe(n.Alias)
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!bool":
		return "true or false"
	case "!!int", "!!float":
		return "a number"
	}
	return "text"
}
