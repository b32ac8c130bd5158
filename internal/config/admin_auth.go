package config

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// AdminAuth says who may use the admin listener.
type AdminAuth struct {
	// Tokens are the tokens that callers send as "Authorization: Bearer …", or log in with on the
	// page.
	Tokens []AdminToken `yaml:"tokens"`
	// TrustedHeader trusts a proxy that has authenticated the user. Default: absent.
	TrustedHeader *TrustedHeader `yaml:"trusted_header"`
}

// AdminRole says what a caller of the admin listener may do.
type AdminRole string

// The roles of AdminAuth.
const (
	// AdminViewer may read everything and change nothing.
	AdminViewer AdminRole = "viewer"
	// AdminOperator may also change everything.
	AdminOperator AdminRole = "operator"
)

// AdminToken is a token of the admin listener.
type AdminToken struct {
	// Name is the name of the token's holder. The log names it with every change.
	Name string `yaml:"name" required:"true" form:"name"`
	// Role is viewer (reads) or operator (reads and changes).
	Role AdminRole `yaml:"role" required:"true" oneof:"viewer,operator"`
	// Hash is the hash of the token: sha256: and 64 hex digits, as sluice admin token prints it.
	Hash string `yaml:"hash" required:"true" form:"hash"`
}

// TrustedHeader is a header in which a proxy names the user that it has authenticated.
type TrustedHeader struct {
	// Name is the name of the header, such as x-forwarded-user. The proxy must replace a header of
	// this name that a client sends.
	Name string `yaml:"name" required:"true" form:"header"`
	// From are the addresses of the proxy, each an IP address or a range such as 10.0.0.0/8. The
	// header of other peers is ignored.
	From []string `yaml:"from" required:"true" form:"network"`
	// Role is the role of the users that operators does not name: viewer or operator. Default
	// viewer.
	Role AdminRole `yaml:"role" default:"viewer" oneof:"viewer,operator"`
	// Operators are the names of users with the role operator.
	Operators []string `yaml:"operators"`

	// Proxies is From as ranges.
	Proxies []netip.Prefix `yaml:"-"`
}

// checkAdminAuth checks the admin listener at address and who may use it.
func (k *checker) checkAdminAuth(address netip.AddrPort) {
	a, at := k.config.AdminAuth, path{"admin_auth"}
	switch {
	case a == nil && k.valid(at) && address.IsValid() && !address.Addr().IsLoopback():
		k.faultf(path{"admin"}, "%s can be reached from other machines, so it needs admin_auth: "+
			"make a token with `sluice admin token NAME`, or set admin: 127.0.0.1:%d", address, address.Port())
		return
	case a == nil:
		return
	case len(a.Tokens) == 0 && a.TrustedHeader == nil && k.valid(at):
		k.faultf(at, "admits nobody: add tokens (`sluice admin token NAME` makes one) or trusted_header")
	}
	var names, hashes []named
	for i := range a.Tokens {
		token, where := &a.Tokens[i], at.field("tokens").item(i)
		names = append(names, named{token.Name, where.field("name")})
		k.checkName(where.field("name"), token.Name)
		token.Hash = strings.ToLower(token.Hash)
		if field := where.field("hash"); k.valid(field) && k.isSet(field) && k.checkHash(field, token.Hash, "sluice admin token") {
			hashes = append(hashes, named{token.Hash, field})
		}
	}
	k.checkUnique(names)
	k.checkRepeated(hashes, "token")
	if a.TrustedHeader != nil {
		k.checkTrustedHeader(at.field("trusted_header"), a.TrustedHeader)
	}
}

// checkTrustedHeader checks the header of a proxy and parses the addresses of the proxy.
func (k *checker) checkTrustedHeader(at path, h *TrustedHeader) {
	if where := at.field("name"); k.valid(where) && (h.Name == "" || strings.Trim(h.Name, engines.LettersAndDigits+"-_") != "") {
		k.faultf(where, "must be the name of a header, such as x-forwarded-user, is %s", quoted(h.Name))
	}
	if len(h.From) == 0 && k.isSet(at.field("from")) && k.valid(at.field("from")) {
		k.faultf(at.field("from"), "must name the addresses of the proxy, is empty")
	}
	h.Proxies = k.checkRanges(at.field("from"), h.From)
}

// checkRanges parses IP addresses and ranges, which are trusted. A range of all addresses is a
// fault.
func (k *checker) checkRanges(at path, texts []string) []netip.Prefix {
	var ranges []netip.Prefix
	for i, text := range texts {
		where := at.item(i)
		prefix, err := parseRange(text)
		switch {
		case !k.valid(where):
		case err != nil:
			k.faultf(where, "%s", err)
		case prefix.Bits() == 0:
			k.faultf(where, "%s is every address, so everybody would be trusted: name fewer addresses", prefix)
		default:
			ranges = append(ranges, prefix)
		}
	}
	return ranges
}

// parseRange parses an IP address or a range of addresses.
func parseRange(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
		return netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix != prefix.Masked() {
		return netip.Prefix{}, fmt.Errorf("must be an IP address or a range such as 10.0.0.0/8, is %s", quoted(text))
	}
	return prefix, nil
}
