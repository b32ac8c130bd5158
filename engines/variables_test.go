package engines

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		value any
		want  []string
	}{
		{"string", "half", []string{"--some-name", "half"}},
		{"empty string", "", []string{"--some-name", ""}},
		{"true", true, []string{"--some-name"}},
		{"false", false, nil},
		{"null", nil, nil},
		{"int", -1, []string{"--some-name", "-1"}},
		{"large int", 1 << 40, []string{"--some-name", "1099511627776"}},
		{"float", 0.9, []string{"--some-name", "0.9"}},
		{"large float", 1e6, []string{"--some-name", "1000000"}},
		{"list", []any{1, "b", 2.5}, []string{"--some-name", "1,b,2.5"}},
		{"object", map[string]any{"b": 1, "a": []any{true}}, []string{"--some-name", `{"a":[true],"b":1}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := FlagStyle{}.flags(map[string]any{"some_name": tt.value}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, bad := range []any{[]any{"a,b"}, []any{true}, []any{[]any{1}}, struct{}{}} {
		if got, err := (FlagStyle{}).flags(map[string]any{"x": bad}, nil, nil); err == nil || !strings.HasPrefix(err.Error(), "variables.x: ") {
			t.Errorf("%v: flags %v, error %v", bad, got, err)
		}
	}
}

func TestCheckVariables(t *testing.T) {
	t.Parallel()
	schema := func(property map[string]any) map[string]any { return variables(map[string]any{"x": property}) }
	anyOf := map[string]any{"anyOf": []any{map[string]any{"type": "integer"}, map[string]any{"enum": []any{"auto", "all"}}}}
	for _, tt := range []struct {
		name     string
		property map[string]any
		value    any
		want     []string
	}{
		{"fits", integer(1, ""), 1, nil},
		{"type", integer(1, ""), "1", []string{"x: must be integer, is string"}},
		{"fraction", integer(1, ""), 1.5, []string{"x: must be integer, is number"}},
		{"meaning", integer(1, "how many"), 0, []string{"x: must be at least 1, is 0 (how many)"}},
		{"null", integer(1, ""), nil, []string{"x: must be integer, is null"}},
		{"minimum", integer(1, ""), 0, []string{"x: must be at least 1, is 0"}},
		{"maximum", map[string]any{"maximum": 0.5}, 1.5, []string{"x: must be at most 0.5, is 1.5"}},
		{"exclusive minimum", map[string]any{"exclusiveMinimum": 0}, 0, []string{"x: must be more than 0, is 0"}},
		{"exclusive maximum", map[string]any{"exclusiveMaximum": 1}, 1, []string{"x: must be less than 1, is 1"}},
		{"multiple", map[string]any{"multipleOf": 16}, 8, []string{"x: must be a multiple of 16, is 8"}},
		{"two reasons", map[string]any{"multipleOf": 16, "maximum": 4}, 8,
			[]string{"x: must be a multiple of 16, is 8", "x: must be at most 4, is 8"}},
		{"choice", choice("", "on", "off"), "auto", []string{"x: must be one of on, off"}},
		{"const", map[string]any{"const": "a"}, "b", []string{"x: must be a"}},
		{"pattern without the value", duration(""), "sk-secret", []string{`x: must match ^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`}},
		{"item", array("number", ""), []any{1, "a"}, []string{"x.1: must be number, is string"}},
		{"no items", array("number", ""), []any{}, []string{"x: must have at least 1 items, has 0"}},
		{"empty string", text(""), "", []string{"x: must have at least 1 characters, has 0"}},
		{"anyOf fits", anyOf, "all", nil},
		{"anyOf", anyOf, "some", []string{"x: must be integer, is string, or must be one of auto, all"}},
		{"oneOf, both", map[string]any{"oneOf": []any{true, true}}, 1, []string{"x: fits more than one of the alternatives of its schema"}},
		{"not", map[string]any{"not": map[string]any{"const": 3}}, 3, []string{"x: does not fit its schema"}},
		{"never", nil, 3, []string{"x: not allowed"}},
		{"by reference", map[string]any{"$ref": "#/properties/x/$defs/n", "$defs": map[string]any{"n": integer(1, "")}}, 0, []string{"x: must be at least 1, is 0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := Version{Schema: schema(tt.property)}
			if tt.property == nil {
				v.Schema["properties"] = map[string]any{"x": false}
			}
			if diff := cmp.Diff(tt.want, words(v.CheckVariables("", map[string]any{"x": tt.value}))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// CheckVariables returns all faults at once, each with its path, in the order of the paths.
func TestCheckVariablesNamesEveryFault(t *testing.T) {
	t.Parallel()
	schema := variables(map[string]any{"a": integer(1, ""), "b": flag(""), "c": text("")})
	schema["required"] = []any{"c", "d"}
	got := words(Version{Schema: schema}.CheckVariables("", map[string]any{"b": 3, "a": 0, "aa": 1, "bb": 1}))
	want := []string{
		"a: must be at least 1, is 0",
		"aa: unknown [a b c]",
		"b: must be boolean, is number",
		"bb: unknown [a b c]",
		"c: required, and missing",
		"d: required, and missing",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Defaults and variables of the task count as given. The model's variables are checked against the
// schema as well.
func TestCheckVariablesCompletes(t *testing.T) {
	t.Parallel()
	schema := variables(map[string]any{"a": withDefault(1, integer(1, "")), "b": flag("")})
	schema["required"] = []any{"a", "b"}
	v := Version{Schema: schema, TaskVariables: map[Task]map[string]any{Embedding: {"b": true}}}
	for _, tt := range []struct {
		task  Task
		given map[string]any
		want  []string
	}{
		{Embedding, nil, nil},
		{TextGeneration, nil, []string{"b: required, and missing"}},
		{Embedding, map[string]any{"b": "no"}, []string{"b: must be boolean, is string"}},
	} {
		if diff := cmp.Diff(tt.want, words(v.CheckVariables(tt.task, tt.given))); diff != "" {
			t.Errorf("%s %v: %s", tt.task, tt.given, diff)
		}
	}
}

func TestCheckVariablesOfAnOpenSchema(t *testing.T) {
	t.Parallel()
	got := words(Version{}.CheckVariables("", map[string]any{"fine_1": 1, "Fine-2": 1, "": 1, "-x": 1, "a b": 1, "1a": 1}))
	const reason = "cannot be a variable: a name is a letter followed by letters, digits, _ and -"
	want := []string{": " + reason, "-x: " + reason, "1a: " + reason, "a b: " + reason}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
