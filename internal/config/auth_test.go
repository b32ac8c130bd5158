package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authFile writes a configuration with the text and parses it.
func authFile(t *testing.T, text string) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "sluice.yaml")
	keys := `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`
	for name, content := range map[string]string{file: text + "\ntenants: [{name: acme}]\n", filepath.Join(dir, "jwks.json"): keys} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Load(file)
}

func TestO12_AuthModes(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"listen: 127.0.0.1:1\nauth: {mode: none}",
		"auth: {mode: none, public: true}",
		"auth: {mode: jwt, jwt: {issuer: i, jwks_file: jwks.json, audiences: [a]}}",
		"auth: {mode: jwt, jwt: {issuer: i, jwks_url: https://login.example/keys}, default_tenant: acme}",
		"auth: {mode: trusted_header, trusted_header: {name: X-Forwarded-User, from: [10.0.0.0/8]}}",
	} {
		if _, err := authFile(t, text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	c, err := authFile(t, "auth: {mode: jwt, jwt: {issuer: i, jwks_file: jwks.json}}")
	if err != nil || c.Auth.JWT.TenantClaim != "tenant" || c.Auth.JWT.Refresh != 5*time.Minute || !filepath.IsAbs(c.Auth.JWT.JWKSFile) {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = authFile(t, "auth: {mode: jwt, jwt: {issuer: i, jwks_url: http://login.example/keys}}")
	if err != nil || len(c.Warnings()) == 0 || !strings.Contains(strings.Join(c.Warnings(), "\n"), "has no TLS") {
		t.Errorf("keys without TLS: %v", err)
	}
}

func TestO12_AuthFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"auth: {mode: none}":                             "auth.mode: none admits everybody, and 0.0.0.0:8080 can be reached",
		"auth: {mode: keys, public: true}":               "auth.public: has no effect",
		"auth: {mode: jwt}":                              "auth.mode: jwt needs the section auth.jwt",
		"auth: {mode: trusted_header}":                   "auth.mode: trusted_header needs the section auth.trusted_header",
		"auth: {jwt: {issuer: i, jwks_file: jwks.json}}": "auth.jwt: has no effect with mode: keys",
		"auth: {mode: jwt, jwt: {issuer: i}}":            "auth.jwt: needs either jwks_url or jwks_file",
		"auth: {mode: jwt, jwt: {issuer: i, jwks_url: \"https://x\", jwks_file: jwks.json}}":            "auth.jwt: needs either",
		"auth: {mode: jwt, jwt: {issuer: i, jwks_url: login.example}}":                                  "auth.jwt.jwks_url: must be the URL",
		"auth: {mode: jwt, jwt: {issuer: i, jwks_file: none.json}}":                                     "auth.jwt.jwks_file: cannot be used",
		"auth: {mode: jwt, jwt: {jwks_file: jwks.json}}":                                                "auth.jwt.issuer: required",
		"auth: {mode: jwt, jwt: {issuer: i, jwks_file: jwks.json}, default_tenant: nobody}":             "auth.default_tenant: there is no tenant nobody",
		"auth: {default_tenant: acme}":                                                                  "auth.default_tenant: has no effect",
		"auth: {mode: trusted_header, trusted_header: {name: authorization, from: [10.0.0.1]}}":         "auth.trusted_header.name: authorization has another meaning",
		"auth: {mode: trusted_header, trusted_header: {name: x-real-ip, from: [10.0.0.1]}}":             "auth.trusted_header.name: x-real-ip has another meaning",
		"auth: {mode: trusted_header, trusted_header: {name: x_user, from: [10.0.0.1]}}":                "auth.trusted_header.name: must be the name of a header",
		"auth: {mode: trusted_header, trusted_header: {name: x-forwarded-user, from: [\"0.0.0.0/0\"]}}": "is every address",
		"auth: {mode: trusted_header, trusted_header: {name: x-forwarded-user, from: []}}":              "auth.trusted_header.from: must name the addresses",
	} {
		if _, err := authFile(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestPoolWithoutUsableModels: a tenant that may request a pool needs one of its models, too.
func TestPoolWithoutUsableModels(t *testing.T) {
	t.Parallel()
	for models, want := range map[string]int{"[both]": 1, "[both, one]": 0, `["*"]`: 0, "[one]": 0, "[alias, both]": 0} {
		c := parsed(t, "models:\n  - {name: one, engine: sim, launcher: local, aliases: [alias]}\n  - {name: two, engine: sim, launcher: local}\n"+
			"pools: [{name: both, models: [alias, two]}]\ntenants:\n  - {name: acme, models: "+models+"}\n")
		if got := c.Warnings(); len(got) != want || want > 0 && !strings.HasPrefix(got[0], "tenant acme may request the pool both and none of its models") {
			t.Errorf("%s: %q", models, got)
		}
	}
}
