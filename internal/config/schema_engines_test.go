package config

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// engineRules returns the rules that check the models of each built-in engine. The file may define
// an engine of the same name, and then the schema does not know its versions.
func engineRules() []any {
	var names []any
	var rules []any
	for _, engine := range engines.Builtin() {
		names = append(names, engine.Name)
		redefined := object{"properties": object{"engines": object{"contains": with("name", engine.Name)}}, "required": []any{"engines"}}
		models := when(with("engine", engine.Name), object{"$ref": "#/definitions/" + engine.Name})
		rules = append(rules, when(object{"not": redefined}, object{"properties": object{"models": object{"items": models}}}))
	}
	known := object{"properties": object{"engine": object{"enum": names}}}
	return append(rules, when(object{"not": has("engines")}, object{"properties": object{"models": object{"items": known}}}))
}

// engineDefinitions returns the schemas of the models of each built-in engine, by its name.
func engineDefinitions() object {
	definitions := object{}
	for _, engine := range engines.Builtin() {
		definitions[engine.Name] = engineSchema(engine)
	}
	return definitions
}

// engineSchema returns what the schema says of a model with this engine: its versions, tasks and
// variables. Variables with the same rules in all versions that have them are there once, with the
// description of the newest of these versions.
func engineSchema(engine engines.Engine) object {
	shared := object{}
	differs := map[string]bool{}
	var names, patterns []any
	for _, v := range engine.Versions {
		for name, property := range variablesOf(v) {
			if other, ok := shared[name]; ok && !sameRules(other, property) {
				differs[name] = true
			}
			shared[name] = property
		}
		names = append(names, v.Version)
		patterns = append(patterns, object{"pattern": releasePattern(v.Version)})
	}
	maps.DeleteFunc(shared, func(name string, _ any) bool { return differs[name] })
	s := versionChain(slices.Clone(engine.Versions), differs)
	s["properties"] = object{
		"version":   object{"anyOf": append(patterns, object{"type": []any{"number", "boolean"}}), "examples": names},
		"variables": object{"properties": shared},
	}
	return s
}

// versionChain returns the schema of the versions, newest last. A model has the newest version at
// or below its own, and the last one if it names none.
func versionChain(versions []engines.Version, own map[string]bool) object {
	last := len(versions) - 1
	s := when(object{"properties": object{"version": releases(versions[last].Version)}}, versionSchema(versions[last], own))
	if last > 0 {
		s["else"] = versionChain(versions[:last], own)
	}
	return s
}

// versionSchema returns what the schema says of a model with this version. own are the variables
// whose schemas differ between versions.
func versionSchema(v engines.Version, own map[string]bool) object {
	properties, names := object{}, []any{}
	all := variablesOf(v)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if names = append(names, name); own[name] {
			properties[name] = all[name]
		}
	}
	var tasks []any
	for _, task := range v.Tasks {
		tasks = append(tasks, string(task))
	}
	variables := object{"propertyNames": object{"enum": names}, "properties": properties}
	s := object{"properties": object{"variables": variables, "task": object{"enum": tasks}}}
	if used, needed := v.Source(); needed {
		s["required"] = []any{"source"}
	} else if !used {
		s["properties"].(object)["source"] = false
	}
	return s
}

// sameRules reports whether two variables differ in nothing but their descriptions.
func sameRules(a, b any) bool {
	one, other := maps.Clone(a.(object)), maps.Clone(b.(object))
	delete(one, "description")
	delete(other, "description")
	return reflect.DeepEqual(one, other)
}

func variablesOf(v engines.Version) object {
	properties, _ := v.Schema["properties"].(object)
	return properties
}

// releases returns the schema of the releases at or above a version. A release that is no text,
// such as 0.10, has lost its last digits in YAML. So only the number of the version itself counts.
func releases(version string) object {
	s := object{"pattern": releasePattern(version), "type": "string"}
	if number, err := strconv.ParseFloat(version, 64); err == nil {
		return one(s, object{"const": number})
	}
	return s
}

// releasePattern returns a pattern of all releases at or above a version of the same kind. The
// catalogue compares the numbers of releases one after the other, see engines.Engine.Resolve.
func releasePattern(version string) string {
	digit := strings.IndexAny(version, "0123456789")
	kind, parts := version[:digit], strings.Split(version[digit:], ".")
	alternatives := []string{strings.Join(parts, `\.`)}
	for i, part := range parts {
		number, err := strconv.Atoi(part)
		if err != nil {
			panic(err)
		}
		alternatives = append(alternatives, strings.Join(append(slices.Clone(parts[:i]), above(number)), `\.`))
	}
	return "^v?" + regexp.QuoteMeta(kind) + "(" + strings.Join(alternatives, "|") + ")([^0-9].*)?$"
}

// above returns a pattern of the whole numbers above n.
func above(n int) string {
	digits := strconv.Itoa(n)
	alternatives := []string{fmt.Sprintf("[1-9][0-9]{%d,}", len(digits))}
	for i, digit := range digits {
		if digit < '9' {
			alternatives = append(alternatives, fmt.Sprintf("%s[%c-9]%s", digits[:i], digit+1, strings.Repeat("[0-9]", len(digits)-i-1)))
		}
	}
	return "(" + strings.Join(alternatives, "|") + ")"
}

// TestO7_ReleasesAgreeWithTheCatalogue checks that the schema finds the same version for a release
// as the catalogue.
func TestO7_ReleasesAgreeWithTheCatalogue(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"0.7", "0.8", "0.8.5", "0.9", "0.10", "0.11.2", "v0.11.0", "0.31.9", "0.32", "0.33", "0.33.1-rc.1", "0.100", "1", "1.0",
		"python-0.3", "python-0.2", "0.4.9", "0.4.10", "0.5", "0.5.5.post1", "0.5.22", "0.5.23", "0.6", "latest", ""} {
		for _, engine := range engines.Builtin() {
			want, _ := engine.Resolve(release)
			got := ""
			for _, v := range slices.Backward(engine.Versions) {
				if release == "" || regexp.MustCompile(releasePattern(v.Version)).MatchString(release) {
					got = v.Version
					break
				}
			}
			if got != want.Version {
				t.Errorf("%s %q: the schema says %q, the catalogue %q", engine.Name, release, got, want.Version)
			}
		}
	}
}
