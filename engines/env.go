package engines

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-gateway/sluice/internal/template"
)

// RenderEnv returns what the environment of a replica has beyond that of its launcher.
//
// Each value of Env is a template over l. In it, a list is printed as its items joined by commas,
// and an object as JSON. An entry is left out if it names a variable that neither the model nor a
// default sets, so that the engine uses its own default.
func (v Version) RenderEnv(l Launch) (map[string]string, error) {
	given := v.Complete(l.Task, l.Variables)
	l.Variables = map[string]any{}
	for name, value := range given {
		value, err := asJSONText(value, v.properties()[name])
		if err != nil {
			return nil, fmt.Errorf("variables.%s: %w", name, err)
		}
		text, err := printable(value)
		if err != nil {
			return nil, fmt.Errorf("variables.%s: %w", name, err)
		}
		l.Variables[name] = text
	}
	env := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(v.Env)) {
		t, err := parseTemplate("env."+name, v.Env[name], launchFields(), "")
		if err != nil {
			return nil, err
		}
		if lacks(t, given) {
			continue
		}
		if env[name], err = t.Execute(l.data()); err != nil {
			return nil, err
		}
	}
	return env, nil
}

// printable returns a variable as a template prints it. Booleans and integers keep their types, so
// that {{if}} works.
func printable(value any) (any, error) {
	switch value.(type) {
	case []any, map[string]any, float64:
		return argument(value)
	}
	return value, nil
}

// lacks reports whether the template names a variable that has no value.
func lacks(t *template.Template, variables map[string]any) bool {
	return slices.ContainsFunc(variablesOf(t), func(name string) bool { return variables[name] == nil })
}

// envVariables returns the names of the variables that Env names. They are not passed as flags.
func (v Version) envVariables() ([]string, error) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(v.Env)) {
		t, err := parseTemplate("env."+name, v.Env[name], launchFields(), "")
		if err != nil {
			return nil, err
		}
		names = append(names, variablesOf(t)...)
	}
	return names, nil
}
