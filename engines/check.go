package engines

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Check returns every fault in the definition of a version. Whether its command renders also
// depends on the model's variables; Render tells.
func (v Version) Check() []Fault {
	faults := v.checkSchema()
	if len(v.Command) == 0 {
		faults = append(faults, Fault{Path: []string{"command"}, Reason: "required: the program and its arguments"})
	} else if _, err := parseCommand(v.Command); err != nil {
		faults = append(faults, Fault{Path: []string{"command"}, Reason: err.Error()})
	}
	faults = append(faults, v.MultiHost.check()...)
	faults = append(faults, v.checkEnv()...)
	faults = append(faults, v.Ready.check("ready")...)
	faults = append(faults, v.Health.check("health")...)
	return append(faults, v.Metrics.check()...)
}

func (v Version) checkEnv() []Fault {
	var faults []Fault
	for _, name := range slices.Sorted(maps.Keys(v.Env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			faults = append(faults, Fault{Path: []string{"env", name}, Reason: "cannot be the name of an environment variable"})
		} else if _, err := parseTemplate("env."+name, v.Env[name], launchFields(), ""); err != nil {
			reason := "its line " + strings.TrimPrefix(err.Error(), "env."+name+":") // the path has the name already
			faults = append(faults, Fault{Path: []string{"env", name}, Reason: reason})
		}
	}
	return faults
}

func (p Probe) check(name string) []Fault {
	var faults []Fault
	if !strings.HasPrefix(p.Path, "/") {
		faults = append(faults, Fault{Path: []string{name, "path"}, Reason: "must begin with /"})
	}
	if p.Every <= 0 {
		faults = append(faults, Fault{Path: []string{name, "every"}, Reason: "must be more than 0s"})
	}
	return faults
}

func (v Version) checkSchema() []Fault {
	if v.Schema == nil {
		return nil
	}
	if _, err := compile(v.Schema); err != nil {
		return schemaFaults(err)
	}
	var faults []Fault
	if kind, ok := v.Schema["type"]; ok && kind != "object" {
		faults = append(faults, Fault{Path: []string{"schema", "type"}, Reason: "must be object: variables have names"})
	}
	if name := v.Slots.Variable; name != "" && v.properties()[name] == nil {
		faults = append(faults, Fault{Path: []string{"slots", "variable"},
			Reason: fmt.Sprintf("the schema has no variable %s", name)})
	}
	return faults
}

// schemaFaults says where a schema is not valid.
func schemaFaults(err error) []Fault {
	var refused *jsonschema.SchemaValidationError
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &refused) || !errors.As(refused.Err, &invalid) {
		return []Fault{{Path: []string{"schema"}, Reason: "is no JSON Schema: " + oneLine(err)}}
	}
	var faults []Fault
	for _, fault := range (Version{}).collect(invalid) {
		faults = append(faults, Fault{Path: append([]string{"schema"}, fault.Path...), Reason: fault.Reason})
	}
	return faults
}

// oneLine joins the lines of a message.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
