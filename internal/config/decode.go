package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds on a file, so that a small one cannot be blown up by aliases: on how deep it is, and on the bytes that the decoder keeps to
// know where each value stands.
const (
	maxDepth    = 100
	maxKept     = 16 << 20
	keptPerNode = 64
)

// decoder reads YAML nodes into the structs of this package and collects every fault on the way. It fills in defaults.
type decoder struct {
	file   string
	faults Faults
	later  map[string]string
	// lines holds, by path, where a value stands; a path that is not in it was not given.
	lines map[string]int
	// names holds, by path of a list item, the name that the item goes by in messages.
	names map[string]string
	// faulty holds the paths that have a fault already.
	faulty map[string]bool
	// kept is how many bytes lines takes, about.
	kept int
	// guests are the items, by the keys of their paths, that are not the file's own; guest tells of each fault that is about one whose it is,
	// by its place in faults.
	guests map[string]int
	guest  map[int]int
	// unreadable tells that not all of the file could be read, so that nothing can be said of the whole.
	unreadable bool
}

func newDecoder(file string) *decoder {
	return &decoder{file: file, later: later(), lines: map[string]int{}, names: map[string]string{}, faulty: map[string]bool{},
		guest: map[int]int{}}
}

// rules are what the tags of a field say of its value.
type rules struct {
	least, most string
	oneof       []string
}

// fault adds a fault at a path, on the line of the path or of what it is in.
func (d *decoder) fault(at path, format string, args ...any) {
	d.faultOn(d.line(at), at, fmt.Sprintf(format, args...))
}

// faultOn adds a fault at a path that stands on a line of its own.
func (d *decoder) faultOn(line int, at path, message string) {
	d.faulty[at.key()] = true
	if len(at) > 1 {
		if guest, ok := d.guests[at[:2].key()]; ok {
			d.guest[len(d.faults)] = guest
		}
	}
	d.faults = append(d.faults, Fault{File: d.file, Line: line, Path: d.display(at), Message: message})
}

// sound tells whether nothing has been found wrong at the path, so that looking closer makes sense.
func (d *decoder) sound(at path) bool { return !d.faulty[at.key()] }

// given tells whether the file has a value at the path.
func (d *decoder) given(at path) bool {
	_, ok := d.lines[at.key()]
	return ok
}

// line is where the path stands in the file, or else the nearest thing around it.
func (d *decoder) line(at path) int {
	for n := len(at); n >= 0; n-- {
		if line, ok := d.lines[at[:n].key()]; ok {
			return line
		}
	}
	return 0
}

// onLine says which line, where there is one: what does not come from the file has none.
func (d *decoder) onLine(at path) string {
	if line := d.line(at); line > 0 {
		return fmt.Sprintf(" on line %d,", line)
	}
	return ""
}

// display writes a path for people: list items by name where they have one.
func (d *decoder) display(at path) string {
	return at.join(func(i int) string {
		if name, ok := d.names[at[:i+1].key()]; ok {
			return "[" + name + "]"
		}
		if isItem(at[i]) {
			return at[i]
		}
		return shown(at[i])
	})
}

// note keeps where a value stands, within the bounds on a file.
func (d *decoder) note(at path, line int) {
	if d.unreadable {
		return
	}
	key := at.key()
	if d.kept += len(key) + keptPerNode; d.kept > maxKept || len(at) > maxDepth {
		d.fault(at, "the file is too large or too deep")
		d.unreadable = true
		return
	}
	d.lines[key] = line
}

// follow resolves an alias. It returns nil when the file has turned out to be too much.
func (d *decoder) follow(n *yaml.Node) *yaml.Node {
	if d.unreadable {
		return nil
	}
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// structure reads a mapping into a struct. A nil node stands for an absent one: all defaults.
func (d *decoder) structure(n *yaml.Node, v reflect.Value, at path) {
	entries := map[string]*yaml.Node{}
	if n != nil {
		entries = d.entries(n, at)
		d.unknown(n, entries, v.Type(), at)
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
			d.fault(at.field(name), "required, and missing")
		}
		d.field(entry, v.Field(i), at.field(name), field.Tag)
	}
}

// field reads the value of a field, or sets its default when it is absent.
func (d *decoder) field(n *yaml.Node, v reflect.Value, at path, tag reflect.StructTag) {
	if n == nil {
		n = defaultNode(tag)
	}
	r := rules{least: tag.Get("least"), most: tag.Get("most")}
	if list := tag.Get("oneof"); list != "" {
		r.oneof = strings.Split(list, ",")
	}
	if n != nil {
		d.value(n, v, at, r)
	} else if v.Kind() == reflect.Struct {
		d.structure(nil, v, at)
	}
}

// defaultNode is the default of a field as the file would have it.
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

// entries are the fields of a mapping by name. Fields that are null are as good as absent.
func (d *decoder) entries(n *yaml.Node, at path) map[string]*yaml.Node {
	entries := map[string]*yaml.Node{}
	if n.Kind != yaml.MappingNode {
		d.fault(at, "must be a mapping, is %s", describe(n))
		return entries
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name, ok := d.name(key, at)
		if !ok {
			continue
		}
		if line, twice := first[name]; twice {
			d.faultOn(key.Line, at.field(name), fmt.Sprintf("given twice, first on line %d", line))
			continue
		}
		first[name] = key.Line
		if value.ShortTag() == "!!null" {
			continue
		}
		d.note(at.field(name), key.Line)
		entries[name] = value
	}
	return entries
}

// name reads the key of a mapping.
func (d *decoder) name(key *yaml.Node, at path) (string, bool) {
	message := ""
	switch {
	case key.ShortTag() == "!!merge":
		message = "merge keys (<<) are not read: write the fields out"
	case key.Kind != yaml.ScalarNode:
		message = "the name of a field must be text, is " + describe(key)
	default:
		return key.Value, true
	}
	d.faultOn(key.Line, at, message)
	return "", false
}

// unknown reports the entries that the struct has no field for.
func (d *decoder) unknown(n *yaml.Node, entries map[string]*yaml.Node, t reflect.Type, at path) {
	var known []string
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "-" {
			known = append(known, name)
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		if _, ok := entries[name]; !ok || slices.Contains(known, name) {
			continue
		}
		field := at.field(name)
		if what, ok := d.later[field.pattern()]; ok {
			d.fault(field, "%s", notYet(what))
			continue
		}
		d.fault(field, "unknown field; %s", suggestion(name, known))
	}
}

// list reads a sequence into a slice.
func (d *decoder) list(n *yaml.Node, v reflect.Value, at path, r rules) {
	if n.Kind != yaml.SequenceNode {
		d.fault(at, "must be a list, is %s", describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		where := at.item(i)
		d.note(where, item.Line)
		if name := nameOf(item); name != "" && v.Type().Elem() != reflect.TypeFor[Key]() {
			d.names[where.key()] = name
		}
		d.value(item, v.Index(i), where, r)
	}
}

// nameOf is the name that a list item goes by in messages, if it has one that is fit to show.
func nameOf(n *yaml.Node) string {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i].Value, n.Content[i+1]
		if (key == "name" || key == "version") && value.Kind == yaml.ScalarNode && shown(value.Value) == value.Value {
			return value.Value
		}
	}
	return ""
}
