package gateway

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
)

// A key of run time may name only models that its tenant may use, as far as they are known.
func TestB4_ModelsOfANewKey(t *testing.T) {
	const models = "models: [{name: x, launcher: none, aliases: [other]}, {name: y, launcher: none}]\npools: [{name: p, models: [x, y]}]\n"
	parse := func(more string) *config.Config {
		t.Helper()
		c, err := config.Parse("sluice.yaml", []byte(models+"tenants: [{name: some, models: [x]}, {name: all}]\n"+more))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	known, discovering := parse(""), parse("upstreams: [http://127.0.0.1:9]\n")
	for _, c := range []struct {
		config *config.Config
		tenant string
		names  string
		want   string
	}{
		{known, "some", "x other *", ""},
		{known, "some", "x y", `The tenant some may not use "y"`},
		{known, "some", "p", `The tenant some may not use "p"`},
		{known, "some", "z", `There is no model or pool "z"`},
		{known, "all", "x y p", ""},
		{discovering, "some", "x y z p", ""},
	} {
		got := wrongModel(c.config, admin.NewKey{Tenant: c.tenant, Models: strings.Fields(c.names)})
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s of %s: %q, want %q", c.names, c.tenant, got, c.want)
		}
	}
	if got := wrongModel(known, admin.NewKey{Tenant: "all", Models: slices.Repeat([]string{"x"}, maxKeyModels+1)}); got == "" {
		t.Error("a key may name too many models")
	}
}
