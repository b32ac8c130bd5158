package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// controlFile writes certificates beside a configuration with the section control and parses it.
func controlFile(t *testing.T, control string) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	ca := testutil.NewAuthority(t, "ca")
	ca.Issue(t, dir, "server", "gateway.example", "127.0.0.1")
	ca.Write(t, filepath.Join(dir, "ca.crt"))
	file := filepath.Join(dir, "sluice.yaml")
	text := "auth: {mode: none}\nlisten: 127.0.0.1:1\n" + control
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(file)
}

func TestU16_ControlIsAnAddressForNodesOrMore(t *testing.T) {
	t.Parallel()
	c, err := controlFile(t, "control: 127.0.0.1:2")
	if err != nil || c.Control.Nodes != "127.0.0.1:2" || c.Control.Listen != "" {
		t.Fatalf("%+v, %v", c, err)
	}
	c, err = controlFile(t, `control: {nodes: "127.0.0.1:2", listen: ":3", cert: server.crt, key: server.key, client_ca: ca.crt, addresses: ["sluice:3"]}`)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Control; got.Nodes != "127.0.0.1:2" || got.Listen != "0.0.0.0:3" || got.ServerName != "gateway.example" || !filepath.IsAbs(got.Cert) {
		t.Errorf("%+v", got)
	}
	c, err = controlFile(t, "control: {listen: 127.0.0.1:3, cert: server.crt, key: server.key}")
	if err != nil || len(c.Control.Addresses) != 1 || c.Control.Addresses[0] != "127.0.0.1:3" {
		t.Errorf("on loopback: %v", err)
	}
}

func TestU16_ControlFaults(t *testing.T) {
	t.Parallel()
	const files = "cert: server.crt, key: server.key"
	for name, test := range map[string]struct{ control, want string }{
		"no authority off loopback": {`{listen: "10.0.0.1:3", ` + files + `}`, "3: control.client_ca: is needed because 10.0.0.1:3 can be reached"},
		"no certificate":            {`{listen: "127.0.0.1:3"}`, "3: control.cert: is needed with control.listen"},
		"no such certificate":       {`{listen: "127.0.0.1:3", cert: none.crt, key: server.key}`, "3: control.cert: cannot be read"},
		"no such key":               {`{listen: "127.0.0.1:3", cert: server.crt, key: none.key}`, "3: control.key: cannot be read"},
		"a wrong key":               {`{listen: "127.0.0.1:3", cert: server.crt, key: ca.crt}`, "3: control.cert: cannot be used with its key"},
		"a wrong authority":         {`{listen: "127.0.0.1:3", ` + files + `, client_ca: server.key}`, "3: control.client_ca: cannot be read"},
		"the listener of clients":   {`{listen: "127.0.0.1:1", ` + files + `}`, "3: control.listen: 127.0.0.1:1 is also the address of another listener"},
		"that of nodes":             {`{nodes: "127.0.0.1:3", listen: "127.0.0.1:3", ` + files + `}`, "3: control.listen: 127.0.0.1:3 is also the address"},
		"nowhere to be found":       {`{listen: ":3", ` + files + `, client_ca: ca.crt}`, "3: control.addresses: is needed because 0.0.0.0:3 is all addresses"},
		"an address without a port": {`{listen: "127.0.0.1:3", ` + files + `, addresses: [sluice]}`, "3: control.addresses[0]: must be host:port"},
		"all addresses as its own":  {`{listen: "127.0.0.1:3", ` + files + `, advertise: ":3"}`, "3: control.advertise: must be the address of this gateway"},
		"certificates for nothing":  {`{nodes: "127.0.0.1:3", ` + files + `}`, "3: control.cert: has no effect without control.listen"},
		"a list":                    {`[a]`, "3: control: must be a mapping"},
	} {
		if _, err := controlFile(t, "control: "+test.control); err == nil || !strings.Contains(err.Error(), ":"+test.want) {
			t.Errorf("%s: %v\nwant %s", name, err, test.want)
		}
	}
}
