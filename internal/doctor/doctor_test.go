package doctor

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/config"
)

// What only trying shows is found: each fault of this machine is one line with a hint.
func TestO6_Examine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	text := `
listen: ` + taken.Addr().String() + `
admin: 127.0.0.1:0
auth: {mode: none}
redis: redis://127.0.0.1:1
upstreams: ["http://` + taken.Addr().String() + `", "http://127.0.0.1:1/v1"]
engines:
  - name: mine
    versions:
      - {version: "1", command: [no-such-program-of-an-engine], tasks: [embedding]}
models:
  - {name: m, task: embedding, engine: mine, launcher: local}
`
	c, err := config.Parse("test", []byte(strings.Replace(text, "127.0.0.1:0", "127.0.0.1:2", 1)))
	if err != nil {
		t.Fatal(err)
	}
	c.StateDir = filepath.Join(dir, "file", "state")
	found := Examine(t.Context(), Options{Config: c, Envoy: "/bin/true", TestedEnvoy: "1.40.0"})
	for what, want := range map[string]struct {
		level Level
		says  string
	}{
		"Envoy":                  {Warning, "/bin/true is "},
		"state_dir":              {Fault, "not a directory"},
		"listen":                 {Fault, "in use by another program"},
		"redis":                  {Fault, "refused"},
		"program of engine mine": {Fault, "no-such-program-of-an-engine"},
		"GPUs":                   {OK, ""},
	} {
		one := of(found, what)
		if len(one) != 1 || one[0].Level != want.level || !strings.Contains(one[0].Says, want.says) || (one[0].Hint == "") != (want.level == OK) {
			t.Errorf("%s: %+v, want %+v", what, one, want)
		}
	}
	if up := of(found, "upstream"); len(up) != 2 || up[0].Level != OK || up[1].Level != Fault {
		t.Errorf("upstreams: %+v", up)
	}
	c.StateDir = filepath.Join(dir, "new", "state")
	if one := of(Examine(t.Context(), Options{Config: c, Envoy: "/none"}), "state_dir"); one[0].Level != OK || !strings.Contains(one[0].Says, "can be made") {
		t.Errorf("%+v", one)
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("doctor has made a directory")
	}
}

// What the start of a gateway refuses is a fault: a directory that others can write, and an address
// for peers that another program has.
func TestExamineWhatAStartRefuses(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	e := &examination{Options: Options{Config: &config.Config{Admin: "127.0.0.1:0", Peers: taken.Addr().String()}}}
	e.directory("state_dir", dir)
	e.ports(t.Context())
	for what, want := range map[string]string{"state_dir": "has mode 0777", "peers": "in use by another program"} {
		if one := of(e.found, what); len(one) != 1 || one[0].Level != Fault || !strings.Contains(one[0].Says, want) {
			t.Errorf("%s: %+v, want %s", what, one, want)
		}
	}
}

// of returns the findings about one thing.
func of(all []Finding, what string) []Finding {
	var some []Finding
	for _, f := range all {
		if f.What == what {
			some = append(some, f)
		}
	}
	return some
}
