package edge

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// signer returns a key of an identity provider.
func signer(t *testing.T, id string) jose.JSONWebKey {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: private, KeyID: id, Use: "sig"}
}

// token returns a token for a tenant that ends after a time.
func token(t *testing.T, key jose.JSONWebKey, tenant string, ends time.Duration) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(s).Claims(map[string]any{
		"iss": "https://login.example", "aud": "sluice", "team": tenant, "exp": time.Now().Add(ends).Unix(),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// asks is a native chat, a managed one, and a request that Sluice answers itself.
func asks(g *harness.Gateway, headers ...string) [3]*harness.Answer {
	const body = `{"model":"chat","messages":[{"role":"user","content":"x"}],"max_tokens":1`
	return [3]*harness.Answer{
		g.Post("/v1/chat/completions", body+`}`, headers...),
		g.Post("/v1/chat/completions", body+`,"stream":true,"heartbeat_ms":1000}`, headers...),
		g.Fetch("/v1/models", headers...),
	}
}

// wantAll fails unless all answers have the status and the code.
func wantAll(t *testing.T, what string, answers [3]*harness.Answer, status int, code string) {
	t.Helper()
	for i, a := range answers {
		if a.StatusCode != status || code != "" && a.Code() != code {
			t.Errorf("%s, request %d: %v, want %d %s", what, i, a, status, code)
		}
	}
}

// TestE2E_O12_TokensOfAnIdentityProvider accepts tokens whose keys the provider publishes, and
// follows a rotation of the keys.
func TestE2E_O12_TokensOfAnIdentityProvider(t *testing.T) {
	t.Parallel()
	one, two := signer(t, "one"), signer(t, "two")
	var published atomic.Pointer[jose.JSONWebKeySet]
	published.Store(&jose.JSONWebKeySet{Keys: []jose.JSONWebKey{one.Public()}})
	var broken atomic.Bool
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			http.Error(w, "broken", http.StatusInternalServerError)
			return
		}
		json.NewEncoder(w).Encode(published.Load()) //nolint:errcheck // a test server
	}))
	t.Cleanup(provider.Close)
	g := harness.Start(t, fmt.Sprintf(`
auth:
  mode: jwt
  jwt: {issuer: "https://login.example", audiences: [sluice], jwks_url: "%s", tenant_claim: team, refresh: 10s}
tenants: [{name: acme}]
`, provider.URL)+small)
	bearer := func(key jose.JSONWebKey, tenant string, ends time.Duration) string {
		return "authorization: Bearer " + token(t, key, tenant, ends)
	}
	old := bearer(one, "acme", time.Hour)
	wantAll(t, "a good token", asks(g, old), 200, "")
	wantAll(t, "no token", asks(g), 401, "invalid_api_key")
	wantAll(t, "an expired token", asks(g, bearer(one, "acme", -time.Hour)), 401, "expired_api_key")
	wantAll(t, "an unknown tenant", asks(g, bearer(one, "beta", time.Hour)), 401, "invalid_api_key")
	wantAll(t, "an unknown key", asks(g, bearer(two, "acme", time.Hour)), 401, "invalid_api_key")
	published.Store(&jose.JSONWebKeySet{Keys: []jose.JSONWebKey{two.Public()}})
	fresh := bearer(two, "acme", time.Hour)
	harness.Eventually(t, "the new key", func() error {
		if a := g.Fetch("/v1/models", fresh); a.StatusCode != 200 {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
	wantAll(t, "a token of the new key", asks(g, fresh), 200, "")
	wantAll(t, "a token of the withdrawn key", asks(g, old), 401, "invalid_api_key")
	broken.Store(true)
	g.AwaitCondition(condition.SigningKeysUnavailable, "auth.jwt")
	wantAll(t, "while the provider fails", asks(g, fresh), 200, "")
}

// TestE2E_O12_AProxyNamesCallers believes the header of the proxy and of nobody else. No engine
// sees the header.
func TestE2E_O12_AProxyNamesCallers(t *testing.T) {
	t.Parallel()
	var leaked atomic.Pointer[string]
	upstream := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			if strings.HasPrefix(strings.ToLower(name), "x-team") || strings.HasPrefix(strings.ToLower(name), "x-forwarded-user") {
				leaked.Store(&name)
			}
		}
		if harness.ServeModelList(w, r, "chat") {
			return
		}
		w.Header().Set("content-type", "application/json")
		fmt.Fprint(w, `{"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}`)
	})
	config := `
auth: {mode: trusted_header, trusted_header: {name: %s, from: [127.0.0.2]}}
tenants: [{name: acme}]
models: [{name: chat, launcher: upstream, upstreams: ["%s"]}]
`
	g := harness.Start(t, fmt.Sprintf(config, "x-team", upstream))
	proxy := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}).DialContext}}
	t.Cleanup(proxy.CloseIdleConnections)
	through := func(path, header, tenant string) *harness.Answer {
		r, err := http.NewRequest(http.MethodPost, g.URL+path, strings.NewReader(`{"model":"chat","messages":[{"role":"user","content":"x"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		if path == "/v1/models" {
			r.Method, r.Body = http.MethodGet, http.NoBody
		}
		r.Header.Set("content-type", "application/json")
		r.Header.Set("x-forwarded-for", "127.0.0.9")
		if tenant != "" {
			r.Header.Set(header, tenant)
		}
		return g.Do(proxy, r)
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/models"} {
		for tenant, want := range map[string]int{"acme": 200, "beta": 401, "": 401} {
			if a := through(path, "x-team", tenant); a.StatusCode != want {
				t.Errorf("%s, tenant %q by the proxy: %v, want %d", path, tenant, a, want)
			}
		}
	}
	wantAll(t, "the header of a stranger", asks(g, "x-team: acme", "x-forwarded-for: 127.0.0.2"), 401, "invalid_api_key")
	g.Configure(fmt.Sprintf(config, "X-Forwarded-User", upstream))
	harness.Eventually(t, "the other header", func() error {
		if a := through("/v1/chat/completions", "x-forwarded-user", "acme"); a.StatusCode != 200 {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
	wantAll(t, "the other header of a stranger", asks(g, "x-forwarded-user: acme"), 401, "invalid_api_key")
	if name := leaked.Load(); name != nil {
		t.Errorf("the engine got the header %s", *name)
	}
	// Envoy names an address of its machine for a peer at 127.0.0.1, where many a proxy runs.
	g.Configure(strings.Replace(fmt.Sprintf(config, "x-team", upstream), "127.0.0.2", "127.0.0.1", 1))
	harness.Eventually(t, "a proxy beside the gateway", func() error {
		if a := g.Post(harness.ChatPath, `{"model":"chat","messages":[{"role":"user","content":"x"}]}`, "x-team: acme"); a.StatusCode != 200 {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
	if a := through("/v1/chat/completions", "x-team", "acme"); a.StatusCode != 401 {
		t.Errorf("127.0.0.2 in the place of 127.0.0.1: %v", a)
	}
}
