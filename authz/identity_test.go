package authz_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/jwks"
	"github.com/sluice-gateway/sluice/internal/openai"
)

func TestO12_TrustedHeader(t *testing.T) {
	c := authz.Config{Tenants: []authz.TenantConfig{tenant("acme", "k"), tenant("guests")},
		Header: &authz.TrustedHeader{Name: "x-user", From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}}
	a := policy(t, c)
	c.DefaultTenant = "guests"
	lenient := policy(t, c)
	for name, test := range map[string]struct {
		a          *authz.Authenticator
		user, from string
		want       string
	}{
		"the proxy":                   {a, "acme", "10.1.2.3", "acme"},
		"after another proxy":         {a, "acme", "192.0.2.1, 10.1.2.3", "acme"},
		"as an IPv6 address":          {a, "acme", "::ffff:10.1.2.3", "acme"},
		"by IPv6":                     {a, "acme", "fd00::1", "acme"},
		"a stranger":                  {a, "acme", "192.0.2.1", ""},
		"a stranger, forging":         {a, "acme", "10.1.2.3, 192.0.2.1", ""},
		"from nowhere":                {a, "acme", "", ""},
		"nobody":                      {a, "", "10.1.2.3", ""},
		"another tenant":              {a, "beta", "10.1.2.3", ""},
		"another one, by default":     {lenient, "beta", "10.1.2.3", "guests"},
		"a stranger, though default":  {lenient, "beta", "192.0.2.1", ""},
		"nobody, though default":      {lenient, "", "10.1.2.3", ""},
		"a known one, though default": {lenient, "acme", "10.1.2.3", "acme"},
	} {
		got, fault := test.a.Authenticate(authz.Credentials{User: test.user, ForwardedFor: test.from, Authorization: "Bearer k"})
		switch {
		case test.want == "" && (fault == nil || fault.Code != openai.CodeInvalidAPIKey):
			t.Errorf("%s: %v, %v", name, got, fault)
		case test.want != "" && (fault != nil || got.Name != test.want):
			t.Errorf("%s: %v, %v, want %s", name, got, fault, test.want)
		}
	}
	if !a.Watch("acme", "")() || a.Watch("beta", "")() {
		t.Error("a tenant of the file is valid, another one is not")
	}
	c.DefaultTenant = "nobody"
	if new(authz.Authenticator).Set(c) == nil {
		t.Error("a default tenant that does not exist was accepted")
	}
}

// The header of callers never goes on, whoever has sent it.
func TestO12_TheTrustedHeaderStaysHere(t *testing.T) {
	s := authz.Server{Authenticator: policy(t, authz.Config{Tenants: []authz.TenantConfig{tenant("acme")},
		Header: &authz.TrustedHeader{Name: "x-user", From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}})}
	for from, want := range map[string]bool{"10.0.0.1": true, "11.0.0.1": false} {
		r, err := s.Check(context.Background(), &auth.CheckRequest{Attributes: &auth.AttributeContext{
			Request: &auth.AttributeContext_Request{Http: &auth.AttributeContext_HttpRequest{Path: "/v1/models",
				Headers: map[string]string{"x-user": "acme", "x-forwarded-for": from}}}}})
		if ok := r.GetOkResponse(); err != nil || (ok != nil) != want || want && !slices.Contains(ok.GetHeadersToRemove(), "x-user") {
			t.Errorf("%s: %v, %v", from, r, err)
		}
	}
}

// tokens are made-up tokens: the token itself is the name of the tenant.
type tokens struct{}

func (tokens) Verify(token string, _ func()) (jwks.Identity, error) {
	switch token {
	case "expired":
		return jwks.Identity{}, jwks.ErrExpired
	case "early":
		return jwks.Identity{}, jwks.ErrNoKeys
	case "wrong":
		return jwks.Identity{}, fmt.Errorf("%w: why", jwks.ErrInvalid)
	}
	return jwks.Identity{Tenant: token, Expires: time.Now().Add(time.Hour)}, nil
}

func (tokens) Watch(digest [sha256.Size]byte) func() bool {
	return func() bool { return digest == sha256.Sum256([]byte("acme")) }
}

func TestO12_Tokens(t *testing.T) {
	a := policy(t, authz.Config{Tenants: []authz.TenantConfig{tenant("acme", "k")}, Tokens: tokens{}})
	for token, want := range map[string]openai.Code{
		"acme": "", "beta": openai.CodeInvalidAPIKey, "wrong": openai.CodeInvalidAPIKey, "k": openai.CodeInvalidAPIKey,
		"expired": openai.CodeExpiredAPIKey, "early": openai.CodeGatewayUnavailable, "": openai.CodeInvalidAPIKey,
	} {
		got, fault := a.Authenticate(authz.Credentials{Authorization: "Bearer " + token})
		if want == "" && (fault != nil || got.Name != "acme") || want != "" && (fault == nil || fault.Code != want) {
			t.Errorf("%q: %v, %v, want %q", token, got, fault, want)
		}
	}
	good, bad := a.Proof(authz.Credentials{APIKey: "acme"}), a.Proof(authz.Credentials{APIKey: "beta"})
	if !a.Watch("acme", good)() || a.Watch("acme", bad)() || a.Watch("beta", good)() {
		t.Error("only the token that was verified is valid, and only for its tenant")
	}
	for token, want := range map[string]bool{"acme": false, "early": false, "beta": true, "wrong": true, "expired": true} {
		if got := a.Rejects("acme", token); got != want {
			t.Errorf("%q is rejected: %t", token, got)
		}
	}
}

// seenTokens are tokens that one process has verified.
type seenTokens struct {
	tokens
	seen map[[sha256.Size]byte]bool
}

func (s seenTokens) Verify(token string, onBlock func()) (jwks.Identity, error) {
	i, err := s.tokens.Verify(token, onBlock)
	s.seen[sha256.Sum256([]byte(token))] = err == nil
	return i, err
}

func (s seenTokens) Watch(digest [sha256.Size]byte) func() bool {
	return func() bool { return s.seen[digest] }
}

// During a restart one process may check the token of a WebSocket, and another one may serve it.
func TestO12_ATokenOfAnotherProcess(t *testing.T) {
	process := func() *authz.Authenticator {
		return policy(t, authz.Config{Tenants: []authz.TenantConfig{tenant("acme"), tenant("beta")}, Tokens: seenTokens{seen: map[[sha256.Size]byte]bool{}}})
	}
	s := authz.Server{Authenticator: process()}
	for name, h := range map[string]map[string]string{
		"authorization": {"authorization": "Bearer acme"}, "subprotocol": {"sec-websocket-protocol": "realtime, openai-insecure-api-key.acme"},
	} {
		r, err := s.Check(context.Background(), &auth.CheckRequest{Attributes: &auth.AttributeContext{
			Request: &auth.AttributeContext_Request{Http: &auth.AttributeContext_HttpRequest{Path: "/v1/realtime?model=m", Headers: h}}}})
		if err != nil || r.GetOkResponse() == nil {
			t.Fatalf("%s: %v, %v", name, r, err)
		}
		all := r.GetOkResponse().GetHeaders()
		i := slices.IndexFunc(all, func(o *core.HeaderValueOption) bool { return o.GetHeader().GetKey() == headers.Key })
		proof := all[i].GetHeader().GetValue()
		if other := process(); !other.Watch("acme", proof)() || other.Watch("beta", proof)() {
			t.Errorf("%s: another process does not know whose token it is", name)
		}
	}
}
