package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write golden files")

const schemaFile = "../../examples/sluice.schema.json"

// TestSchemaIsCurrent checks that the committed JSON Schema is the one generated from the structs:
// their fields, tags and doc comments.
func TestSchemaIsCurrent(t *testing.T) {
	t.Parallel()
	golden(t, schemaFile, schema(t))
}

// golden compares got with a golden file. With -update it writes the file first.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s differs from the generated text; to write it: go test ./internal/config -update\n%s", file, diff)
	}
}

func TestExamplesFitTheSchema(t *testing.T) {
	t.Parallel()
	check := compiled(t)
	for _, file := range append(examples(t), "testdata/full.yaml") {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := check.Validate(decoded(t, data)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if file != "testdata/full.yaml" && !strings.HasPrefix(string(data), "# yaml-language-server: $schema=../sluice.schema.json\n") {
			t.Errorf("%s does not name its schema in the first line", file)
		}
	}
}

// TestSchemaRefusesWhatParseRefuses checks files that the schema and Parse must both refuse.
func TestSchemaRefusesWhatParseRefuses(t *testing.T) {
	t.Parallel()
	check := compiled(t)
	for _, file := range []string{
		"lisen: 127.0.0.1:8080",
		"auth: {mode: nobody}",
		"max_body: 3 parsecs",
		"drain_timeout: 30",
		"models: [{task: embedding}]",
		"models: [{name: a, replicas: {min: -1}}]",
		"models: [{name: a, admission: {max_per_replica: none}}]",
		"models: [{name: a, routing: {load_factor: 0.5}}]",
		"models: [{name: a, aliases: b}]",
		"models: [{name: a, launcher: nobody}]",
		"models: [{name: a, placement: alphabetical}]",
		"models: [{name: a, resources: {gpu: -1}}]",
		"models: [{name: a, resources: {memory: 16Gb}}]",
		"models: [{name: a, admission: {weight: 0}}]",
		"tenants: [{name: a, keys: [[]]}]",
		"tenants: [{name: a, keys: [{priority: batch}]}]",
		"tenants: [{name: a, keys: [{hash: 'sha256:', priority: urgent}]}]",
		"tenants: [{name: a, weight: 0}]",
		"tenants: [{name: a, priority: high}]",
		"tenants: [{name: a, limits: {tokens_per_minute: -1}}]",
		"upstreams: [{headers: {a: b}}]",
		"upstreams: [{url: http://h, key: b}]",
		"upstreams: [[http://h]]",
		"pools: [{name: a}]",
		"pools: [{name: a, models: b}]",
	} {
		if err := check.Validate(decoded(t, []byte(file))); err == nil {
			t.Errorf("the schema accepts: %s", file)
		}
		if _, err := Parse("f", []byte(file)); err == nil {
			t.Errorf("Parse accepts: %s", file)
		}
	}
}

// compiled compiles the schema of the file.
func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema(t)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:///file", document); err != nil {
		t.Fatal(err)
	}
	return c.MustCompile("mem:///file")
}

// decoded returns YAML as plain Go values.
func decoded(t *testing.T, data []byte) any {
	t.Helper()
	var value any
	if err := yaml.Unmarshal(data, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// examples returns the paths of the example files.
func examples(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../examples/*/sluice.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("examples: %v, %v", files, err)
	}
	return files
}

// schema generates the JSON Schema of the file. It uses draft 7, which editors support best.
func schema(t *testing.T) []byte {
	t.Helper()
	w := schemaWriter{comments: comments(t)}
	top := w.structure(reflect.TypeFor[Config]())
	top["$schema"] = "http://json-schema.org/draft-07/schema#"
	top["title"] = "The configuration file of Sluice"
	text, err := json.MarshalIndent(top, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

// object is a JSON object.
type object = map[string]any

// schemaWriter converts Go types to JSON Schema.
type schemaWriter struct {
	// comments are the doc comments of fields, by Type.Field.
	comments map[string]string
}

// structure returns the schema of a struct of the file.
func (w schemaWriter) structure(t reflect.Type) object {
	properties, required := object{}, []string{}
	for i := range t.NumField() {
		field := t.Field(i)
		name := field.Tag.Get("yaml")
		if name == "-" {
			continue
		}
		property := w.value(field.Type, field.Tag)
		comment := w.comments[t.Name()+"."+field.Name]
		if rest, ok := strings.CutPrefix(comment, field.Name+" "); ok {
			comment = name + " " + rest
		}
		property["description"] = comment
		if text, ok := field.Tag.Lookup("default"); ok {
			var value any
			if err := yaml.Unmarshal([]byte(text), &value); err != nil {
				panic(err)
			}
			property["default"] = value
		}
		if field.Tag.Get("required") != "" {
			required = append(required, name)
		}
		properties[name] = property
	}
	s := object{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// value returns the schema of a field of type t.
func (w schemaWriter) value(t reflect.Type, tag reflect.StructTag) object {
	switch t {
	case reflect.TypeFor[Key](), reflect.TypeFor[Upstream](), reflect.TypeFor[Control]():
		return object{"anyOf": []any{object{"type": "string"}, w.structure(t)}}
	case reflect.TypeFor[time.Duration]():
		return object{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`}
	case reflect.TypeFor[Size]():
		return object{"anyOf": []any{object{"type": "integer", "minimum": 0},
			object{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)? ?([KMGT]iB?|[kMGT]?B)$`}}}
	case reflect.TypeFor[PerReplica]():
		return object{"anyOf": []any{object{"const": "auto"}, object{"type": "integer", "minimum": 1}}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return w.value(t.Elem(), tag)
	case reflect.Struct:
		return w.structure(t)
	case reflect.Slice:
		return object{"type": "array", "items": w.value(t.Elem(), tag)}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": w.value(t.Elem(), "")}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int:
		return withLimits(object{"type": "integer"}, tag)
	case reflect.Float64:
		return withLimits(object{"type": "number"}, tag)
	case reflect.Interface:
		return object{}
	}
	if allowed := allowedValues(t, tag); allowed != nil {
		var values []any
		for _, text := range allowed {
			values = append(values, text)
			if number, err := strconv.Atoi(text); err == nil {
				values = append(values, number) // YAML reads the text without quotes as a number
			}
		}
		return object{"enum": values}
	}
	if name := tag.Get("yaml"); name == "version" || name == "" {
		return object{"type": []string{"string", "number", "boolean"}} // text as it is written: version: 0.10
	}
	return object{"type": "string"}
}

// withLimits adds the tags min and max to a schema.
func withLimits(s object, tag reflect.StructTag) object {
	if minimum, err := strconv.ParseFloat(tag.Get("min"), 64); err == nil {
		s["minimum"] = minimum
	}
	if maximum, err := strconv.ParseFloat(tag.Get("max"), 64); err == nil {
		s["maximum"] = maximum
	}
	return s
}

// comments returns the doc comments of struct fields in the Go files of this package, by
// Type.Field.
func comments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				fieldComments(spec, found)
			}
			return true
		})
	}
	return found
}

// fieldComments adds the doc comments of the fields of a struct to found.
func fieldComments(spec *ast.TypeSpec, found map[string]string) {
	s, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range s.Fields.List {
		for _, name := range field.Names {
			found[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
		}
	}
}
