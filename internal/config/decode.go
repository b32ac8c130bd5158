package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits on a file, so that aliases cannot make a small file arbitrarily large. They bound its
// depth, and the memory, in bytes, that the decoder uses to remember the lines of values.
const (
	maxDepth       = 100
	maxTracked     = 16 << 20
	trackedPerNode = 64
)

// decoder decodes YAML nodes into the structs of this package. It fills in defaults and collects
// every fault.
type decoder struct {
	file   string
	faults Faults
	// lines holds the line of each value, by path.key. A path that is not in lines is not set in
	// the file.
	lines map[string]int
	// itemNames holds, by path.key of a list item, the name that messages use for the item.
	itemNames map[string]string
	// faulty holds the keys of the paths that have a fault.
	faulty map[string]bool
	// trackedBytes is about how many bytes lines uses.
	trackedBytes int
	// objects holds the items that come from objects: the index of the object by path.key of its
	// item. faultObject holds, by index in faults, the object that a fault concerns. A fault of the
	// file itself is not in faultObject.
	objects     map[string]int
	faultObject map[int]int
	// incomplete tells that the file could not be decoded as a whole, so that checks of the whole
	// would report nonsense.
	incomplete bool
}

func newDecoder(file string) *decoder {
	return &decoder{file: file, lines: map[string]int{}, itemNames: map[string]string{}, faulty: map[string]bool{},
		faultObject: map[int]int{}}
}

// rules are the restrictions that the tags of a field put on its value.
type rules struct {
	min, max string
	oneof    []string
}

// faultf adds a fault at a path. Its line is that of the path, or of the nearest value around it.
func (d *decoder) faultf(at path, format string, args ...any) {
	d.faultOnLine(d.line(at), at, fmt.Sprintf(format, args...))
}

// faultOnLine adds a fault at a path, with a line of its own.
func (d *decoder) faultOnLine(line int, at path, message string) {
	d.faulty[at.key()] = true
	if len(at) > 1 {
		if object, ok := d.objects[at[:2].key()]; ok {
			d.faultObject[len(d.faults)] = object
		}
	}
	d.faults = append(d.faults, Fault{File: d.file, Line: line, Path: d.display(at), Message: message})
}

// valid tells whether the path has no fault so far, so that further checks of it make sense.
func (d *decoder) valid(at path) bool { return !d.faulty[at.key()] }

// isSet tells whether the file has a value at the path.
func (d *decoder) isSet(at path) bool {
	_, ok := d.lines[at.key()]
	return ok
}

// line returns the line of the path, or of the nearest value around it; 0 if there is none.
func (d *decoder) line(at path) int {
	for n := len(at); n >= 0; n-- {
		if line, ok := d.lines[at[:n].key()]; ok {
			return line
		}
	}
	return 0
}

// onLine returns " on line N,", or "" for a value that does not come from the file.
func (d *decoder) onLine(at path) string {
	if line := d.line(at); line > 0 {
		return fmt.Sprintf(" on line %d,", line)
	}
	return ""
}

// display writes a path for a message, with dots between names. Items of a list appear by name
// where they have one.
func (d *decoder) display(at path) string {
	var text strings.Builder
	for i, element := range at {
		name, named := d.itemNames[at[:i+1].key()]
		switch {
		case named:
			text.WriteString("[" + name + "]")
		case isItem(element):
			text.WriteString(element)
		default:
			if i > 0 {
				text.WriteByte('.')
			}
			text.WriteString(quoted(element))
		}
	}
	return text.String()
}

// recordLine remembers the line of a value, within the limits on a file.
func (d *decoder) recordLine(at path, line int) {
	if d.incomplete {
		return
	}
	key := at.key()
	if d.trackedBytes += len(key) + trackedPerNode; d.trackedBytes > maxTracked || len(at) > maxDepth {
		d.faultf(at, "the file is too large or too deep when its aliases are resolved: use fewer aliases")
		d.incomplete = true
		return
	}
	d.lines[key] = line
}

// resolveAlias returns the node that an alias stands for, or n. It returns nil once the file
// exceeds the limits.
func (d *decoder) resolveAlias(n *yaml.Node) *yaml.Node {
	if d.incomplete {
		return nil
	}
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// decodeStruct reads a mapping into a struct. A nil node is an absent mapping: all fields get their
// defaults.
func (d *decoder) decodeStruct(n *yaml.Node, v reflect.Value, at path) {
	entries := map[string]*yaml.Node{}
	if n != nil {
		entries = d.mappingEntries(n, at, fieldNames(v.Type())...)
		d.reportUnknown(n, entries, v.Type(), at)
	}
	mapping := n != nil && n.Kind == yaml.MappingNode
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name := field.Tag.Get("yaml")
		if name == "-" {
			continue
		}
		entry := entries[name]
		if entry == nil && mapping && field.Tag.Get("required") != "" {
			d.faultf(at.field(name), "required, and missing")
		}
		d.decodeField(entry, v.Field(i), at.field(name), field.Tag)
	}
}

// decodeField reads the value of a field, or sets the default of a field that is absent.
func (d *decoder) decodeField(n *yaml.Node, v reflect.Value, at path, tag reflect.StructTag) {
	if n == nil {
		n = defaultNode(tag)
	}
	r := rules{min: tag.Get("min"), max: tag.Get("max"), oneof: allowedValues(v.Type(), tag)}
	if n != nil {
		d.decodeValue(n, v, at, r)
	} else if v.Kind() == reflect.Struct {
		d.decodeStruct(nil, v, at)
	}
}

// enumerated is a type whose values are listed by a table instead of the tag oneof.
type enumerated interface {
	// allowedValues returns the values that the file may contain.
	allowedValues() []string
}

// allowedValues returns the only values that a field of type t may have; nil if every value is
// allowed.
func allowedValues(t reflect.Type, tag reflect.StructTag) []string {
	if e, ok := reflect.Zero(t).Interface().(enumerated); ok {
		return e.allowedValues()
	}
	if list := tag.Get("oneof"); list != "" {
		return strings.Split(list, ",")
	}
	return nil
}

// defaultNode returns the default of a field as a YAML node, or nil if the tag has no default. It
// panics on a default that is not YAML.
func defaultNode(tag reflect.StructTag) *yaml.Node {
	text, ok := tag.Lookup("default")
	if !ok {
		return nil
	}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		panic("config: default " + text + ": " + err.Error())
	}
	return document.Content[0]
}

// mappingEntries returns the values of a mapping by key. A field whose value is null counts as
// absent. fields are those that the mapping may have, for the message about another kind of value;
// none means any.
func (d *decoder) mappingEntries(n *yaml.Node, at path, fields ...string) map[string]*yaml.Node {
	entries := map[string]*yaml.Node{}
	if n.Kind != yaml.MappingNode {
		example := ""
		if len(fields) > 0 {
			example = " such as {" + strings.Join(fields[:min(2, len(fields))], ": …, ") + ": …}"
		}
		d.faultf(at, "must be a mapping%s, is %s", example, describe(n))
		return entries
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name, ok := d.keyText(key, at)
		if !ok {
			continue
		}
		if line, twice := first[name]; twice {
			d.faultOnLine(key.Line, at.field(name), fmt.Sprintf("given twice, first on line %d: remove one of them", line))
			continue
		}
		first[name] = key.Line
		if value.ShortTag() == "!!null" {
			continue
		}
		d.recordLine(at.field(name), key.Line)
		entries[name] = value
	}
	return entries
}

// keyText reads a key of a mapping, which must be text.
func (d *decoder) keyText(key *yaml.Node, at path) (string, bool) {
	message := ""
	switch {
	case key.ShortTag() == "!!merge":
		message = "merge keys (<<) are not supported: write the fields out"
	case key.Kind != yaml.ScalarNode:
		message = "the name of a field must be text, is " + describe(key)
	default:
		return key.Value, true
	}
	d.faultOnLine(key.Line, at, message)
	return "", false
}

func fieldNames(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// fieldBelow returns the path of a field of this name in one of the structs within the struct t; ""
// if there is none.
func fieldBelow(t reflect.Type, name string) string {
	for i := range t.NumField() {
		within, above := t.Field(i).Type, t.Field(i).Tag.Get("yaml")
		if within.Kind() == reflect.Struct && above != "-" && name != "" && slices.Contains(fieldNames(within), name) {
			return above + "." + name
		}
	}
	return ""
}

// reportUnknown reports the entries that the struct t has no field for.
func (d *decoder) reportUnknown(n *yaml.Node, entries map[string]*yaml.Node, t reflect.Type, at path) {
	known := fieldNames(t)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		if _, ok := entries[name]; !ok || slices.Contains(known, name) {
			continue
		}
		field := at.field(name)
		if below := fieldBelow(t, name); below != "" {
			d.faultf(field, "unknown field; did you mean %s?", below)
			continue
		}
		d.faultf(field, "unknown field; %s", suggest(name, known))
	}
}

func (d *decoder) decodeList(n *yaml.Node, v reflect.Value, at path, r rules) {
	if n.Kind != yaml.SequenceNode {
		hint := "write [ ] around it"
		if n.Kind == yaml.MappingNode {
			hint = "begin each item with a hyphen and a space"
		}
		d.faultf(at, "must be a list, is %s: %s", describe(n), hint)
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		where := at.item(i)
		d.recordLine(where, item.Line)
		if name := nameOf(item); name != "" && v.Type().Elem() != reflect.TypeFor[Key]() {
			d.itemNames[where.key()] = name
		}
		d.decodeValue(item, v.Index(i), where, r)
	}
}

// nameOf returns the name of a list item for messages: its field name or version, if it is fit to
// show.
func nameOf(n *yaml.Node) string {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i].Value, n.Content[i+1]
		if (key == "name" || key == "version") && value.Kind == yaml.ScalarNode && quoted(value.Value) == value.Value {
			return value.Value
		}
	}
	return ""
}
