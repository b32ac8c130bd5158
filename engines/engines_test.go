package engines

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEveryEngineIsComplete walks the table of built-in engines. It fails for each place that lacks
// a row of the table. The places are the definition, the table of the engine's variables or the
// list of its flags, and the list of engines for users.
func TestEveryEngineIsComplete(t *testing.T) {
	t.Parallel()
	rows := documentedEngines(t)
	for _, engine := range Builtin() {
		var versions []string
		for _, v := range engine.Versions {
			versions = append(versions, v.Version)
			name := engine.Name + " " + v.Version
			for _, fault := range v.Check() {
				t.Errorf("%s: %v: %s", name, fault.Path, fault.Reason)
			}
			checkDefinition(t, name, v)
			if hasTable(engine.Name, v.Version) {
				continue // variables that the engine lists need no description by hand
			}
			checkDescriptions(t, name, v)
			flags := filepath.Join("testdata", "flags", engine.Name+"-"+v.Version+".txt")
			if _, err := os.Stat(flags); err != nil && engine.Name != "sim" { // whose flags are tested in internal/sim
				t.Errorf("%s has no list of its flags in %s", name, flags)
			}
		}
		row, ok := rows[engine.Name]
		if !ok {
			t.Errorf("the table in examples/engines/sluice.yaml has no row for %s", engine.Name)
			continue
		}
		if want := strings.Join(versions, ", "); row[0] != want {
			t.Errorf("the table in examples/engines/sluice.yaml says that %s has the versions %s, want %s", engine.Name, row[0], want)
		}
		for _, task := range engine.Versions[len(engine.Versions)-1].Tasks {
			if !strings.Contains(row[1], string(task)) && row[1] != "all" {
				t.Errorf("the table in examples/engines/sluice.yaml does not say that %s serves %s", engine.Name, task)
			}
		}
		delete(rows, engine.Name)
	}
	for name := range rows {
		t.Errorf("the table in examples/engines/sluice.yaml has a row for %s, which is not built in", name)
	}
}

// checkDefinition checks what Version.Check leaves to the built-in engines.
func checkDefinition(t *testing.T, name string, v Version) {
	t.Helper()
	if len(v.Tasks) == 0 || v.Schema == nil || v.Image == "" {
		t.Errorf("%s lacks tasks, a schema or an image", name)
	}
	gauges := []string{v.Metrics.Running, v.Metrics.Waiting, v.Metrics.KVUsage}
	if hasGauge := slices.ContainsFunc(gauges, func(g string) bool { return g != "" }); hasGauge != (v.Metrics.Path != "") {
		t.Errorf("%s: metrics need both a path and the name of a gauge: %+v", name, v.Metrics)
	}
}

// checkDescriptions checks that each variable that was written by hand says what it means.
func checkDescriptions(t *testing.T, name string, v Version) {
	t.Helper()
	for variable, schema := range v.properties() {
		if description, ok := schema.(map[string]any)["description"].(string); !ok || description == "" {
			t.Errorf("%s: the variable %s has no description", name, variable)
		}
	}
}

// documentedEngines parses the table of engines in examples/engines/sluice.yaml: the versions and
// the tasks by name.
func documentedEngines(t *testing.T) map[string][2]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "examples", "engines", "sluice.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][2]string{}
	for line := range strings.Lines(string(data)) {
		cells := strings.Split(line, "|")
		if !strings.HasPrefix(line, "# | ") || len(cells) < 5 {
			continue
		}
		name := strings.TrimSpace(cells[1])
		if name != "engine" && !strings.HasPrefix(name, "---") {
			rows[name] = [2]string{strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])}
		}
	}
	if len(rows) == 0 {
		t.Fatal("examples/engines/sluice.yaml has no table of engines")
	}
	return rows
}
