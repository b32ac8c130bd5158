package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// parsedIn returns the configuration of a file in a folder, and its faults, one per line.
func parsedIn(t *testing.T, folder, file string) (*Config, string) {
	t.Helper()
	c, faults := parseWithFields(filepath.Join(folder, "f"), []byte(file), nil)
	return c, strings.ReplaceAll(faults.Error(), folder+"/", "")
}

func TestX11_EnvFrom(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"hub.env":   "# a comment\n\nHF_TOKEN=hf_file\nFROM_FILE=a=b\n",
		"wrong.env": "A=1\nsecret-value\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HF_TOKEN", "hf_variable")
	t.Setenv("ENGINE_KEY", "of the engine")
	t.Setenv("OWN_KEY", "of the model")
	const engine = "engines: [{name: e, versions: [{version: 1, tasks: [rerank], command: [run], env_from: {variables: [ENGINE_KEY, OWN_KEY]}}]}]\n"
	for _, c := range []struct {
		name, file string
		want       map[string]string
		faults     string
	}{
		{"none", "models: [{name: a, engine: sim}]", nil, ""},
		{"a file overrides variables, env overrides both", engine +
			"models: [{name: a, engine: e, env: {OWN_KEY: x}, env_from: {variables: [HF_TOKEN], files: [hub.env]}}]",
			map[string]string{"HF_TOKEN": "hf_file", "FROM_FILE": "a=b", "ENGINE_KEY": "of the engine"}, ""},
		{"not set", "models: [{name: a, engine: sim, env_from: {variables: [\n ABSENT_KEY, a-b]}}]", nil,
			"f:2: models[a].env_from.variables[0]: names an environment variable that is not set or empty: set it before Sluice starts\n" +
				"f:2: models[a].env_from.variables[1]: must be the name of an environment variable, never a key itself"},
		{"not there", "models: [{name: a, engine: sim, env_from: {files: [\n none.env, wrong.env]}}]", nil,
			"f:2: models[a].env_from.files[0]: cannot be used: none.env: no such file or directory\n" +
				"f:2: models[a].env_from.files[1]: cannot be used: wrong.env: its line 2 is not NAME=VALUE"},
		{"not local", "models: [{name: a, launcher: none, env_from: {files: [hub.env]}}]", nil,
			"f:1: models[a].env_from: has no effect with launcher: none; remove it"},
	} {
		got, faults := parsedIn(t, folder, c.file)
		if diff := cmp.Diff(c.faults, faults); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		} else if c.faults == "" {
			if diff := cmp.Diff(c.want, got.Models[0].SecretEnv); diff != "" {
				t.Errorf("%s: %s", c.name, diff)
			}
		}
	}
}

// A user who may write custom resources must not read the environment or the files of the gateway.
func TestX11_ObjectsHaveNoEnvFrom(t *testing.T) {
	t.Setenv("ENGINE_KEY", "x")
	c := parsed(t, "kubernetes: {}")
	_, refused, err := c.WithObjects([]Object{
		{Engine: true, Name: "e", Spec: []byte(`{"versions":[{"version":"1","tasks":["rerank"],"command":["run"],"image":"i","env_from":{"variables":["ENGINE_KEY"]}}]}`)},
		{Name: "m", Spec: []byte(`{"engine":"sim","env_from":{"variables":["ENGINE_KEY"]}}`)},
	})
	if err != nil || len(refused) != 2 || !strings.Contains(refused[0].Faults.Error(), "env_from") || !strings.Contains(refused[1].Faults.Error(), "env_from") {
		t.Errorf("%v, %v", refused, err)
	}
}
