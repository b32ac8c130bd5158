package config

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// schemaID is the address of the schema. Editors may use the schema under it.
const schemaID = "https://raw.githubusercontent.com/sluice-gateway/sluice/main/examples/sluice.schema.json"

// schema generates the JSON Schema of the file. It uses draft 7, which editors support best.
func schema(t *testing.T) []byte {
	t.Helper()
	top := schemaWriter{comments: comments(t)}.structure(reflect.TypeFor[Config]())
	top["$schema"] = "http://json-schema.org/draft-07/schema#"
	top["$id"] = schemaID
	top["title"] = "The configuration file of Sluice"
	top["definitions"] = engineDefinitions()
	return append(appendJSON(t, nil, top, 0), '\n')
}

// width is about the length of the longest lines of the schema.
const width = 120

// appendJSON appends a value as JSON. What fits on a line is on one line, so that the schema is a
// file that people can read: one variable of an engine is one line.
func appendJSON(t *testing.T, text []byte, value any, depth int) []byte {
	t.Helper()
	var line bytes.Buffer
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		t.Fatal(err)
	}
	short := bytes.TrimRight(line.Bytes(), "\n")
	indent := strings.Repeat("  ", depth)
	switch v := value.(type) {
	case object:
		if len(short)+len(indent) <= width && depth > 2 {
			break
		}
		separator := "{\n"
		for _, name := range slices.Sorted(maps.Keys(v)) {
			text = append(text, separator+indent+"  "+strconv.Quote(name)+": "...)
			text = appendJSON(t, text, v[name], depth+1)
			separator = ",\n"
		}
		return append(text, "\n"+indent+"}"...)
	case []any:
		if len(short)+len(indent) > width {
			return appendList(t, text, v, depth)
		}
	}
	return append(text, short...)
}

// appendList appends a list as JSON. Texts share lines, other items have lines of their own.
func appendList(t *testing.T, text []byte, list []any, depth int) []byte {
	t.Helper()
	indent, column := "\n"+strings.Repeat("  ", depth), width
	separator := "["
	for _, item := range list {
		one := appendJSON(t, nil, item, depth+1)
		text = append(text, separator...)
		if _, short := item.(string); short && column+len(one)+2 < width {
			text, column = append(text, ' '), column+len(one)+2
		} else {
			text, column = append(text, indent+"  "...), len(indent)+len(one)
		}
		text, separator = append(text, one...), ","
	}
	return append(text, indent+"]"...)
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
	properties, required := object{}, []any{}
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
	if rules := rulesOf(t); len(rules) > 0 {
		s["allOf"] = rules
	}
	return s
}

func (w schemaWriter) value(t reflect.Type, tag reflect.StructTag) object {
	switch t {
	case reflect.TypeFor[Key](), reflect.TypeFor[Upstream](), reflect.TypeFor[Control](), reflect.TypeFor[Redis]():
		return object{"anyOf": []any{text(t.Field(0).Tag), w.structure(t)}}
	case reflect.TypeFor[time.Duration]():
		return duration(tag)
	case reflect.TypeFor[Size]():
		return size(tag)
	case reflect.TypeFor[time.Time]():
		return text(`form:"time"`)
	case reflect.TypeFor[PerReplica]():
		return object{"anyOf": []any{object{"const": "auto"}, object{"type": "integer", "minimum": 1}}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return w.value(t.Elem(), tag)
	case reflect.Struct:
		return w.structure(t)
	case reflect.Slice:
		return object{"type": "array", "items": w.value(t.Elem(), tag+` required:"true"`)}
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
		return enumeration(allowed)
	}
	if name := tag.Get("yaml"); name == "version" || name == "" {
		return object{"type": []any{"string", "number", "boolean"}} // text as it is written: version: 0.10
	}
	return text(tag)
}

// enumeration returns the schema of texts of which each may be written as YAML reads it.
func enumeration(texts []string) object {
	var values []any
	for _, text := range texts {
		values = append(values, text)
		if number, err := strconv.Atoi(text); err == nil {
			values = append(values, number) // YAML reads the text without quotes as a number
		}
	}
	return object{"enum": values}
}

// withLimits adds the tags min and max, and the form share, to the schema of a number.
func withLimits(s object, tag reflect.StructTag) object {
	if minimum, err := strconv.ParseFloat(tag.Get("min"), 64); err == nil {
		s["minimum"] = minimum
	}
	if maximum, err := strconv.ParseFloat(tag.Get("max"), 64); err == nil {
		s["maximum"] = maximum
	}
	if tag.Get("form") == "share" {
		s["maximum"] = 1
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
