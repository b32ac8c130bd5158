package config

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/jwks"
)

// AuthMode says how callers authenticate.
type AuthMode string

// The modes of Auth.
const (
	// AuthKeys admits a caller that presents the key of a tenant.
	AuthKeys AuthMode = "keys"
	// AuthJWT admits a caller that presents a token of an identity provider.
	AuthJWT AuthMode = "jwt"
	// AuthTrustedHeader admits a caller that a proxy has authenticated.
	AuthTrustedHeader AuthMode = "trusted_header"
	// AuthNone admits every caller.
	AuthNone AuthMode = "none"
)

// Auth says who may call.
type Auth struct {
	// Mode is keys (callers need the key of a tenant), jwt (a token of an identity provider),
	// trusted_header (a proxy names the tenant) or none (everybody may call). Mode none is rejected
	// unless listen is on loopback or public is true. Default keys.
	Mode AuthMode `yaml:"mode" default:"keys" oneof:"keys,jwt,trusted_header,none"`
	// Public permits mode none although other machines reach listen. Default false.
	Public bool `yaml:"public"`
	// JWT says which tokens mode jwt accepts. Default: absent.
	JWT *JWT `yaml:"jwt"`
	// TrustedHeader says which header mode trusted_header reads. Default: absent.
	TrustedHeader *CallerHeader `yaml:"trusted_header"`
	// DefaultTenant is the tenant of callers whom a token or the header gives no tenant of the
	// file. Default: empty, they are refused.
	DefaultTenant string `yaml:"default_tenant"`
}

// ByPlace reports whether callers are admitted by where they come from. A page of another site in
// the browser of such a caller could then call as well.
func (a Auth) ByPlace() bool { return a.Mode == AuthNone || a.Mode == AuthTrustedHeader }

// JWT says which tokens of an identity provider are accepted: JSON Web Tokens that are signed with
// RS256, ES256 or EdDSA and have a claim exp.
type JWT struct {
	// Issuer is the claim iss of every token.
	Issuer string `yaml:"issuer" required:"true"`
	// Audiences are the values of which the claim aud must have one. Default: empty, aud is not
	// looked at.
	Audiences []string `yaml:"audiences"`
	// JWKSURL is where the provider publishes its signing keys.
	JWKSURL string `yaml:"jwks_url"`
	// JWKSFile is the path of a file with the signing keys, instead of jwks_url. A relative path
	// counts from the folder of the file.
	JWKSFile string `yaml:"jwks_file"`
	// TenantClaim is the name of the claim with the name of a tenant of the file. Default tenant.
	TenantClaim string `yaml:"tenant_claim" default:"tenant"`
	// Refresh is the interval at which the keys of jwks_url are read again. A token with an unknown
	// key has them read at once. Default 5m.
	Refresh time.Duration `yaml:"refresh" default:"5m" min:"10s" max:"24h"`
}

// CallerHeader is a header in which a proxy names the tenant of a caller that it has authenticated.
type CallerHeader struct {
	// Name is the name of the header, such as x-forwarded-user. Its value is the name of a tenant
	// of the file. The proxy must replace a header of this name that a client sends.
	Name string `yaml:"name" required:"true" form:"header"`
	// From are the addresses of the proxy, each an IP address or a range such as 10.0.0.0/8.
	// Requests of other peers are refused.
	From []string `yaml:"from" required:"true" form:"network"`

	// Proxies is From as ranges.
	Proxies []netip.Prefix `yaml:"-"`
}

// checkAuth checks how callers authenticate.
func (k *checker) checkAuth() {
	a, at := &k.config.Auth, path{"auth"}
	k.checkAuthPart(AuthJWT, a.JWT != nil)
	k.checkAuthPart(AuthTrustedHeader, a.TrustedHeader != nil)
	if a.JWT != nil {
		k.checkJWT(at.field("jwt"), a.JWT)
	}
	if a.TrustedHeader != nil {
		k.checkCallerHeader(at.field("trusted_header"), a.TrustedHeader)
	}
	if field := at.field("public"); a.Public && a.Mode != AuthNone && k.valid(at.field("mode")) {
		k.faultf(field, "has no effect with mode: %s: remove it", a.Mode)
	}
	field, tenants := at.field("default_tenant"), k.tenantNames()
	switch {
	case a.DefaultTenant == "" || !k.valid(field) || !k.valid(at.field("mode")):
	case a.Mode != AuthJWT && a.Mode != AuthTrustedHeader:
		k.faultf(field, "has no effect with mode: %s: remove it", a.Mode)
	case !slices.Contains(tenants, a.DefaultTenant):
		k.faultf(field, "there is no tenant %s; %s", quoted(a.DefaultTenant), suggest(a.DefaultTenant, tenants))
	}
}

// checkAuthPart checks that the fields of a mode are there if and only if the mode is chosen.
func (k *checker) checkAuthPart(mode AuthMode, present bool) {
	at := path{"auth"}
	field := at.field(string(mode))
	if !k.valid(field) || !k.valid(at.field("mode")) {
		return
	}
	switch chosen := k.config.Auth.Mode == mode; {
	case chosen && !present:
		k.faultf(at.field("mode"), "%s needs the section auth.%s", mode, mode)
	case !chosen && present:
		k.faultf(field, "has no effect with mode: %s: set mode: %s, or remove it", k.config.Auth.Mode, mode)
	}
}

// checkJWT checks where the signing keys come from, and reads those of a file.
func (k *checker) checkJWT(at path, j *JWT) {
	if field := at.field("issuer"); j.Issuer == "" && k.isSet(field) && k.valid(field) {
		k.faultf(field, "is empty: set it to the claim iss of the tokens")
	}
	if field := at.field("tenant_claim"); j.TenantClaim == "" && k.valid(field) {
		k.faultf(field, "is empty: set it to the name of a claim")
	}
	url, file := at.field("jwks_url"), at.field("jwks_file")
	if !k.valid(url) || !k.valid(file) {
		return
	}
	switch {
	case (j.JWKSURL == "") == (j.JWKSFile == ""):
		k.faultf(at, "needs either jwks_url or jwks_file")
	case j.JWKSFile != "":
		j.JWKSFile = k.absolutePath(j.JWKSFile)
		if err := jwks.ReadFile(j.JWKSFile); err != nil {
			k.faultf(file, "cannot be used: %v", err)
		}
	case j.host() == "":
		k.faultf(url, "must be the URL of a key set, such as https://login.example/.well-known/jwks.json, is %s", quoted(j.JWKSURL))
	}
}

// host returns the host of JWKSURL; empty if JWKSURL is no URL of HTTP.
func (j *JWT) host() string {
	u, err := url.Parse(j.JWKSURL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return ""
	}
	return u.Hostname()
}

// plainURL reports whether the keys come from another machine without TLS.
func (j *JWT) plainURL() bool {
	host := j.host()
	ip := net.ParseIP(host)
	return strings.HasPrefix(j.JWKSURL, "http:") && host != "localhost" && (ip == nil || !ip.IsLoopback())
}

// checkCallerHeader checks the header of a proxy and parses the addresses of the proxy.
func (k *checker) checkCallerHeader(at path, h *CallerHeader) {
	name := strings.ToLower(h.Name)
	field := at.field("name")
	switch {
	case !k.valid(field) || !k.isSet(field):
	case h.Name == "" || strings.Trim(name, engines.LettersAndDigits+"-") != "":
		k.faultf(field, "must be the name of a header, such as x-forwarded-user, is %s", quoted(h.Name))
	case !headers.CanNameCallers(name):
		k.faultf(field, "%s has another meaning, or never reaches the gateway: choose another header, such as x-forwarded-user", name)
	}
	if len(h.From) == 0 && k.isSet(at.field("from")) && k.valid(at.field("from")) {
		k.faultf(at.field("from"), "must name the addresses of the proxy, is empty")
	}
	h.Proxies = k.checkRanges(at.field("from"), h.From)
}
