package config

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
