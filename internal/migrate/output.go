package migrate

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// output is the file that is written: settings at the top, then the lists.
type output struct {
	settings                                    *item
	registries, engines, tenants, models, pools []*item
	upstreams                                   []*item
	// notes are the head of the file.
	notes
	// keys holds the key of a server by the environment variable that it belongs into.
	keys map[string]string
}

func newOutput() *output { return &output{settings: newItem(), keys: map[string]string{}} }

// environmentReferences is how the other gateways name an environment variable.
var environmentReferences = regexp.MustCompile(`(?:^os\.environ/|\$\{env\.)(\w+)`)

// reserve keeps the environment variables that a value of the other configuration names from
// keyVariable.
func (o *output) reserve(value any) {
	switch v := value.(type) {
	case map[string]any:
		for _, inner := range v {
			o.reserve(inner)
		}
	case []any:
		for _, inner := range v {
			o.reserve(inner)
		}
	case string:
		for _, match := range environmentReferences.FindAllStringSubmatch(v, -1) {
			o.keys[match[1]] = v
		}
	}
}

// keyVariable returns the environment variable for the key of a server of this name. Different keys
// have different variables, and a key that several models have has one.
func (o *output) keyVariable(name, key string) string {
	for _, variable := range slices.Sorted(maps.Keys(o.keys)) {
		if o.keys[variable] == key {
			return variable
		}
	}
	base := variableName(name) + "_API_KEY"
	variable := base
	for n := 2; ; n++ {
		if _, ok := o.keys[variable]; !ok {
			o.keys[variable] = key
			return variable
		}
		variable = fmt.Sprintf("%s_%d", base, n)
	}
}

// keyWarning says what to do with the key of the server at address.
func keyWarning(address, variable string) string {
	return "the key of " + address + " was in the file: put it into $" + variable + " here"
}

// variableName returns the beginning of the name of an environment variable.
func variableName(name string) string {
	upper := strings.Trim(strings.ToUpper(regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(name, "_")), "_")
	if upper != "" && upper[0] <= '9' { // a variable begins with no digit
		return "_" + upper
	}
	return upper
}

// sprintf is fmt.Sprintf, but for lists and mappings of the other configuration: it writes these as
// YAML has them on one line.
func sprintf(format string, args ...any) string {
	for k, arg := range args {
		switch arg.(type) {
		case []any, map[string]any:
			text, _ := yaml.Marshal(inline(arg))
			args[k] = strings.TrimSpace(string(text))
		}
	}
	return fmt.Sprintf(format, args...)
}

// inline returns the node of a value, which has a list or a mapping on one line.
func inline(value any) *yaml.Node {
	node := new(yaml.Node)
	_ = node.Encode(value) // texts, numbers, and lists and maps of them: they always encode
	if node.Kind != yaml.ScalarNode {
		node.Style = yaml.FlowStyle
	}
	return node
}

// model returns the model of this name; nil if there is none.
func (o *output) model(name string) *item {
	for _, model := range o.models {
		if model.text("name") == name {
			return model
		}
	}
	return nil
}

func (o *output) isEmpty() bool { return len(o.models)+len(o.upstreams) == 0 }

// admitAll lets everybody on this machine call, because the other file has no keys in that field.
func (o *output) admitAll(field string) {
	o.note("no %s: Sluice listens on loopback only until tenants have keys here", field)
	o.settings.set("listen", "127.0.0.1:8080")
	o.settings.set("auth", flow("mode", "none"))
}

// dropTakenAliases removes the aliases that already stand for a model: an alias is one model here.
func (o *output) dropTakenAliases() {
	owners := map[string]*item{}
	for _, named := range slices.Concat(o.models, o.pools) {
		owners[named.text("name")] = named
	}
	for _, model := range o.models {
		aliases := model.field("aliases")
		if aliases == nil {
			continue
		}
		aliases.Content = slices.DeleteFunc(aliases.Content, func(alias *yaml.Node) bool {
			owner := owners[alias.Value]
			if owner == nil {
				owners[alias.Value] = model
			} else if owner != model {
				owned := "it is an alias of " + owner.text("name")
				if owner.text("name") == alias.Value {
					owned = "a model or a pool has this name"
				}
				model.note("the alias %s is left out: %s here", alias.Value, owned)
			}
			return owner != nil
		})
	}
}

func (o *output) file(kind Kind) (File, error) {
	o.dropTakenAliases()
	root := o.settings
	open := len(o.notes)
	for _, list := range []struct {
		key   string
		items []*item
	}{{"registries", o.registries}, {"engines", o.engines}, {"tenants", o.tenants}, {"models", o.models}, {"pools", o.pools}, {"upstreams", o.upstreams}} {
		for _, item := range list.items {
			open += len(item.notes)
		}
		if len(list.items) > 0 {
			root.set(list.key, list.items)
		}
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "# Made by sluice import from a configuration of %s. Comments with \"here\" name what has to be done by hand.\n", kind)
	for _, note := range o.notes {
		fmt.Fprintf(&text, "# %s\n", note)
	}
	text.WriteByte('\n')
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(root.node); err != nil {
		return File{}, err
	}
	return File{Text: text.String(), Open: open}, nil
}

// item is a mapping of the file, with comments above it.
type item struct {
	node *yaml.Node
	notes
}

func newItem() *item { return &item{node: &yaml.Node{Kind: yaml.MappingNode}} }

// notes are comments.
type notes []string

// comment returns a text that stays within its comment: without what ends a line of YAML, and
// without the control characters that YAML has nowhere.
func comment(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ReplaceAll(text, "\r\n", "\n"))
}

func (n *notes) note(format string, args ...any) {
	*n = append(*n, comment(sprintf(format, args...)))
}

func (n *notes) noteAll(comments []string) {
	for _, comment := range comments {
		n.note("%s", comment)
	}
}

// noteRest notes the fields of a mapping that are left.
func (n *notes) noteRest(where string, s source) {
	for _, key := range s.rest() {
		n.note("%s%s: no counterpart here", where, key)
	}
}

// field returns the value of a field; nil if it is missing.
func (i *item) field(key string) *yaml.Node {
	for k := 0; k+1 < len(i.node.Content); k += 2 {
		if i.node.Content[k].Value == key {
			return i.node.Content[k+1]
		}
	}
	return nil
}

// text returns the value of a field that is a scalar; empty if it is missing.
func (i *item) text(key string) string {
	if value := i.field(key); value != nil {
		return value.Value
	}
	return ""
}

// set adds a field. value is an item, a list of items with their notes above them, or what yaml can
// encode. Short lists and mappings of the latter are written on one line.
func (i *item) set(key string, value any) {
	var node *yaml.Node
	switch v := value.(type) {
	case *item:
		node = v.node
	case []*item:
		node = &yaml.Node{Kind: yaml.SequenceNode}
		for _, one := range v {
			one.node.HeadComment = strings.Join(one.notes, "\n")
			node.Content = append(node.Content, one.node)
		}
	default:
		node = inline(value)
	}
	i.node.Content = append(i.node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, node)
}

// flow returns a mapping on one line.
func flow(pairs ...any) *item {
	it := newItem()
	for k := 0; k+1 < len(pairs); k += 2 {
		it.set(pairs[k].(string), pairs[k+1])
	}
	it.node.Style = yaml.FlowStyle
	return it
}
