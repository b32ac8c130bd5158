package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// FuzzParse parses arbitrary bytes. Parse always ends and never panics. It returns either a
// complete configuration, or faults that have a line and are sorted.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("../../examples/*/sluice.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, "testdata/wrong.yaml", "testdata/full.yaml") {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, r := range ruleCases() {
		f.Add([]byte(r.file))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data)
		if err == nil {
			checkComplete(t, c)
			return
		}
		var faults Faults
		if c != nil || !errors.As(err, &faults) || len(faults) == 0 {
			t.Fatalf("%v, %v", c, err)
		}
		lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") + strings.Count(string(data), "\u0085") +
			strings.Count(string(data), "\u2028") + strings.Count(string(data), "\u2029") + 2
		for _, fault := range faults {
			if fault.Line < 0 || fault.Line > lines || fault.Message == "" || strings.Contains(fault.Error(), "\n") {
				t.Errorf("%+v", fault)
			}
		}
		if !slices.IsSortedFunc(faults, func(a, b Fault) int { return a.Line - b.Line }) {
			t.Errorf("out of order: %v", faults)
		}
	})
}

// checkComplete checks the properties of a Config that other packages rely on.
func checkComplete(t *testing.T, c *Config) {
	t.Helper()
	for _, tenant := range c.Tenants {
		for _, key := range tenant.Keys {
			if len(key.Hash) != 71 || key.Priority == "" || tenant.Priority == Batch && key.Priority != Batch || tenant.Weight < 1 {
				t.Errorf("%+v", tenant)
			}
		}
	}
	for _, pool := range c.Pools {
		if len(pool.Models) == 0 || slices.Contains(pool.Models, pool.Name) {
			t.Errorf("%+v", pool)
		}
	}
	for _, m := range c.Models {
		version, launch := c.Launch(m)
		launch.Host, launch.Port, launch.Sluice = "127.0.0.1", 1, "sluice"
		if m.Launcher == "local" && m.Replicas.Max < m.Replicas.Min {
			t.Errorf("%+v", m)
		}
		if m.Launcher == "local" && len(m.Name) > 0 {
			if line, err := version.Render(launch); err != nil || len(line) == 0 {
				t.Errorf("%s: %v", m.Name, err)
			}
		}
	}
}
