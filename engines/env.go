package engines

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-gateway/sluice/internal/template"
)

// RenderEnv makes what a replica's environment has beyond that of its launcher.
//
// Each value of Env is a template over l, in which a list of the variables is its items joined by commas and an object is JSON. An entry
// that names a variable which neither the model nor a default gives is left out: the engine then does as it does by itself.
func (v Version) RenderEnv(l Launch) (map[string]string, error) {
	given := v.Complete(l.Task, l.Variables)
	l.Variables = map[string]any{}
	for name, value := range given {
		text, err := wordOf(value)
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

// wordOf is a variable as a template prints it. Booleans and whole numbers stay what they are, for {{if}}.
func wordOf(value any) (any, error) {
	switch value.(type) {
	case []any, map[string]any, float64:
		return argument(value)
	}
	return value, nil
}

// lacks tells whether the template names a variable that nothing gives.
func lacks(t *template.Template, variables map[string]any) bool {
	return slices.ContainsFunc(variablesOf(t), func(name string) bool { return variables[name] == nil })
}

// envVariables are the variables that Env names, which therefore are no flags.
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
