package template

import (
	"errors"
	"fmt"
	"slices"
	"text/template/parse"
)

// arity is how many arguments a function takes.
type arity struct{ least, most int }

const unlimited = 1 << 30

// arities are the supported functions.
func arities() map[string]arity {
	return map[string]arity{"and": {1, unlimited}, "or": {1, unlimited}, "not": {1, 1}, "eq": {2, unlimited}, "ne": {2, 2}}
}

// checker walks a parse tree. It refuses what the evaluation does not support and collects the
// fields.
type checker struct {
	tree   *parse.Tree
	fields []Field
}

func (c *checker) fault(node parse.Node, format string, args ...any) error {
	return failure(c.tree, node, fmt.Errorf(format, args...))
}

// node checks a node of the text. isData tells that the dot is the Data there.
func (c *checker) node(node parse.Node, isData bool) error {
	switch n := node.(type) {
	case *parse.TextNode, *parse.CommentNode:
		return nil
	case *parse.ListNode:
		for _, item := range n.Nodes {
			if err := c.node(item, isData); err != nil {
				return err
			}
		}
		return nil
	case *parse.ActionNode:
		return c.pipe(n.Pipe, isData)
	case *parse.IfNode:
		return c.branch(&n.BranchNode, isData, isData)
	case *parse.WithNode:
		return c.branch(&n.BranchNode, isData, false)
	case *parse.RangeNode:
		return c.branch(&n.BranchNode, isData, false)
	}
	return c.fault(node, "this is not supported; text, fields, if, with and range are")
}

// branch checks an if, with or range. bodyIsData tells that the dot in its body is the Data.
func (c *checker) branch(n *parse.BranchNode, isData, bodyIsData bool) error {
	if err := c.pipe(n.Pipe, isData); err != nil {
		return err
	}
	if err := c.node(n.List, bodyIsData); err != nil || n.ElseList == nil {
		return err
	}
	return c.node(n.ElseList, isData)
}

func (c *checker) pipe(n *parse.PipeNode, isData bool) error {
	switch {
	case n.IsAssign:
		return c.fault(n, "an assignment with = is not supported; := declares a variable")
	case len(n.Cmds) != 1:
		return c.fault(n, "a pipeline with | is not supported; write the call with parentheses")
	}
	command := n.Cmds[0]
	first, args := command.Args[0], command.Args[1:]
	if function, ok := first.(*parse.IdentifierNode); ok {
		return c.call(command, function, isData)
	}
	if len(args) > 0 {
		return c.fault(command, "can't give argument to non-function %s", first)
	}
	return c.operand(first, isData)
}

func (c *checker) call(command *parse.CommandNode, function *parse.IdentifierNode, isData bool) error {
	args := command.Args[1:]
	switch a, ok := arities()[function.Ident]; {
	case !ok:
		return c.fault(command, "function %q is not supported; and, or, not, eq and ne are", function.Ident)
	case len(args) < a.least, len(args) > a.most:
		return c.fault(command, "wrong number of arguments for %s: %d", function.Ident, len(args))
	}
	for _, arg := range args {
		if err := c.operand(arg, isData); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) operand(node parse.Node, isData bool) error {
	switch n := node.(type) {
	case *parse.DotNode, *parse.StringNode, *parse.BoolNode:
		return nil
	case *parse.NumberNode:
		if _, err := number(n); err != nil {
			return failure(c.tree, n, err)
		}
		return nil
	case *parse.FieldNode:
		if isData {
			c.found(n, n.Ident)
		}
		return nil
	case *parse.VariableNode:
		if n.Ident[0] == "$" && len(n.Ident) > 1 {
			c.found(n, n.Ident[1:])
		}
		return nil
	case *parse.PipeNode:
		return c.pipe(n, isData)
	}
	return c.fault(node, "this is not supported as a value")
}

// found records that the template mentions a field of the Data.
func (c *checker) found(node parse.Node, names []string) {
	place, _ := c.tree.ErrorContext(node)
	c.fields = append(c.fields, Field{Names: slices.Clone(names), Place: place})
}

// number returns the value of a constant: a float64 if it is written with a point or an exponent,
// otherwise an int.
func number(n *parse.NumberNode) (any, error) {
	switch {
	case n.IsComplex:
		return nil, errors.New("a complex number is not supported")
	case n.IsInt && !isFloat(n.Text) && int64(int(n.Int64)) == n.Int64:
		return int(n.Int64), nil
	case n.IsFloat && isFloat(n.Text):
		return n.Float64, nil
	}
	return nil, fmt.Errorf("%s overflows int", n.Text)
}
