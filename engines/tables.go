package engines

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// tables are the variables that engines say they have: one file for each engine and version, with a
// row for each variable. scripts/engine-flags writes them.
//
//go:embed variables/*.tsv
var tables embed.FS

// tableRow is one variable of a table. All fields but name and kind may be empty.
type tableRow struct {
	name string
	// kind is a type, or several joined by |; see kindSchema.
	kind string
	// bounds are limits such as ">=1 <=8".
	bounds string
	// values are the only values, joined by commas.
	values string
	// standard is the engine's own default.
	standard string
	// env is the environment variable that the variable sets, for engines without flags.
	env string
}

// table returns the rows of a version of an engine, without the names. It panics if there is no
// such file: the files are part of the program.
func table(engine, version string) []tableRow {
	data, err := tables.ReadFile("variables/" + engine + "-" + version + ".tsv")
	if err != nil {
		panic(err)
	}
	_, text, _ := strings.Cut(string(data), "\n")
	var all []tableRow
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		cells = append(cells, make([]string, 6)...)
		all = append(all, tableRow{cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]})
	}
	return all
}

// withTable adds the variables of the version's table to its schema and, where they are set by the
// environment, to Env. What the schema says of a variable already is kept as far as it does not
// contradict the table. Flags that Sluice owns are left out.
func (v Version) withTable(engine string) Version {
	properties := v.properties()
	owned := v.ownedFlags()
	set := slices.Collect(maps.Keys(v.Env))
	for _, row := range table(engine, v.Version) {
		if slices.Contains(owned, flagOf(row.name)) {
			continue
		}
		hand, known := properties[row.name].(map[string]any)
		if row.env != "" && !known {
			if slices.Contains(set, row.env) {
				continue // under another name
			}
			v.Env[row.env] = "{{.Variables." + row.name + "}}"
		}
		properties[row.name] = described(row.schema(), hand)
		if negative := "no_" + row.name; row.kind == "switch" && properties[negative] == nil {
			properties[negative] = map[string]any{"type": "boolean", "description": "the opposite of " + row.name}
		}
	}
	return v
}

// schema returns the JSON Schema of a row.
func (r tableRow) schema() map[string]any {
	schema := map[string]any{}
	var types []string
	for kind := range strings.SplitSeq(r.kind, "|") {
		types = append(types, kindSchema(schema, kind)...)
	}
	slices.Sort(types)
	types = slices.Compact(types)
	if len(types) == 1 {
		schema["type"] = types[0]
	} else {
		schema["type"] = anySlice(types)
	}
	r.setValues(schema)
	for bound := range strings.FieldsSeq(r.bounds) {
		setBound(schema, bound)
	}
	if r.standard != "" {
		schema["description"] = "the engine's own default is " + r.standard
	}
	return schema
}

// kindSchema returns the JSON types of a kind and sets the keywords that belong to them. A list may
// also be given as one item. An object may be given as its JSON.
func kindSchema(schema map[string]any, kind string) []string {
	if item, ok := strings.CutPrefix(kind, "list"); ok {
		item = strings.TrimPrefix(item, " ")
		if item == "" || item == "string" {
			item = "string"
			schema["items"] = map[string]any{"type": []any{"string", "number"}}
		} else {
			schema["items"] = map[string]any{"type": item}
		}
		schema["minItems"] = 1
		return []string{"array", item}
	}
	switch kind {
	case "flag", "switch", "boolean":
		return []string{"boolean"}
	case "string":
		schema["minLength"] = 1
	case "object":
		return []string{"object", "string"}
	case "json":
		schema[asJSON] = jsonMedia
		return []string{"array", "object", "string"}
	}
	return []string{kind}
}

// A variable with this keyword is written as JSON, lists too.
const (
	asJSON    = "contentMediaType"
	jsonMedia = "application/json"
)

// setValues sets the only values of a variable, or of the items of a list.
func (r tableRow) setValues(schema map[string]any) {
	if r.values == "" {
		return
	}
	var values []any
	for value := range strings.SplitSeq(r.values, ",") {
		if n, err := strconv.Atoi(value); err == nil && r.kind == "integer" {
			values = append(values, n)
		} else {
			values = append(values, value)
		}
	}
	if strings.HasPrefix(r.kind, "list") {
		schema["items"] = map[string]any{"enum": values}
		return
	}
	delete(schema, "type")
	delete(schema, "minLength")
	schema["enum"] = values
}

// setBound sets the keyword of one bound, such as >=1.
func setBound(schema map[string]any, bound string) {
	for _, b := range []struct{ sign, keyword string }{
		{">=", "minimum"}, {"<=", "maximum"}, {">", "exclusiveMinimum"}, {"<", "exclusiveMaximum"},
	} {
		if text, ok := strings.CutPrefix(bound, b.sign); ok {
			if n, err := strconv.Atoi(text); err == nil {
				schema[b.keyword] = n
			} else if f, err := strconv.ParseFloat(text, 64); err == nil {
				schema[b.keyword] = f
			}
			return
		}
	}
}

// described returns the schema of a table with what was written by hand for the same variable. That
// is its description and default, and limits that the table does not know. The types are those of
// the table if they include the one that was written.
func described(found, hand map[string]any) map[string]any {
	if hand == nil {
		return found
	}
	if _, ok := hand["anyOf"]; ok {
		return hand
	}
	result := maps.Clone(hand)
	_, limited := hand["enum"]
	if values, ok := found["enum"]; ok {
		delete(result, "type")
		result["enum"] = values
	} else if types := found["type"]; !limited && fmt.Sprint(types) != fmt.Sprint(hand["type"]) && includes(types, hand["type"]) {
		result["type"] = types
	}
	for _, keyword := range []string{asJSON, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} {
		if value, ok := found[keyword]; ok && result[keyword] == nil {
			result[keyword] = value
		}
	}
	return result
}

// includes reports whether one of several types is this one.
func includes(types, one any) bool {
	list, ok := types.([]any)
	return ok && slices.Contains(list, one)
}

// anySlice returns the texts as a list of a schema.
func anySlice(texts []string) []any {
	list := make([]any, len(texts))
	for i, text := range texts {
		list[i] = text
	}
	return list
}
