package gateway

import (
	"testing"

	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
)

// A file that moves the admin listener to loopback and drops admin_auth does not open the listener
// that is still on another address.
func TestX12_AccessStaysUntilTheListenerMoves(t *testing.T) {
	t.Parallel()
	token := &config.AdminAuth{Tokens: []config.AdminToken{{Name: "ops", Role: config.AdminOperator,
		Hash: "sha256:0000000000000000000000000000000000000000000000000000000000000001"}}}
	guarded := &config.Config{Admin: "0.0.0.0:9090", AdminAuth: token}
	for name, c := range map[string]struct {
		first, next *config.Config
		open        bool
	}{
		"moved and open":   {guarded, &config.Config{Admin: "127.0.0.1:9090"}, false},
		"open on loopback": {&config.Config{Admin: "127.0.0.1:9090", AdminAuth: token}, &config.Config{Admin: "127.0.0.1:9090"}, true},
		"always open":      {&config.Config{Admin: "127.0.0.1:9090"}, &config.Config{Admin: "127.0.0.1:9090"}, true},
		"still guarded":    {guarded, guarded, false},
	} {
		g := &Gateway{options: Options{Config: c.first}}
		for _, next := range []*config.Config{c.first, c.next} {
			commit, err := g.prepareAccess(next)
			if err != nil {
				t.Fatal(err)
			}
			if err := commit(); err != nil {
				t.Fatal(err)
			}
		}
		access := g.access.Load()
		if (access == nil) != c.open {
			t.Errorf("%s: %+v", name, access)
		}
		if access != nil && (access.Tokens[0].Name != "ops" || access.Tokens[0].Role != admin.Operator || access.Tokens[0].Hash[31] != 1) {
			t.Errorf("%s: %+v", name, access.Tokens)
		}
	}
}

// A file that moves listen to loopback and admits everybody there is refused while Envoy still
// listens elsewhere.
func TestX12_KeysStayUntilTheListenerMoves(t *testing.T) {
	t.Parallel()
	open := config.Auth{Mode: config.AuthNone}
	for name, c := range map[string]struct {
		listens string
		next    *config.Config
		fault   bool
	}{
		"moved and open":   {"0.0.0.0:8080", &config.Config{Listen: "127.0.0.1:8080", Auth: open}, true},
		"moved with keys":  {"0.0.0.0:8080", &config.Config{Listen: "127.0.0.1:8080", Auth: config.Auth{Mode: config.AuthKeys}}, false},
		"open on loopback": {"127.0.0.1:8080", &config.Config{Listen: "127.0.0.1:9080", Auth: open}, false},
		"open on purpose":  {"0.0.0.0:8080", &config.Config{Listen: "127.0.0.1:8080", Auth: config.Auth{Mode: config.AuthNone, Public: true}}, false},
	} {
		g := &Gateway{options: Options{Config: &config.Config{Listen: c.listens}}}
		if _, err := g.prepareAuth(c.next); (err != nil) != c.fault {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A Gateway that takes the place of a failed process has the listener of before and the file of
// now. It keeps the access before, as that process did.
func TestX12_AccessStaysInAGatewayThatTakesThePlaceOfAnother(t *testing.T) {
	t.Parallel()
	before := &admin.Access{}
	for address, want := range map[string]*admin.Access{"0.0.0.0:9090": before, "127.0.0.1:9090": nil} {
		c := &config.Config{Admin: address}
		g := &Gateway{options: Options{Config: c}}
		g.access.Store(before)
		commit, err := g.prepareAccess(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := commit(); err != nil {
			t.Fatal(err)
		}
		if access := g.access.Load(); access != want {
			t.Errorf("admin: %s: %+v", address, access)
		}
	}
}
