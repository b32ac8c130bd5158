package engines

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBuiltinDefinitionsAreSound(t *testing.T) {
	t.Parallel()
	for _, engine := range Builtin() {
		for _, version := range engine.Versions {
			if faults := version.Check(); len(faults) > 0 {
				t.Errorf("%s %s: %v", engine.Name, version.Version, faults)
			}
			if faults := version.CheckVariables("", nil); len(faults) > 0 {
				t.Errorf("%s %s without variables: %v", engine.Name, version.Version, faults)
			}
			if len(version.Tasks) == 0 {
				t.Errorf("%s %s serves no task", engine.Name, version.Version)
			}
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	catalogue := []Engine{
		{Name: "empty"},
		{Name: "a", Versions: []Version{{Version: "1"}, {Version: "2"}}},
	}
	for _, tt := range []struct{ engine, version, want string }{
		{"a", "1", "1"},
		{"a", "2", "2"},
		{"a", "", "2"},
		{"a", "3", "2"},
		{"a", "0.9", ""},
		{"empty", "", ""},
		{"b", "", ""},
	} {
		got, ok := Find(catalogue, tt.engine, tt.version)
		if got.Version != tt.want || ok != (tt.want != "") {
			t.Errorf("Find(%q, %q) = %q, %v; want %q", tt.engine, tt.version, got.Version, ok, tt.want)
		}
	}
}

func TestSlotsCount(t *testing.T) {
	t.Parallel()
	v := Version{Slots: Slots{Variable: "parallel", Default: 4}}
	for _, tt := range []struct {
		value any
		want  int
	}{
		{nil, 4}, {0, 4}, {-1, 4}, {"8", 4}, {8, 8}, {int64(8), 8}, {uint64(8), 8}, {8.0, 8},
	} {
		if got := v.SlotsOf(Launch{Variables: map[string]any{"parallel": tt.value}}); got != tt.want {
			t.Errorf("parallel = %v (%T): %d slots, want %d", tt.value, tt.value, got, tt.want)
		}
	}
	if got := (Version{}).SlotsOf(Launch{Variables: map[string]any{"parallel": 8}}); got != 0 {
		t.Errorf("no slot variable: %d slots, want 0 for unknown", got)
	}
}

func TestVersionCheck(t *testing.T) {
	t.Parallel()
	sound := func() Version {
		v := Builtin()[0].Versions[0]
		v.Schema = maps.Clone(v.Schema)
		return v
	}
	for _, tt := range []struct {
		name  string
		spoil func(*Version)
		want  string
	}{
		{"no command", func(v *Version) { v.Command = nil }, "command: required: the program and its arguments"},
		{"template", func(v *Version) { v.Command = []string{"x", "{{.Port"} }, `command: command[1]:1: unclosed action`},
		{"unknown name", func(v *Version) { v.Command = []string{"x", "{{.Prot}}"} },
			"command: command[1]:1:2: {{.Prot}} is unknown; known are Name, Model, Registry, Task, Host, Port, GPUs, Sluice, Variables, and {{.Flags}} as an argument of its own"},
		{"flags inside an argument", func(v *Version) { v.Command = []string{"x", "a{{.Flags}}"} },
			"command: command[1]:1:3: {{.Flags}} is unknown; known are Name, Model, Registry, Task, Host, Port, GPUs, Sluice, Variables, and {{.Flags}} as an argument of its own"},
		{"unknown name below", func(v *Version) {
			v.Command = []string{"x", `{{if .Name}}{{with .Task}}{{$.Prot}}{{end}}{{else}}{{end}}`}
		},
			"command: command[1]:1:29: {{.Prot}} is unknown; known are Name, Model, Registry, Task, Host, Port, GPUs, Sluice, Variables, and {{.Flags}} as an argument of its own"},
		{"probe path", func(v *Version) { v.Ready.Path = "health" }, "ready.path: must begin with /"},
		{"probe pause", func(v *Version) { v.Health.Every = 0 }, "health.every: must be more than 0s"},
		{"schema of a list", func(v *Version) { v.Schema["type"] = "array" }, "schema.type: must be object: variables have names"},
		{"env", func(v *Version) { v.Env = map[string]string{"A": "{{.Prot}}"} },
			"env.A: its line 1:2: {{.Prot}} is unknown; known are Name, Model, Registry, Task, Host, Port, GPUs, Sluice, Variables"},
		{"env name", func(v *Version) { v.Env = map[string]string{"A=B": ""} }, "env.A=B: cannot be the name of an environment variable"},
		{"metrics", func(v *Version) { v.Metrics = Metrics{Running: "x"} }, "metrics.path: must begin with /"},
		{"slots", func(v *Version) { v.Slots.Variable = "parallel" }, "slots.variable: the schema has no variable parallel"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := sound()
			tt.spoil(&v)
			if diff := cmp.Diff([]string{tt.want}, words(v.Check())); diff != "" {
				t.Error(diff)
			}
		})
	}
	v := sound()
	v.Schema = map[string]any{"properties": map[string]any{"x": map[string]any{"type": "nonsense"}}, "required": "x"}
	want := []string{
		"schema.properties.x.type: must be one of array, boolean, integer, null, number, object, string, or must be array, is string",
		"schema.required: must be array, is string",
	}
	got := words(v.Check())
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	v.Schema = map[string]any{"$ref": "file:///etc/hostname"}
	if got := words(v.Check()); len(got) != 1 || !strings.Contains(got[0], "must point into the schema itself") {
		t.Errorf("a schema that reads a file: %q", got)
	}
}

// words formats faults as lines.
func words(faults []Fault) []string {
	var lines []string
	for _, f := range faults {
		line := strings.Join(f.Path, ".") + ": " + f.Reason
		if len(f.Known) > 0 {
			line += " [" + strings.Join(f.Known, " ") + "]"
		}
		lines = append(lines, line)
	}
	return lines
}
