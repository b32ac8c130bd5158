package engines

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/internal/template"
)

// Launch is what one replica is started with. Templates of a Version may name its fields.
type Launch struct {
	// Name is the model's name, under which the engine serves it.
	Name string
	// Model is the model's source: a path, or an id that the engine resolves itself. It is empty if
	// the model has no source.
	Model string
	// Registry is the kind of registry that Model comes from: "directory" (Model is a path),
	// "huggingface" (Model is an id) or "".
	Registry string
	// Task is what the replica serves. It selects the version's TaskVariables.
	Task Task
	// Host and Port are the address on which the replica must listen.
	Host string
	Port int
	// GPUs is the number of devices that the replica sees: 1 for a share, 0 if its model asks for
	// none.
	GPUs int
	// GPUShare is the share of its one GPU that a replica may use, less than 1. 0: all of its GPUs.
	GPUShare float64 `json:",omitzero"`
	// Sluice is the path of the program that runs, for engines that are part of it.
	Sluice string
	// Args are arguments of the model's own. Render passes them on as they are, after the flags of
	// the variables. nil: none.
	Args []string `json:",omitempty"`
	// Variables are the model's own. Render adds the schema's defaults and the task's variables.
	Variables map[string]any
}

// data returns what a template is executed with.
func (l Launch) data() template.Data {
	return template.Data{
		"Name": l.Name, "Model": l.Model, "Registry": l.Registry, "Task": string(l.Task), "Host": l.Host, "Port": l.Port,
		"GPUs": l.GPUs, "Sluice": l.Sluice, "Variables": l.Variables,
	}
}

// launchFields are the names of the fields that a template may use, besides {{.Flags}}.
func launchFields() []string {
	return []string{"Name", "Model", "Registry", "Task", "Host", "Port", "GPUs", "Sluice", "Variables"}
}

// Render returns the command line of one replica: the program and its arguments, for exec and never
// for a shell.
//
// Each element of Command is a template over l; package internal/template says what a template may
// hold. An element that is {{.Flags}} and nothing else becomes the flags of the variables that no
// other element and no entry of Env names as {{.Variables.x}}. The flags are in the order of the
// names of the variables and in the version's FlagStyle. The arguments of Launch.Args follow them,
// or end a command without {{.Flags}}. It is an error if a template names a variable that neither
// the model nor a default sets, or {{.Model}} for a model without a source.
func (v Version) Render(l Launch) ([]string, error) {
	if len(v.Command) == 0 {
		return nil, errors.New("the engine version has no command")
	}
	l.Variables = v.withGPUs(l, v.Complete(l.Task, l.Variables))
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
	var flags []string
	if slices.Contains(parsed.arguments, nil) {
		flags, err = v.Flags.flags(l.Variables, v.properties(), slices.Concat(parsed.variables, env))
	}
	if err != nil {
		return nil, err
	}
	return parsed.execute(l, slices.Concat(flags, l.Args))
}

// Source reports whether the command names {{.Model}}, and whether it requires a source.
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

// parseCommand parses every argument and collects the fields and variables that they name. An error
// begins with command[i].
func parseCommand(arguments []string) (*command, error) {
	c := &command{}
	for i, text := range arguments {
		if isFlags(text) {
			c.arguments = append(c.arguments, nil)
			continue
		}
		t, err := parseTemplate(fmt.Sprintf("command[%d]", i), text, launchFields(), ", and {{.Flags}} as an argument of its own")
		if err != nil {
			return nil, err
		}
		c.arguments = append(c.arguments, t)
		c.needsModel = c.needsModel || t.Prints("Model")
		for _, field := range t.Fields() {
			c.fields = append(c.fields, field.Names[0])
		}
		c.variables = append(c.variables, variablesOf(t)...)
	}
	return c, nil
}

// parseTemplate parses a template that may name only the known fields. An error begins with the
// label and the place in the template; hint ends the error about an unknown field.
func parseTemplate(label, text string, known []string, hint string) (*template.Template, error) {
	t, err := template.Parse(label, text)
	if err != nil {
		return nil, err
	}
	for _, field := range t.Fields() {
		if !slices.Contains(known, field.Names[0]) {
			return nil, fmt.Errorf("%s: {{.%s}} is unknown; known are %s%s", field.Place, field.Names[0], strings.Join(known, ", "), hint)
		}
	}
	return t, nil
}

// variablesOf lists the variables that a template names.
func variablesOf(t *template.Template) []string {
	var names []string
	for _, field := range t.Fields() {
		if field.Names[0] == "Variables" && len(field.Names) > 1 {
			names = append(names, field.Names[1])
		}
	}
	return names
}

// execute returns the command line. flags stand for {{.Flags}}, or end a command without it.
func (c *command) execute(l Launch, flags []string) ([]string, error) {
	var line []string
	data := l.data()
	for _, t := range c.arguments {
		if t == nil {
			line = append(line, flags...)
			continue
		}
		argument, err := t.Execute(data)
		if err != nil {
			return nil, err
		}
		line = append(line, argument)
	}
	if len(line) == 0 || line[0] == "" {
		return nil, errors.New("command[0]: the program is empty")
	}
	if !slices.Contains(c.arguments, nil) {
		line = append(line, flags...)
	}
	return line, nil
}

// isFlags reports whether the argument is {{.Flags}} and nothing else.
func isFlags(argument string) bool {
	inner, opened := strings.CutPrefix(strings.TrimSpace(argument), "{{")
	inner, closed := strings.CutSuffix(inner, "}}")
	return opened && closed && strings.Trim(inner, " -") == ".Flags"
}

// RenderKubernetes returns the YAML that the version merges over a Deployment. The template may
// name the fields of Launch and {{.Image}}. An error begins with "kubernetes:", the line and the
// column. It is a *template.MissingKeyError if a variable has no value.
func (v Version) RenderKubernetes(l Launch) (string, error) {
	t, err := parseTemplate("kubernetes", v.Kubernetes, append(launchFields(), "Image"), "")
	if err != nil {
		return "", err
	}
	l.Variables = v.Complete(l.Task, l.Variables)
	data := l.data()
	data["Image"] = v.Image
	return t.Execute(data)
}
