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

// value reads a node into whatever v is. After a fault v keeps its zero value.
func (d *decoder) value(n *yaml.Node, v reflect.Value, at path, r rules) {
	if n = d.follow(n); n == nil {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), at, r)
	case reflect.Struct:
		if key, ok := v.Addr().Interface().(*Key); ok {
			d.key(n, key, at)
			return
		}
		if upstream, ok := v.Addr().Interface().(*Upstream); ok {
			d.server(n, upstream, at)
			return
		}
		d.structure(n, v, at)
	case reflect.Slice:
		d.list(n, v, at, r)
	case reflect.Map:
		d.mapping(n, v, at)
	case reflect.Interface:
		if value, ok := d.any(n, at); ok && value != nil {
			v.Set(reflect.ValueOf(value))
		}
	default:
		d.scalar(n, v, at, r)
	}
}

// key reads a Key: a mapping, or its hash alone. A key itself may stand there by mistake, even as the name of a field, so no message
// repeats a name.
func (d *decoder) key(n *yaml.Node, key *Key, at path) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if name := n.Content[i].Value; name != "hash" && name != "priority" {
				d.faultOn(n.Content[i].Line, at, "has an unknown field; known are hash, priority")
				return
			}
		}
		d.structure(n, reflect.ValueOf(key).Elem(), at)
	case yaml.ScalarNode:
		d.scalar(n, reflect.ValueOf(&key.Hash).Elem(), at, rules{})
	default:
		d.fault(at, "must be a hash or {hash, priority}, is %s", describe(n))
	}
}

// mapping reads a mapping whose names are free.
func (d *decoder) mapping(n *yaml.Node, v reflect.Value, at path) {
	entries := d.entries(n, at)
	v.Set(reflect.MakeMapWithSize(v.Type(), len(entries)))
	for name, entry := range entries {
		element := reflect.New(v.Type().Elem()).Elem()
		d.value(entry, element, at.field(name), rules{})
		if element.Kind() == reflect.Interface && element.IsNil() {
			continue
		}
		v.SetMapIndex(reflect.ValueOf(name).Convert(v.Type().Key()), element)
	}
}

// scalar reads a text, a number, a duration, a size or a truth value.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, at path, r rules) {
	message := ""
	switch v.Interface().(type) {
	case time.Duration:
		message = quantity(n, v, r, parseDuration)
	case Size:
		message = quantity(n, v, r, ParseSize)
	case PerReplica:
		message = perReplica(n, v)
	default:
		switch v.Kind() {
		case reflect.String:
			message = d.text(n, v, at, r)
		case reflect.Bool:
			message = boolean(n, v)
		case reflect.Int:
			message = integer(n, v, r)
		case reflect.Float64:
			message = float(n, v, r)
		}
	}
	if message != "" {
		d.fault(at, "%s", message)
	}
}

// text reads a string. Any scalar will do, as it is written: version: 0.10 is the text 0.10.
func (d *decoder) text(n *yaml.Node, v reflect.Value, at path, r rules) string {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		return "must be text, is " + describe(n)
	}
	if len(r.oneof) > 0 && !slices.Contains(r.oneof, n.Value) {
		if what, ok := d.later[at.pattern()+"="+n.Value]; ok {
			return shown(n.Value) + " is " + notYet(what)
		}
		return "must be one of " + strings.Join(r.oneof, ", ")
	}
	v.SetString(n.Value)
	return ""
}

func boolean(n *yaml.Node, v reflect.Value) string {
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

// mostInteger is the largest whole number a field may have: more than anything that is counted here.
const mostInteger = 1 << 40

func integer(n *yaml.Node, v reflect.Value, r rules) string {
	if n.ShortTag() != "!!int" {
		return "must be a whole number, is " + describe(n)
	}
	var number int
	if err := n.Decode(&number); err != nil || number > mostInteger {
		return "must be a whole number, and this one is too large"
	}
	if least, err := strconv.Atoi(r.least); err == nil && number < least {
		return "must be at least " + r.least + ", is " + strconv.Itoa(number)
	}
	if most, err := strconv.Atoi(r.most); err == nil && number > most {
		return "must be at most " + r.most + ", is " + strconv.Itoa(number)
	}
	v.SetInt(int64(number))
	return ""
}

func float(n *yaml.Node, v reflect.Value, r rules) string {
	var number float64
	tag := n.ShortTag()
	if tag != "!!int" && tag != "!!float" {
		return "must be a number, is " + describe(n)
	}
	if n.Decode(&number) != nil || math.IsNaN(number) || math.IsInf(number, 0) {
		return "must be a finite number"
	}
	if least, err := strconv.ParseFloat(r.least, 64); err == nil && number < least {
		return "must be at least " + r.least + ", is " + strconv.FormatFloat(number, 'g', -1, 64)
	}
	v.SetFloat(number)
	return ""
}

// quantity reads a number with a unit.
func quantity[T cmp.Ordered](n *yaml.Node, v reflect.Value, r rules, parse func(string) (T, error)) string {
	if n.Kind != yaml.ScalarNode {
		_, err := parse("")
		return err.Error() + ", is " + describe(n)
	}
	number, err := parse(n.Value)
	if err != nil {
		return err.Error() + ", is " + describe(n)
	}
	if least, err := parse(r.least); err == nil && number < least {
		return "must be at least " + r.least + ", is " + n.Value
	}
	v.Set(reflect.ValueOf(number))
	return ""
}

func perReplica(n *yaml.Node, v reflect.Value) string {
	if n.Kind == yaml.ScalarNode && n.Value == "auto" {
		v.SetInt(0)
		return ""
	}
	if integer(n, v, rules{least: "1"}) != "" {
		return "must be auto or a whole number from 1"
	}
	return ""
}

// any reads a value whose shape is free, as JSON would have it.
func (d *decoder) any(n *yaml.Node, at path) (any, bool) {
	if n = d.follow(n); n == nil {
		return nil, false
	}
	switch n.Kind {
	case yaml.MappingNode:
		return d.anyMapping(n, at), true
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for i, item := range n.Content {
			d.note(at.item(i), item.Line)
			value, _ := d.any(item, at.item(i))
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
			d.fault(at, "must be a number that JSON can hold")
			return nil, false
		}
		return value, true
	}
	return n.Value, true
}

func (d *decoder) anyMapping(n *yaml.Node, at path) map[string]any {
	values := map[string]any{}
	for name, entry := range d.entries(n, at) {
		if value, ok := d.any(entry, at.field(name)); ok {
			values[name] = value
		}
	}
	return values
}

// describe says what a node is without its value, which may be a secret.
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
