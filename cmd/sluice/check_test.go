package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The command check renders the Kubernetes template of an engine. Faults of the template are thus
// found, with their lines, without a cluster.
func TestCheckRendersKubernetesTemplates(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{
		"spec: {replicas: 1}":                      "",
		"spec: {{.Nonsense}}":                      "sluice.yaml:6: engines[mine].versions[1].kubernetes: in the template, line 1",
		"{{if .GPUs}}":                             "unexpected EOF",
		"spec: [":                                  "sluice.yaml:6: engines[mine].versions[1].kubernetes: ",
		"kind: Pod":                                "kind must be Deployment",
		"spec: {template: {spec: {nodeNme: x}}}":   "nodeNme",
		"spec: {x: {{.Variables.a}}, replicas: a}": "sluice.yaml:6",
	} {
		file := filepath.Join(t.TempDir(), "sluice.yaml")
		text := "engines:\n  - name: mine\n    versions:\n      - version: \"1\"\n        command: [serve]\n        kubernetes: '" + template +
			"'\n        tasks: [embedding]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, out := newCheckCommand(), new(bytes.Buffer)
		c.SetArgs([]string{"-c", file})
		c.SetOut(out)
		c.SetErr(out)
		err := c.Execute()
		if (err == nil) != (want == "") || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, %s", template, err, out)
		}
	}
}
