package authz

import (
	"crypto/sha256"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/internal/jwks"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// TrustedHeader is a header in which a proxy names the tenant of a caller that it has
// authenticated. It is immutable.
type TrustedHeader struct {
	// Name is the name of the header, in lower case.
	Name string
	// From are the addresses of the proxy. The header of other peers is ignored.
	From []netip.Prefix
}

// Tokens verifies tokens of an identity provider.
type Tokens interface {
	// Verify returns what a token says.
	Verify(token string, onBlock func()) (jwks.Identity, error)
	// Watch returns a function that reports whether a token that was just verified is still good.
	// digest is its SHA-256.
	Watch(digest [sha256.Size]byte) (valid func() bool)
}

// Header returns the name of the header in which a trusted proxy names tenants; empty if there is
// none. The header of other peers is never passed on either.
func (a *Authenticator) Header() string {
	if p := a.current(); p.header != nil {
		return p.header.Name
	}
	return ""
}

// named finds the tenant that a trusted proxy has named.
func (p *policy) named(c Credentials) (*Tenant, *openai.Error) {
	if !p.header.trusts(c.ForwardedFor) {
		return nil, openai.Errorf(openai.CodeInvalidAPIKey, "Requests must come through the proxy that authenticates callers.")
	}
	if c.User == "" {
		return nil, openai.Errorf(openai.CodeInvalidAPIKey, "The proxy has not named the caller in the header %s.", p.header.Name)
	}
	return p.tenantOf(c.User)
}

// loopback are the peers for which Envoy names an address of its machine.
var loopback = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// trusts reports whether the last address of x-forwarded-for, the peer of Envoy, is a proxy's. An
// address of this machine may also stand for a loopback address.
func (h *TrustedHeader) trusts(forwardedFor string) bool {
	peer := forwardedFor[strings.LastIndexByte(forwardedFor, ',')+1:]
	address, err := netip.ParseAddr(strings.TrimSpace(peer))
	if err != nil {
		return false
	}
	address = address.Unmap()
	return h.names(address) || slices.ContainsFunc(loopback, h.names) && isOwn(address)
}

// names reports whether an address is among those of the proxy.
func (h *TrustedHeader) names(a netip.Addr) bool {
	return slices.ContainsFunc(h.From, func(p netip.Prefix) bool { return p.Contains(a) })
}

// bearer finds the tenant that a token names.
func (p *policy) bearer(token string, onBlock func()) (*Tenant, *openai.Error) {
	identity, err := p.tokens.Verify(token, onBlock)
	switch {
	case err == nil:
		return p.tenantOf(identity.Tenant)
	case errors.Is(err, jwks.ErrExpired):
		return nil, openai.Errorf(openai.CodeExpiredAPIKey, "The token has expired. Get a new one from the identity provider.")
	case errors.Is(err, jwks.ErrNoKeys):
		return nil, openai.Errorf(openai.CodeGatewayUnavailable, "The gateway cannot read the keys of the identity provider at the moment.")
	}
	return nil, openai.Errorf(openai.CodeInvalidAPIKey, "The token was refused: %v.", err)
}

// tenantOf finds the tenant of a caller that has proved its identity.
func (p *policy) tenantOf(name string) (*Tenant, *openai.Error) {
	if t := p.byName[name]; t != nil {
		return t, nil
	}
	if p.fallback != nil {
		return p.fallback, nil
	}
	return nil, openai.Errorf(openai.CodeInvalidAPIKey, "The caller belongs to no tenant of this gateway.")
}
