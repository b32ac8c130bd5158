package gateway

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
)

// A key of run time may name only models that its tenant may use, as far as they are known.
func TestB4_ModelsOfANewKey(t *testing.T) {
	const models = "models: [{name: x, launcher: none, aliases: [other]}, {name: y, launcher: none, adapters: [l]}]\npools: [{name: p, models: [x, y]}]\n"
	parse := func(more string) *config.Config {
		t.Helper()
		c, err := config.Parse("sluice.yaml", []byte(models+"tenants: [{name: some, models: [x]}, {name: all}, {name: lora, models: [l]}]\n"+more))
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
		{known, "some", "l", `The tenant some may not use "l"`},
		{known, "all", "l", ""},
		{known, "lora", "l", ""},
		{known, "lora", "y", `The tenant lora may not use "y"`},
		{known, "some", "p", `The tenant some may not use "p"`},
		{known, "some", "z", `There is no model or pool "z". ` + "`sluice models` lists the models."},
		{known, "all", "x y p", ""},
		{discovering, "some", "x y z p", ""},
	} {
		got := wrongModel(c.config, admin.NewKey{Tenant: c.tenant, Models: strings.Fields(c.names)})
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s of %s: %q, want %q", c.names, c.tenant, got, c.want)
		}
	}
	if got := wrongModel(known, admin.NewKey{Tenant: "all", Models: []string{}}); got == "" {
		t.Error("a key that may use no model is made, and may use all")
	}
	if got := wrongModel(known, admin.NewKey{Tenant: "all"}); got != "" {
		t.Errorf("a key with the models of its tenant is refused: %s", got)
	}
	if got := wrongModel(known, admin.NewKey{Tenant: "all", Models: slices.Repeat([]string{"x"}, maxKeyModels+1)}); got == "" {
		t.Error("a key may name too many models")
	}
}

// The budgets of a new key obey the rules of those in the file.
func TestB3_BudgetsOfANewKey(t *testing.T) {
	parse := func(file string) *config.Config {
		t.Helper()
		c, err := config.Parse("sluice.yaml", []byte(file))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	usual, short := parse("models: [{name: x, launcher: none, prices: {completion: 1}}]"), parse("usage: {daily_days: 10}")
	for _, c := range []struct {
		config *config.Config
		asked  []admin.KeyBudget
		want   string
	}{
		{usual, nil, ""},
		{usual, []admin.KeyBudget{{Per: "day", Hard: 1}, {Per: "day", Of: "cost", Soft: 1}, {Per: "month", Soft: 1, Hard: 1}}, ""},
		{usual, []admin.KeyBudget{{Per: "week", Hard: 1}}, "budgets[0].per must be day or month."},
		{usual, []admin.KeyBudget{{Per: "day", Of: "requests", Hard: 1}}, "budgets[0].of must be tokens or cost."},
		{usual, []admin.KeyBudget{{Per: "day", Hard: 1}, {Per: "day", Of: "tokens", Hard: 2}}, "budgets has two of tokens per day: give one of them both soft and hard."},
		{usual, []admin.KeyBudget{{Per: "day", Hard: -1}}, "budgets[0] must not be below 0."},
		{usual, []admin.KeyBudget{{Per: "day"}}, "budgets[0] needs soft, hard or both, above 0."},
		{usual, []admin.KeyBudget{{Per: "day", Soft: 2, Hard: 1}}, "budgets[0].soft must not be above hard, which is 1."},
		{short, []admin.KeyBudget{{Per: "day", Of: "cost", Hard: 1}},
			"budgets[0].of is cost, but no model of the file has prices, so it would count nothing: give models prices, or bound tokens."},
		{short, []admin.KeyBudget{{Per: "month", Hard: 1}}, "budgets[0].per is month, but usage.daily_days keeps 10 days: a restart would forget the rest of the month."},
	} {
		got, wrong := newBudgets(c.config, admin.NewKey{Budgets: c.asked})
		if wrong != c.want || wrong == "" && len(got) != len(c.asked) {
			t.Errorf("%v: %v, %q, want %q", c.asked, got, wrong, c.want)
		}
	}
	if got, _ := newBudgets(usual, admin.NewKey{Budgets: []admin.KeyBudget{{Per: "day", Hard: 1}}}); got[0].Of != "tokens" {
		t.Errorf("without of: %v", got)
	}
}

// A budget of cost of a new key is refused if no model that the key may use has prices.
func TestB4_ABudgetOfCostOfAKeyWithoutPrices(t *testing.T) {
	c, err := config.Parse("sluice.yaml", []byte(`models: [{name: dear, launcher: none, prices: {completion: 1}}, {name: free, launcher: none}]
tenants: [{name: all}, {name: poor, models: [free]}]`))
	if err != nil {
		t.Fatal(err)
	}
	for _, asked := range []struct {
		key   admin.NewKey
		wrong bool
	}{
		{admin.NewKey{Tenant: "all"}, false},
		{admin.NewKey{Tenant: "all", Models: []string{"free", "dear"}}, false},
		{admin.NewKey{Tenant: "all", Models: []string{"free"}}, true},
		{admin.NewKey{Tenant: "poor"}, true},
		{admin.NewKey{Tenant: "poor", Models: []string{"*"}}, true},
	} {
		asked.key.Budgets = []admin.KeyBudget{{Per: "day", Of: "cost", Hard: 1}}
		if _, wrong := newBudgets(c, asked.key); (wrong != "") != asked.wrong {
			t.Errorf("%s %v: %q", asked.key.Tenant, asked.key.Models, wrong)
		}
	}
}

// A new key for a tenant that the file does not have is refused by the name of that tenant.
func TestB4_ANewKeyOfAnUnknownTenant(t *testing.T) {
	c := &config.Config{Auth: config.Auth{Mode: config.AuthKeys}, Tenants: []config.Tenant{{Name: "acme"}}}
	g := new(Gateway)
	g.settings.first = c
	_, _, fault := keyAdmin{g}.New(t.Context(), admin.NewKey{Tenant: "u"})
	if fault == nil || fault.Param != "tenant" || fault.Message != "The file has no tenant \"u\": use the name of one of its tenants, or put the tenant into the file. `sluice keys new --tenant u --print` prints its lines." {
		t.Errorf("the fault is %+v", fault)
	}
}

// An answer of Redis that ends with a full stop gets no second one.
func TestB4_WhyAKeyIsNotStored(t *testing.T) {
	fault := keysFault(errors.New("ERR The user executing the script can't run this command, on @user_script:12."))
	if !strings.HasSuffix(fault.Message, "@user_script:12.") {
		t.Error(fault.Message)
	}
}

// Who names a key or a request that is not there is told which command lists them.
func TestO8_UnknownNamesAreToldWithACommand(t *testing.T) {
	path := t.TempDir()
	g := newGateway(t, claimed(t, path), configOf(t, path, "acme", "old", "5"))
	if _, fault := (keyAdmin{g}).Revoke(t.Context(), "none"); fault == nil || fault.Status != 404 || !strings.Contains(fault.Message, "`sluice keys list`") {
		t.Errorf("revoke: %+v", fault)
	}
	if fault := g.operator.CancelRequest("none"); fault == nil || fault.Status != 404 || !strings.Contains(fault.Message, "`sluice requests`") {
		t.Errorf("cancel: %+v", fault)
	}
}
