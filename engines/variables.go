package engines

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// Fault is one thing that is wrong with a model's variables or with the definition of a version.
type Fault struct {
	// Path leads from the variables or the version to what is wrong.
	Path []string
	// Reason says what is wrong and what would be right. It contains no string value, because such
	// a value may be a secret.
	Reason string
	// Known lists the names that would be right if the last name of Path is unknown.
	Known []string
}

// Complete returns the variables that a replica is started with: the schema's defaults, overridden
// by the variables of the task, overridden by the model's own.
func (v Version) Complete(t Task, given map[string]any) map[string]any {
	all := map[string]any{}
	for name, property := range v.properties() {
		if schema, ok := property.(map[string]any); ok {
			if value, has := schema["default"]; has {
				all[name] = value
			}
		}
	}
	maps.Copy(all, v.TaskVariables[t])
	maps.Copy(all, given)
	return all
}

// properties returns the schemas of the variables by name.
func (v Version) properties() map[string]any {
	properties, _ := v.Schema["properties"].(map[string]any)
	return properties
}

// CheckVariables checks a model's variables against the schema. It returns every fault, in the
// order of their paths. Values are as decoded from YAML or JSON.
func (v Version) CheckVariables(t Task, given map[string]any) []Fault {
	all := v.Complete(t, given)
	faults := checkNames(all)
	schema, err := compile(v.schemaOf(all))
	if err != nil {
		return append(faults, Fault{Reason: "cannot be checked: " + err.Error()})
	}
	var invalid *jsonschema.ValidationError
	switch err := schema.Validate(all); {
	case errors.As(err, &invalid):
		faults = append(faults, v.collect(invalid)...)
	case err != nil:
		faults = append(faults, Fault{Reason: err.Error()})
	}
	for i, fault := range faults {
		faults[i].Reason += v.meaning(fault.Path)
	}
	slices.SortFunc(faults, func(a, b Fault) int {
		return cmp.Or(slices.Compare(a.Path, b.Path), cmp.Compare(a.Reason, b.Reason))
	})
	return faults
}

// schemaOf returns a schema that says of these variables what the version's own says of them. It is
// the version's schema without the properties of other variables, because compiling all of an
// engine takes milliseconds.
func (v Version) schemaOf(variables map[string]any) map[string]any {
	if len(v.properties()) == 0 {
		return v.Schema
	}
	for keyword := range v.Schema {
		if !slices.Contains([]string{"type", "properties", "additionalProperties", "required"}, keyword) {
			return v.Schema // a keyword that may refer to any property
		}
	}
	small := maps.Clone(v.Schema)
	properties := map[string]any{}
	for name := range variables {
		if property, ok := v.properties()[name]; ok {
			properties[name] = property
		}
	}
	if strings.Contains(fmt.Sprint(properties), "$") {
		return v.Schema // a reference to another property, perhaps
	}
	small["properties"] = properties
	return small
}

// ForReplicas returns the version as a launcher needs it for replicas with these variables: the
// schema has only variables that are given or have a default. Joined nodes are sent no more.
func (v Version) ForReplicas(given map[string]any) Version {
	kept := map[string]any{}
	for name, property := range v.properties() {
		keywords, _ := property.(map[string]any)
		_, hasDefault := keywords["default"]
		_, isGiven := given[name]
		_, isOpposite := given[strings.TrimPrefix(name, "no_")]
		if hasDefault || isGiven || isOpposite {
			kept[name] = property
		}
	}
	if v.Schema != nil {
		v.Schema = map[string]any{"type": "object", "properties": kept}
	}
	return v
}

// meaning returns the schema's description of the variable at the head of a path. It is added to
// what is wrong with the variable.
func (v Version) meaning(path []string) string {
	if len(path) == 0 {
		return ""
	}
	property, _ := v.properties()[path[0]].(map[string]any)
	if text, ok := property["description"].(string); ok && text != "" {
		return " (" + text + ")"
	}
	return ""
}

// checkNames rejects names that cannot be flags. Only an open schema lets them through.
func checkNames(variables map[string]any) []Fault {
	var faults []Fault
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if !isVariableName(name) {
			faults = append(faults, Fault{Path: []string{name},
				Reason: "cannot be a variable: a name is a letter followed by letters, digits, _ and -"})
		}
	}
	return faults
}

func isVariableName(name string) bool {
	for i, c := range []byte(name) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || !strings.ContainsRune("0123456789_-", rune(c))) {
			return false
		}
	}
	return name != ""
}

// noLoader prevents a schema from reading files or URLs by $ref.
type noLoader struct{}

func (noLoader) Load(string) (any, error) {
	return nil, errors.New("a $ref must point into the schema itself")
}

// compile prepares a schema of variables. nil allows everything.
func compile(schema map[string]any) (*jsonschema.Schema, error) {
	if schema == nil {
		schema = map[string]any{}
	}
	const url = "mem:///variables"
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	if err := c.AddResource(url, schema); err != nil {
		return nil, err
	}
	return c.Compile(url)
}

// collect flattens a validation error into the faults of its leaves.
func (v Version) collect(e *jsonschema.ValidationError) []Fault {
	at := func(names ...string) []string { return slices.Concat(e.InstanceLocation, names) }
	switch k := e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		return []Fault{{Path: at(), Reason: v.alternatives(e)}}
	case *kind.AdditionalProperties:
		var faults []Fault
		for _, name := range k.Properties {
			fault := Fault{Path: at(name), Reason: "unknown"}
			if len(e.InstanceLocation) == 0 {
				fault = v.unknown(name)
			}
			faults = append(faults, fault)
		}
		return faults
	case *kind.Required:
		var faults []Fault
		for _, name := range k.Missing {
			faults = append(faults, Fault{Path: at(name), Reason: "required, and missing"})
		}
		return faults
	}
	if len(e.Causes) == 0 {
		return []Fault{{Path: at(), Reason: reason(e.ErrorKind)}}
	}
	var faults []Fault
	for _, cause := range e.Causes {
		faults = append(faults, v.collect(cause)...)
	}
	return faults
}

// unknown is the fault of a variable that the schema lacks.
func (v Version) unknown(name string) Fault {
	if flag := flagOf(name); slices.Contains(v.ownedFlags(), flag) {
		return Fault{Path: []string{name}, Reason: v.refusal(flag)}
	}
	return Fault{Path: []string{name}, Reason: "unknown", Known: slices.Sorted(maps.Keys(v.properties()))}
}

// alternatives says why none of several schemas fits.
func (v Version) alternatives(e *jsonschema.ValidationError) string {
	if len(e.Causes) == 0 {
		return "fits more than one of the alternatives of its schema"
	}
	var reasons []string
	for _, cause := range e.Causes {
		for _, fault := range v.collect(cause) {
			if !slices.Contains(reasons, fault.Reason) {
				reasons = append(reasons, fault.Reason)
			}
		}
	}
	return strings.Join(reasons, ", or ")
}

// reason describes a fault of the schema.
func reason(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return fmt.Sprintf("must be %s, is %s", strings.Join(k.Want, " or "), k.Got)
	case *kind.Enum:
		return "must be one of " + list(k.Want)
	case *kind.Const:
		return "must be " + list([]any{k.Want})
	case *kind.Minimum:
		return fmt.Sprintf("must be at least %s, is %s", number(k.Want), number(k.Got))
	case *kind.Maximum:
		return fmt.Sprintf("must be at most %s, is %s", number(k.Want), number(k.Got))
	case *kind.ExclusiveMinimum:
		return fmt.Sprintf("must be more than %s, is %s", number(k.Want), number(k.Got))
	case *kind.ExclusiveMaximum:
		return fmt.Sprintf("must be less than %s, is %s", number(k.Want), number(k.Got))
	case *kind.MultipleOf:
		return fmt.Sprintf("must be a multiple of %s, is %s", number(k.Want), number(k.Got))
	case *kind.MinLength:
		return fmt.Sprintf("must have at least %d characters, has %d", k.Want, k.Got)
	case *kind.MinItems:
		return fmt.Sprintf("must have at least %d items, has %d", k.Want, k.Got)
	case *kind.Pattern:
		return "must match " + k.Want
	case *kind.FalseSchema:
		return "not allowed"
	}
	if keyword := strings.Join(k.KeywordPath(), "/"); keyword != "" {
		return "does not fit its schema (" + keyword + ")"
	}
	return "does not fit its schema"
}

func number(r *big.Rat) string {
	f, _ := r.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

func list(values []any) string {
	words := make([]string, len(values))
	for i, value := range values {
		words[i] = fmt.Sprint(value)
	}
	return strings.Join(words, ", ")
}
