package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
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

// The command check takes several files, and tells of each.
func TestO8_CheckTakesFiles(t *testing.T) {
	t.Parallel()
	good, bad := filepath.Join(t.TempDir(), "good.yaml"), filepath.Join(t.TempDir(), "bad.yaml")
	for file, text := range map[string]string{good: "listen: 127.0.0.1:8080\nauth: {mode: none}\n", bad: "models: 3\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		args []string
		want string
		ok   bool
	}{
		{[]string{good}, good + ": ok", true},
		{[]string{good, bad}, bad + ":1: models", false},
		{[]string{bad, good}, good + ": ok", false},
	} {
		c, out := newCheckCommand(), new(bytes.Buffer)
		c.SetArgs(test.args)
		c.SetOut(out)
		c.SetErr(out)
		if err := c.Execute(); (err == nil) != test.ok || !strings.Contains(out.String(), test.want) {
			t.Errorf("check %v: %v, %s", test.args, err, out)
		}
	}
}

// The commands check and doctor look at a file as serve would run it, with the same addresses in
// the place of those of the file.
func TestO8_AddressesOfServe(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	text := "listen: nowhere\nadmin: 0.0.0.0:9090\npeers: nowhere\nredis: redis://127.0.0.1:1\nstate_dir: " + t.TempDir() + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	fields, flags := []string{"listen", "admin", "peers"}, []string{"-c", file}
	for _, field := range fields {
		inUse, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer inUse.Close()
		flags = append(flags, "--"+field, inUse.Addr().String())
	}
	run := func(c *cobra.Command, flags []string) (string, error) {
		out := new(bytes.Buffer)
		c.SetArgs(flags)
		c.SetOut(out)
		c.SetErr(out)
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	out, err := run(newCheckCommand(), flags[:2])
	for _, field := range fields {
		if err == nil || !strings.Contains(out, ": "+field+": ") {
			t.Errorf("check of the file alone: %v, %s, want a fault of %s", err, out, field)
		}
	}
	if out, err := run(newCheckCommand(), flags); err != nil {
		t.Errorf("check with the addresses of serve: %v, %s", err, out)
	}
	out, err = run(newDoctorCommand(), flags)
	for _, field := range fields {
		if err == nil || !strings.Contains(out, "fault    "+field+": 127.0.0.1:") {
			t.Errorf("doctor with addresses that are in use: %v, %s, want a fault of %s", err, out, field)
		}
	}
}

// The version of every build is one that a person can use.
func TestO8_Version(t *testing.T) {
	t.Parallel()
	c, out := newCommand(), new(bytes.Buffer)
	c.SetArgs([]string{"--version"})
	c.SetOut(out)
	if err := c.Execute(); err != nil || strings.Contains(out.String(), "(") || !strings.HasPrefix(out.String(), "sluice version ") {
		t.Errorf("%v: %q", err, out)
	}
}
