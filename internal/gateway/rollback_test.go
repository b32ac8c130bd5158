package gateway

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/limits"
)

// inForce is what each part of a gateway runs under, as far as it can be seen from outside.
type inForce struct {
	Tenants, Models, Admitted []string
	AdminTokens               bool
	MaxConcurrent             int64
	Config, Limits, Envoy     string
	Launchers                 string
	Routes, Listener          string
}

// observeParts reads the state of all parts. names are the tenants and models that may exist.
func observeParts(g *Gateway, names []string) inForce {
	f := inForce{
		AdminTokens: g.access.Load() != nil, Config: g.config().Hash, Limits: g.limits.config().Hash, Envoy: g.envoy.config().Hash,
		Launchers: g.launchers.config().Hash, Routes: g.envoy.pushed.Routes.Version, Listener: g.envoy.pushed.Listener.Version,
	}
	for _, name := range names {
		if _, ok := g.auth.Tenant(name); ok {
			f.Tenants = append(f.Tenants, name)
		}
		if m := g.fleet.Snapshot().Models[name]; m != nil && m.Launcher == engines.None {
			f.Models = append(f.Models, name)
		}
		if v, ok := g.dispatcher.View(name); ok && v.Policy.Limits.MaxConcurrent > 0 {
			f.Admitted = append(f.Admitted, fmt.Sprint(name, v.Policy.Limits.MaxConcurrent))
		}
	}
	if values, _, _, ok := g.limits.lookup(limits.ModelKey("same")); ok {
		f.MaxConcurrent = values["max_concurrent_requests"]
	}
	return f
}

// rollbackConfig is a configuration in which everything that observeParts sees depends on name.
func rollbackConfig(t *testing.T, dir, addresses, name, more string) *config.Config {
	t.Helper()
	c, err := config.Parse("sluice.yaml", []byte(addresses+"state_dir: "+dir+"\n"+more+`
tenants: [{name: `+name+`, keys: ["`+authz.HashKey("key-of-"+name)+`"]}]
models:
  - {name: `+name+`, launcher: none, admission: {max_concurrent_requests: 7}}
  - {name: same, launcher: none, admission: {max_concurrent_requests: `+fmt.Sprint(len(name))+`}}
`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Each part in turn refuses its plan, or its commit before or after it has done its work. While it
// does, the fleet changes and the scaler acts, which tell Envoy, the limits and the launchers
// again. Afterwards every part runs under the old configuration. Before, a change of the fleet in
// the middle left Envoy with the refused one.
func TestX17_APartThatRefusesLeavesAllOnTheOldConfiguration(t *testing.T) {
	t.Parallel()
	path, addresses := t.TempDir(), listeners(t)
	old := rollbackConfig(t, path, addresses, "old", "")
	next := rollbackConfig(t, path, addresses, "newer", "replica_header: false\nadmin_auth: {tokens: [{name: ops, role: operator, hash: '"+authz.HashKey("x")+"'}]}")
	names := []string{"old", "newer", "same"}
	g := newGateway(t, claimed(t, path), old)
	if err := g.applyFirst(); err != nil {
		t.Fatal(err)
	}
	g.launchers.override("old", &admin.Bounds{Min: 1, Max: 3})
	expectScale := func(when string) {
		if len(g.launchers.currentOverrides()) != 1 {
			t.Errorf("the scale of an operator has ended %s", when)
		}
	}
	meanwhile := func() error {
		g.limits.sync()
		g.launchers.apply()
		return g.envoy.push()
	}
	before, parts := observeParts(g, names), g.parts
	for i, refusing := range parts {
		for _, how := range []string{"plan", "commit not begun", "commit done"} {
			g.parts = append([]part{}, parts...)
			g.parts[i].prepare = func(c *config.Config) (func() error, error) {
				commit, err := refusing.prepare(c)
				switch {
				case c != next || err != nil:
					return commit, err
				case how == "plan":
					return nil, errors.New("refused")
				}
				expectScale("while " + refusing.name + " refuses")
				return func() error {
					if how == "commit done" {
						err = commit()
					}
					return errors.Join(err, meanwhile(), errors.New("refused"))
				}, nil
			}
			if err := g.reload(next); err == nil || !strings.Contains(err.Error(), refusing.name+": ") || strings.Contains(err.Error(), "restoring") {
				t.Errorf("%s refuses (%s): error %v", refusing.name, how, err)
			}
			g.limits.enforce() // reads the fleet again, as the running dispatcher does after each change
			if diff := cmp.Diff(before, observeParts(g, names)); diff != "" || g.settings.file != old {
				t.Errorf("%s refuses (%s): something is not as before (-before +after):\n%s", refusing.name, how, diff)
			}
		}
	}
	g.parts = parts
	g.launchers.override("old", &admin.Bounds{Min: 1, Max: 3}) // the launchers, which do not refuse in truth, have ended it
	if err := g.reload(next); err != nil {
		t.Fatal(err)
	}
	if scales := g.launchers.currentOverrides(); len(scales) > 0 {
		t.Errorf("the new file leaves the scales of the operator: %v", scales)
	}
	after := observeParts(g, names)
	want := inForce{Tenants: []string{"newer"}, Models: []string{"newer", "same"}, Admitted: []string{"newer7", "same5"}, AdminTokens: true, MaxConcurrent: 5,
		Config: next.Hash, Limits: next.Hash, Envoy: next.Hash, Launchers: next.Hash, Routes: after.Routes, Listener: after.Listener}
	if diff := cmp.Diff(want, after); diff != "" || before.Routes == after.Routes && before.Listener == after.Listener {
		t.Errorf("a good configuration after the refused ones (-want +got):\n%s", diff)
	}
}
