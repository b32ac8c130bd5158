package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
)

// A file that removes every tenant, every model that has replicas, or every moderation rule, needs
// confirmation. All other
// changes do not.
func TestX10_WhatMustBeConfirmed(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	const models = "models: [{name: a, engine: sim, task: embedding}, {name: b, launcher: none}, {name: c, engine: sim, task: embedding}]\n"
	tenants := `tenants: [{name: acme, keys: ["` + authz.HashKey("acme") + `"]}]` + "\n"
	const rules = "moderation: [{name: secrets, literals: [swordfish]}]\n"
	g := newGateway(t, claimed(t, path), parse(t, path, models+tenants+rules))
	if err := g.applyFirst(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "c"} {
		g.fleet.Set(name, engines.Part{
			Models:   []engines.Model{{Name: name, Launcher: engines.Local}},
			Replicas: []engines.Replica{{ID: name + "-0", Model: name}},
		})
	}
	g.fleet.Set("found", engines.Part{
		Models:   []engines.Model{{Name: "llama", Launcher: engines.Upstream, Discovered: true}},
		Replicas: []engines.Replica{{ID: "llama-0", Model: "llama"}},
	})
	for name, test := range map[string]struct{ file, want string }{
		"all stays":          {models + tenants, ""},
		"one model stays":    {"models: [{name: c, engine: sim, task: embedding}]\n" + tenants, ""},
		"other tenants":      {models + strings.ReplaceAll(tenants, "acme", "other"), ""},
		"nobody needs a key": {"listen: 127.0.0.1:1\n" + models + "auth: {mode: none}\n", ""},
		"servers stay":       {"upstreams: [http://127.0.0.1:1]\n" + tenants, ""},
		"no tenant":          {models, "every tenant (acme)"},
		"no model":           {tenants, "every model that has replicas (a, c, llama)"},
		"only one without":   {"models: [{name: b, launcher: none}]\n" + tenants, "every model that has replicas (a, c, llama)"},
		"no rule":            {models + tenants, "every moderation rule (secrets)"},
		"nothing":            {"{}", "every moderation rule (secrets) and every tenant (acme) and every model that has replicas (a, c, llama)"},
	} {
		if name != "no rule" && name != "nothing" {
			test.file += rules
		}
		next, err := config.Parse("sluice.yaml", []byte(test.file))
		if err != nil {
			t.Fatal(err)
		}
		got := g.mustConfirm(next)
		if want := "the new content removes " + test.want; got != want && got+test.want != "" {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// A file that is held back changes nothing, is a condition, and takes effect when it is forced.
func TestX10_AHeldFileIsACondition(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	file, addresses := filepath.Join(path, "sluice.yaml"), listeners(t)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(addresses+"state_dir: "+filepath.Join(path, "state")+"\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`tenants: [{name: acme, keys: ["` + authz.HashKey("acme") + `"]}]`)
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	g := newGateway(t, claimed(t, c.StateDir), c)
	if err := g.applyFirst(); err != nil {
		t.Fatal(err)
	}
	write("")
	if err := g.watcher.Reload(false); err == nil {
		t.Error("every tenant was removed without a word")
	}
	held := conditionOf(g, condition.ConfigRejected)
	if held.Status != condition.True || held.Reason != "Held" || !strings.Contains(held.Message, "sluice reload --force") {
		t.Errorf("condition %+v", held)
	}
	if strings.Contains(held.Message, "shows the same faults") {
		t.Errorf("sluice check shows no fault of a file that is held back, but the condition says: %s", held.Message)
	}
	if _, ok := g.auth.Tenant("acme"); !ok {
		t.Error("a file that is held back changed who may call")
	}
	if err := g.watcher.Reload(true); err != nil {
		t.Fatal(err)
	}
	if _, ok := g.auth.Tenant("acme"); ok || conditionOf(g, condition.ConfigRejected).Status != condition.False {
		t.Error("the forced file is not in force")
	}
}

// sluice check does not show why a gateway refuses a file without faults. The condition says so.
func TestX10_ARefusedFileIsACondition(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	file, addresses := filepath.Join(path, "sluice.yaml"), listeners(t)+"state_dir: "+filepath.Join(path, "state")+"\n"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(addresses, "listen: 127.0.0.1:", "listen: 0.0.0.0:", 1) + `tenants: [{name: acme, keys: ["` + authz.HashKey("acme") + `"]}]`)
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	g := newGateway(t, claimed(t, c.StateDir), c)
	if err := g.applyFirst(); err != nil {
		t.Fatal(err)
	}
	write(addresses + "auth: {mode: none}\n")
	if _, err := config.Load(file); err != nil {
		t.Fatal(err)
	}
	if err := g.watcher.Reload(true); err == nil {
		t.Fatal("a gateway that others reach admits everybody")
	}
	refused := conditionOf(g, condition.ConfigRejected)
	if refused.Reason != "Refused" || !strings.Contains(refused.Message, "until it is restarted") ||
		!strings.Contains(refused.Message, "`sluice check FILE` finds no fault") || strings.Contains(refused.Message, "shows the same faults") {
		t.Errorf("condition %+v", refused)
	}
}

// A start with a file that has none of the models whose replicas run ends none of them.
func TestX10_AStartWithAShrunkenFileEndsNothing(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	dir := claimed(t, path)
	p, err := dir.Start(process.Spec{Name: "replica/chat-0", Purpose: "replica", Command: []string{"sleep", "1000"},
		Meta: map[string]string{"model": "chat", "index": "0", "address": "127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer dir.EndAll(t.Context(), 0) //nolint:errcheck // the test is over
	g := newGateway(t, dir, configOf(t, path, "acme", "other", "5"))
	err = runGateway(t.Context(), g)
	if err == nil || !strings.Contains(err.Error(), "(chat)") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("Run = %v, want what is wrong and what to do", err)
	}
	if !alive(p.PID()) {
		t.Error("the replica was ended")
	}
	forced, err := New(dir, Options{Config: configOf(t, path, "acme", "other", "5"), Force: true, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := forced.checkFound(forced.options.Config); err != nil {
		t.Errorf("a forced start: %v", err)
	}
	if err := g.checkFound(configOf(t, path, "acme", "chat", "5")); err != nil {
		t.Errorf("a file that has the model: %v", err)
	}
}
