// Package template evaluates the templates of engine versions: command lines, environments and
// parts of Deployments. The packages engines and engines/kubernetes use it.
//
// A template is written and works as in text/template, whose parser it goes through. The evaluator
// is our own, because the one of text/template calls methods by name. A program that does so keeps
// every exported method of every type it links: that made the binary of Sluice 40 MB larger.
//
// Supported are:
//   - text and trim markers, and {{/* comments */}}
//   - fields of the data and of maps: .Name, .Variables.x, $.Name
//   - constants: strings, numbers, true and false
//   - variables of the template: {{$x := .Name}}, {{range $key, $value := .Variables}}
//   - if, with and range over maps and lists, each with else
//   - the functions and, or, not, eq and ne, and expressions in parentheses as their arguments
//
// Parse refuses everything else with its place.
package template

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template/parse"
)

// Data is what a template is executed with: its fields by name.
//
// A value is nil, a bool, an int, an int64, a uint64, a float64, a string, an []any or a
// map[string]any. Decoders of YAML and JSON return these types. A value of another type can be
// printed, and counts as true.
type Data map[string]any

// Template is a parsed template. It is immutable; several goroutines may execute it at once.
type Template struct {
	tree   *parse.Tree
	fields []Field
}

// Field is one mention of a field of the Data in a template.
type Field struct {
	// Names is the chain of names: [Variables x] for {{.Variables.x}}.
	Names []string
	// Place is where the mention is: template:line:column.
	Place string
}

// Parse parses a template. The name stands in errors as the name of its file.
//
// An error begins with the name and the line, and with the column where it is known, and quotes the
// construct.
func Parse(name, text string) (*Template, error) {
	tree := parse.New(name)
	tree.Mode = parse.SkipFuncCheck // checker knows the functions
	defined := map[string]*parse.Tree{}
	if _, err := tree.Parse(text, "", "", defined); err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	for _, other := range slices.Sorted(maps.Keys(defined)) {
		if defined[other] != tree {
			return nil, failure(defined[other], defined[other].Root, errors.New("a template of its own is not supported"))
		}
	}
	c := checker{tree: tree}
	if err := c.node(tree.Root, true); err != nil {
		return nil, err
	}
	return &Template{tree: tree, fields: c.fields}, nil
}

// Fields lists the mentions of fields of the Data, in the order of the template. A field that is
// reached by a dot other than the Data, as in {{with .Variables}}{{.x}}{{end}}, is not listed.
func (t *Template) Fields() []Field { return t.fields }

// Prints tells whether the template writes the field, such as {{.Model}}, outside of every if, with
// and range.
func (t *Template) Prints(field string) bool {
	return slices.ContainsFunc(t.tree.Root.Nodes, func(n parse.Node) bool {
		action, ok := n.(*parse.ActionNode)
		return ok && action.Pipe.String() == "."+field
	})
}

// Execute returns the text that the template makes of the data. An error begins with the place of
// what failed. A map that lacks the key of a field is an error, a *MissingKeyError.
func (t *Template) Execute(data Data) (string, error) {
	e := evaluation{tree: t.tree, variables: []variable{{"$", data}}}
	if err := e.walk(data, t.tree.Root); err != nil {
		return "", err
	}
	return e.out.String(), nil
}

// MissingKeyError says that a template names a key which its map lacks.
type MissingKeyError struct{ Key string }

// Error implements error.
func (e *MissingKeyError) Error() string { return fmt.Sprintf("map has no entry for key %q", e.Key) }

// failure adds the place of a node, and the node itself, to what went wrong there.
func failure(tree *parse.Tree, node parse.Node, err error) error {
	place, construct := tree.ErrorContext(node)
	construct, _, _ = strings.Cut(construct, "\n")
	const longest = 60
	if len(construct) > longest {
		construct = construct[:longest] + "…"
	}
	return fmt.Errorf("%s: <%s>: %w", place, construct, err)
}
