package envoy

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestBootstrapGolden(t *testing.T) {
	t.Parallel()
	got, err := Bootstrap(BootstrapConfig{
		NodeID: "gateway-1", Cluster: "edge",
		ControlSocket: "/run/sluice/control.sock", APISocket: "/run/sluice/api.sock", AdminSocket: "/run/sluice/envoy.sock",
		PressureFile: "/run/sluice/pressure", Budget: Budget{Connections: 437, Memory: 256 << 20},
		Inlets: Inlets{Socket: "/run/sluice/inlets.sock", Gateway: "/run/sluice/filter.sock", filter: "/run/sluice/filter.so"},
	})
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "bootstrap.json")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("bootstrap differs from %s (-want +got), run with -update if that is meant:\n%s", golden, d)
	}
}

// An Envoy that was started without inlets, or with another filter, is adopted all the same.
func TestB6_InletsDoNotDecideAboutAdoption(t *testing.T) {
	t.Parallel()
	without := BootstrapConfig{ControlSocket: "/c", APISocket: "/a", AdminSocket: "/e"}
	with := without
	with.Inlets = Inlets{Socket: "/i", Gateway: "/f"}
	other := with
	other.Inlets.filter = "/filter.so"
	var digests []string
	for _, c := range []BootstrapConfig{without, with, other} {
		d, err := launchDigest(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, d)
	}
	if digests[0] != digests[1] || digests[1] != digests[2] {
		t.Error(digests)
	}
}

func TestBootstrapIsValid(t *testing.T) {
	t.Parallel()
	got, err := Bootstrap(BootstrapConfig{ControlSocket: "/c", APISocket: "/a", AdminSocket: "/e"})
	if err != nil {
		t.Fatal(err)
	}
	var b bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(got, &b); err != nil {
		t.Fatal(err)
	}
	if err := b.ValidateAll(); err != nil {
		t.Error(err)
	}
	if b.GetNode().GetId() == "" || b.GetNode().GetCluster() == "" {
		t.Errorf("node %v: xDS needs an id and a cluster", b.GetNode())
	}
}

func TestBootstrapRefusesSockets(t *testing.T) {
	t.Parallel()
	good := BootstrapConfig{ControlSocket: "/c", APISocket: "/a", AdminSocket: "/e"}
	long := "/" + strings.Repeat("x", maxSocketPath)
	for name, change := range map[string]func(*BootstrapConfig){
		"control": func(c *BootstrapConfig) { c.ControlSocket = "" },
		"api":     func(c *BootstrapConfig) { c.APISocket = "relative.sock" },
		"admin":   func(c *BootstrapConfig) { c.AdminSocket = long },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := good
			change(&c)
			if _, err := Bootstrap(c); err == nil || !strings.Contains(err.Error(), "the "+name+" socket") {
				t.Errorf("error %v does not name the %s socket", err, name)
			}
		})
	}
}
