package config

import (
	"maps"
	"reflect"
	"slices"

	"github.com/sluice-gateway/sluice/engines"
)

// inheritVersions fills in what the versions of an engine do not say, if the engine is a built-in
// one. at is the path of the versions.
func (k *checker) inheritVersions(at path, engine string, versions []EngineVersion) {
	builtin := engines.Builtin()
	for i := range versions {
		v, where := &versions[i], at.item(i)
		base, ok := engines.Find(builtin, engine, v.Version)
		if !ok {
			base, ok = engines.Find(builtin, engine, "")
		}
		if ok {
			v.Base = base
			k.inherit(where, reflect.ValueOf(v).Elem(), reflect.ValueOf(versionOf(base)))
			if !k.isSet(where.field("task_variables")) {
				v.TaskVariables = ofTasks(v.TaskVariables, v.Tasks)
			}
			if k.isSet(where.field("schema")) {
				k.fitInherited(where, v)
			}
		}
		for _, field := range []string{"tasks", "command"} {
			if !ok && !k.isSet(where.field(field)) && k.valid(where.field(field)) {
				k.faultf(where.field(field), "required, and missing")
			}
		}
	}
}

// inherit copies the fields of from to those fields of to that the file does not set. at is the
// path of to. A mapping or list that the file sets is not merged.
func (k *checker) inherit(at path, to, from reflect.Value) {
	for i := range to.NumField() {
		name := to.Type().Field(i).Tag.Get("yaml")
		switch where := at.field(name); {
		case name == "-" || name == "version":
		case to.Field(i).Kind() == reflect.Struct:
			k.inherit(where, to.Field(i), from.Field(i))
		case !k.isSet(where):
			to.Field(i).Set(from.Field(i))
		}
	}
}

// fitInherited brings what the version inherits in line with the schema that the file gives it. at
// is the path of the version. The variables that a task implies stay, because the engine does not
// serve the task without them. The variable that sets the slots is removed if no model can set it.
func (k *checker) fitInherited(at path, v *EngineVersion) {
	if !k.isSet(at.field("task_variables")) {
		for _, implied := range v.TaskVariables {
			for name := range implied {
				v.Schema = withProperty(v.Schema, name, v.Base.Schema)
			}
		}
	}
	if k.isSet(at.field("slots").field("variable")) {
		return
	}
	if name := v.Slots.Variable; v.Schema["additionalProperties"] != false {
		v.Schema = withProperty(v.Schema, name, v.Base.Schema)
	} else if propertiesOf(v.Schema)[name] == nil {
		v.Slots.Variable = ""
	}
}

// withProperty returns the schema. If it lacks the property, the result has that of from.
func withProperty(schema map[string]any, name string, from map[string]any) map[string]any {
	property, known := propertiesOf(from)[name]
	if _, has := propertiesOf(schema)[name]; has || !known || schema == nil {
		return schema
	}
	properties := map[string]any{name: property}
	maps.Copy(properties, propertiesOf(schema))
	schema = maps.Clone(schema)
	schema["properties"] = properties
	return schema
}

// propertiesOf returns the properties of a JSON Schema by name.
func propertiesOf(schema map[string]any) map[string]any {
	properties, _ := schema["properties"].(map[string]any)
	return properties
}

// ofTasks returns the variables of those tasks that are in the list.
func ofTasks(variables map[engines.Task]map[string]any, tasks []engines.Task) map[engines.Task]map[string]any {
	kept := maps.Clone(variables)
	maps.DeleteFunc(kept, func(t engines.Task, _ map[string]any) bool { return !slices.Contains(tasks, t) })
	return kept
}

// versionOf returns a version of the catalogue in the form of the file.
func versionOf(v engines.Version) EngineVersion {
	return EngineVersion{
		Version:       v.Version,
		Tasks:         v.Tasks,
		Schema:        v.Schema,
		TaskVariables: v.TaskVariables,
		Command:       v.Command,
		Flags:         FlagStyle(v.Flags),
		Env:           v.Env,
		Image:         v.Image,
		Kubernetes:    v.Kubernetes,
		PodHost:       v.PodHost,
		RayVariables:  v.RayVariables,
		MultiHost:     MultiHost(v.MultiHost),
		Ready:         ReadyProbe(v.Ready),
		Health:        HealthProbe(v.Health),
		Slots:         Slots(v.Slots),
		Metrics:       Metrics(v.Metrics),
		PrefillRate:   v.PrefillRate,
		Protocol:      Protocol(v.Protocol),
		RerankAPI:     RerankAPI(v.RerankAPI),
		Usage:         v.Usage,
		Routes:        converted[Route](v.Routes),
	}
}
