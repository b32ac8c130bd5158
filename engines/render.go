package engines

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
)

// Launch is what one replica is started with. Its fields are what the templates of a Version's Command may name.
type Launch struct {
	// Name is the model's name, under which the engine serves it.
	Name string
	// Model is the model's source: a path, or an id that the engine resolves itself. Empty when the model names no source.
	Model string
	// Registry is the kind of registry that Model came from: "directory" (Model is a path), "huggingface" (Model is an id) or "".
	Registry string
	// Task that the replica serves; it selects the version's TaskVariables.
	Task Task
	// Host and Port are where the replica must listen.
	Host string
	Port int
	// GPUs is how many devices the replica sees: 1 also when it shares one, 0 when its model asks for none.
	GPUs int
	// Sluice is the path of our own binary, for engines that live in it.
	Sluice string
	// Variables are the model's own. Render adds the schema's defaults and the task's variables.
	Variables map[string]any
}

// launchFields are the names that a template may use, beside {{.Flags}}.
func launchFields() []string {
	return []string{"Name", "Model", "Registry", "Task", "Host", "Port", "GPUs", "Sluice", "Variables"}
}

// Render makes the command line of one replica: the program and its arguments, for exec, never for a shell.
//
// Each element of Command is a text/template over l. An element that is {{.Flags}} and nothing else becomes as many arguments
// as the variables need: every variable that no other element and no entry of Env names as {{.Variables.x}}, in order of name, in the
// version's FlagStyle. A template that names a variable which neither the model nor a default gives is an error, and so is
// {{.Model}} for a model without a source.
func (v Version) Render(l Launch) ([]string, error) {
	if len(v.Command) == 0 {
		return nil, errors.New("the engine version has no command")
	}
	l.Variables = v.Complete(l.Task, l.Variables)
	parsed, err := parseCommand(v.Command)
	if err != nil {
		return nil, err
	}
	if parsed.needsModel && l.Model == "" {
		return nil, errors.New("the command names {{.Model}}, and the model has no source")
	}
	for _, name := range parsed.variables {
		if _, ok := l.Variables[name]; !ok {
			return nil, fmt.Errorf("the command names {{.Variables.%s}}, and nothing gives that variable a value", name)
		}
	}
	env, err := v.envVariables()
	if err != nil {
		return nil, err
	}
	flags, err := v.Flags.flags(l.Variables, slices.Concat(parsed.variables, env))
	if err != nil {
		return nil, err
	}
	return parsed.execute(l, flags)
}

// Source tells what the command makes of a model's source: whether it names {{.Model}} at all, and whether it cannot do without.
func (v Version) Source() (used, needed bool) {
	parsed, err := parseCommand(v.Command)
	if err != nil {
		return false, false
	}
	return slices.Contains(parsed.fields, "Model"), parsed.needsModel
}

// command is a parsed Command.
type command struct {
	arguments  []*template.Template // nil stands for {{.Flags}}
	fields     []string             // of Launch, that some argument names
	variables  []string             // that some argument names
	needsModel bool                 // some argument holds a plain {{.Model}}
}

// parseCommand parses every argument and notes what they name. The error names the argument by its index.
func parseCommand(arguments []string) (*command, error) {
	c := &command{}
	for i, text := range arguments {
		if isFlags(text) {
			c.arguments = append(c.arguments, nil)
			continue
		}
		t, err := parseTemplate(fmt.Sprintf("command[%d]", i), text)
		if err != nil {
			return nil, err
		}
		c.arguments = append(c.arguments, t)
		c.needsModel = c.needsModel || printsModel(t)
		for _, field := range fieldsOf(t) {
			c.fields = append(c.fields, field[0])
		}
		c.variables = append(c.variables, variablesOf(t)...)
	}
	return c, nil
}

// parseTemplate parses one template over Launch. The error begins with the label.
func parseTemplate(label, text string) (*template.Template, error) {
	t, err := template.New(label).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, plain(err)
	}
	for _, field := range fieldsOf(t) {
		if !slices.Contains(launchFields(), field[0]) {
			return nil, fmt.Errorf("%s: {{.%s}} is unknown; known are %s, and {{.Flags}} as an argument of its own",
				label, field[0], strings.Join(launchFields(), ", "))
		}
	}
	return t, nil
}

// variablesOf lists the variables that a template names.
func variablesOf(t *template.Template) []string {
	var names []string
	for _, field := range fieldsOf(t) {
		if field[0] == "Variables" && len(field) > 1 {
			names = append(names, field[1])
		}
	}
	return names
}

// printsModel tells whether a template writes {{.Model}} out, under no condition.
func printsModel(t *template.Template) bool {
	if t.Tree == nil || t.Root == nil {
		return false
	}
	return slices.ContainsFunc(t.Root.Nodes, func(n parse.Node) bool {
		action, ok := n.(*parse.ActionNode)
		return ok && action.Pipe.String() == ".Model"
	})
}

func (c *command) execute(l Launch, flags []string) ([]string, error) {
	var line []string
	for _, t := range c.arguments {
		if t == nil {
			line = append(line, flags...)
			continue
		}
		var argument strings.Builder
		if err := t.Execute(&argument, l); err != nil {
			return nil, plain(err)
		}
		line = append(line, argument.String())
	}
	if len(line) == 0 || line[0] == "" {
		return nil, errors.New("command[0]: the program is empty")
	}
	return line, nil
}

// isFlags tells whether the argument is {{.Flags}} and nothing else.
func isFlags(argument string) bool {
	inner, opened := strings.CutPrefix(strings.TrimSpace(argument), "{{")
	inner, closed := strings.CutSuffix(inner, "}}")
	return opened && closed && strings.Trim(inner, " -") == ".Flags"
}

// plain takes the prefix "template: " off an error of text/template.
func plain(err error) error { return errors.New(strings.TrimPrefix(err.Error(), "template: ")) }

// fieldsOf lists the fields of Launch that a template names, each as its chain of names: {{.Variables.x}} is [Variables x].
func fieldsOf(t *template.Template) [][]string {
	w := walker{}
	if t.Tree != nil && t.Root != nil {
		w.walk(t.Root, true)
	}
	return w.found
}

// walker looks for fields in the tree of a template.
type walker struct{ found [][]string }

// walk looks below a node. launch tells that the dot stands for Launch; inside a range or a with only $ does.
func (w *walker) walk(node parse.Node, launch bool) {
	switch n := node.(type) {
	case *parse.FieldNode:
		if launch {
			w.found = append(w.found, n.Ident)
		}
	case *parse.VariableNode:
		if n.Ident[0] == "$" && len(n.Ident) > 1 {
			w.found = append(w.found, n.Ident[1:])
		}
	case *parse.ActionNode:
		w.walk(n.Pipe, launch)
	case *parse.ChainNode:
		w.walk(n.Node, launch)
	case *parse.ListNode:
		walkAll(w, n.Nodes, launch)
	case *parse.PipeNode:
		walkAll(w, n.Cmds, launch)
	case *parse.CommandNode:
		walkAll(w, n.Args, launch)
	case *parse.IfNode:
		w.branch(&n.BranchNode, launch, launch)
	case *parse.WithNode:
		w.branch(&n.BranchNode, launch, false)
	case *parse.RangeNode:
		w.branch(&n.BranchNode, launch, false)
	}
}

func walkAll[N parse.Node](w *walker, nodes []N, launch bool) {
	for _, node := range nodes {
		w.walk(node, launch)
	}
}

// branch looks into an if, with or range; body tells that the dot in its body stands for Launch.
func (w *walker) branch(n *parse.BranchNode, launch, body bool) {
	w.walk(n.Pipe, launch)
	w.walk(n.List, body)
	if n.ElseList != nil {
		w.walk(n.ElseList, launch)
	}
}
