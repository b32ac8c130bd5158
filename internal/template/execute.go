package template

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"text/template/parse"
)

// evaluation is one execution of a template.
type evaluation struct {
	tree *parse.Tree
	out  strings.Builder
	// variables are those declared so far that are in scope; the last of a name counts. The first
	// is $.
	variables []variable
}

type variable struct {
	name  string // with its $
	value any
}

// walk writes what a node makes of the dot. Parse has refused the nodes that walk does not know.
func (e *evaluation) walk(dot any, node parse.Node) error {
	switch n := node.(type) {
	case *parse.TextNode:
		e.out.Write(n.Text)
	case *parse.ListNode:
		for _, item := range n.Nodes {
			if err := e.walk(dot, item); err != nil {
				return err
			}
		}
	case *parse.ActionNode:
		value, err := e.pipe(dot, n.Pipe)
		if err != nil || len(n.Pipe.Decl) > 0 {
			return err
		}
		return e.print(n, value)
	case *parse.IfNode:
		return e.branch(dot, &n.BranchNode, func(any) error { return e.walk(dot, n.List) })
	case *parse.WithNode:
		return e.branch(dot, &n.BranchNode, func(value any) error { return e.walk(value, n.List) })
	case *parse.RangeNode:
		return e.branch(dot, &n.BranchNode, func(value any) error { return e.loop(n, value) })
	}
	return nil
}

// branch runs the body with the value of the pipeline if that is true, and otherwise walks the else
// list with the dot. Variables that are declared inside go out of scope.
func (e *evaluation) branch(dot any, n *parse.BranchNode, body func(value any) error) error {
	outer := len(e.variables)
	defer func() { e.variables = e.variables[:outer] }()
	value, err := e.pipe(dot, n.Pipe)
	switch {
	case err != nil:
		return err
	case isTrue(value):
		return body(value)
	case n.NodeType == parse.NodeRange && !isCollection(value):
		return e.fail(n.Pipe, fmt.Errorf("range can't iterate over %v", value))
	case n.ElseList != nil:
		return e.walk(dot, n.ElseList)
	}
	return nil
}

// loop walks the body of a range for each item of a list or a map; the keys of a map are in order.
func (e *evaluation) loop(n *parse.RangeNode, value any) error {
	switch items := value.(type) {
	case []any:
		for i, item := range items {
			if err := e.iterate(n, i, item); err != nil {
				return err
			}
		}
		return nil
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(items)) {
			if err := e.iterate(n, key, items[key]); err != nil {
				return err
			}
		}
		return nil
	}
	return e.fail(n.Pipe, fmt.Errorf("range can't iterate over a value of type %T", value))
}

// iterate walks the body of a range once. The pipeline of the range has declared its variables
// already.
func (e *evaluation) iterate(n *parse.RangeNode, key, item any) error {
	inner := len(e.variables)
	switch len(n.Pipe.Decl) {
	case 1:
		e.variables[inner-1].value = item
	case 2:
		e.variables[inner-2].value, e.variables[inner-1].value = key, item
	}
	err := e.walk(item, n.List)
	e.variables = e.variables[:inner]
	return err
}

// pipe evaluates a pipeline and declares its variables.
func (e *evaluation) pipe(dot any, n *parse.PipeNode) (any, error) {
	value, err := e.command(dot, n.Cmds[0])
	if err != nil {
		return nil, err
	}
	for _, declared := range n.Decl {
		e.variables = append(e.variables, variable{declared.Ident[0], value})
	}
	return value, nil
}

func (e *evaluation) command(dot any, n *parse.CommandNode) (any, error) {
	function, ok := n.Args[0].(*parse.IdentifierNode)
	if !ok {
		return e.operand(dot, n.Args[0])
	}
	args := n.Args[1:]
	first, err := e.operand(dot, args[0])
	if err != nil {
		return nil, err
	}
	switch function.Ident {
	case "not":
		return !isTrue(first), nil
	case "eq", "ne":
		equal, err := e.equalsAny(dot, first, args[1:])
		if err != nil {
			return nil, e.fail(n, fmt.Errorf("error calling %s: %w", function.Ident, err))
		}
		return equal == (function.Ident == "eq"), nil
	}
	// "and" returns its first argument that is false, "or" the first that is true. Both return the
	// last if there is none, and do not evaluate the arguments behind the one that they return.
	for value, rest := first, args[1:]; ; rest = rest[1:] {
		if isTrue(value) == (function.Ident == "or") || len(rest) == 0 {
			return value, nil
		}
		if value, err = e.operand(dot, rest[0]); err != nil {
			return nil, err
		}
	}
}

// equalsAny tells whether the first value equals one of the arguments. All of them are evaluated.
func (e *evaluation) equalsAny(dot, first any, args []parse.Node) (bool, error) {
	values := make([]any, len(args))
	for i, arg := range args {
		var err error
		if values[i], err = e.operand(dot, arg); err != nil {
			return false, err
		}
	}
	for _, value := range values {
		if same, err := equal(first, value); same || err != nil {
			return same, err
		}
	}
	return false, nil
}

func (e *evaluation) operand(dot any, node parse.Node) (any, error) {
	switch n := node.(type) {
	case *parse.DotNode:
		return dot, nil
	case *parse.StringNode:
		return n.Text, nil
	case *parse.BoolNode:
		return n.True, nil
	case *parse.NumberNode:
		return number(n)
	case *parse.FieldNode:
		return e.fields(n, dot, n.Ident)
	case *parse.VariableNode:
		return e.fields(n, e.variable(n.Ident[0]), n.Ident[1:])
	case *parse.PipeNode:
		return e.pipe(dot, n)
	}
	return nil, e.fail(node, errors.New("this is not supported as a value"))
}

// variable returns the value of a variable. The parser has refused names that are not declared.
func (e *evaluation) variable(name string) any {
	for _, v := range slices.Backward(e.variables) {
		if v.name == name {
			return v.value
		}
	}
	return nil
}

// fields follows a chain of field names from a value on.
func (e *evaluation) fields(node parse.Node, value any, names []string) (any, error) {
	for _, name := range names {
		var ok bool
		switch v := value.(type) {
		case map[string]any:
			if value, ok = v[name]; !ok {
				return nil, e.fail(node, &MissingKeyError{Key: name})
			}
		case Data:
			if value, ok = v[name]; !ok {
				return nil, e.fail(node, fmt.Errorf("can't evaluate field %s", name))
			}
		case nil:
			return nil, e.fail(node, fmt.Errorf("nil data; no entry for key %q", name))
		default:
			return nil, e.fail(node, fmt.Errorf("can't evaluate field %s in type %T", name, value))
		}
	}
	return value, nil
}

func (e *evaluation) print(node parse.Node, value any) error {
	switch value.(type) {
	case Data:
		return e.fail(node, errors.New("can't print all fields at once; name one"))
	case nil:
		value = "<no value>"
	}
	fmt.Fprint(&e.out, value)
	return nil
}

func (e *evaluation) fail(node parse.Node, err error) error { return failure(e.tree, node, err) }

// isTrue tells whether a value counts as true: it is neither nil, false, 0 nor empty.
func isTrue(value any) bool {
	switch v := value.(type) {
	case nil:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case int64:
		return v != 0
	case uint64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

// isCollection tells whether range accepts a value. It accepts nil as an empty collection.
func isCollection(value any) bool {
	switch value.(type) {
	case nil, []any, map[string]any:
		return true
	}
	return false
}

// equal compares two values. Integers of different types compare by their value; nil equals only
// nil. Other values of different types cannot be compared, and neither can lists and maps.
func equal(a, b any) (bool, error) {
	if a == nil || b == nil {
		return a == nil && b == nil, nil
	}
	a, b = integer(a), integer(b)
	switch a.(type) {
	case int64, uint64:
		switch b.(type) {
		case int64, uint64:
			return a == b, nil
		}
	case string, bool, float64:
		if reflect.TypeOf(a) == reflect.TypeOf(b) {
			return a == b, nil
		}
	}
	return false, fmt.Errorf("incompatible types for comparison: %T and %T", a, b)
}

// integer returns an integer as int64, or as uint64 if it is too large for that. Other values stay
// what they are.
func integer(value any) any {
	switch v := value.(type) {
	case int:
		return int64(v)
	case uint64:
		if v <= math.MaxInt64 {
			return int64(v)
		}
	}
	return value
}

// isFloat tells whether a constant is written as a floating-point number.
func isFloat(text string) bool {
	if strings.HasPrefix(text, "'") {
		return false
	}
	if isHex := len(text) > 2 && text[0] == '0' && text[1]|0x20 == 'x'; isHex {
		return strings.ContainsAny(text, "pP")
	}
	return strings.ContainsAny(text, ".eEpP")
}
