// Package jwks verifies tokens of an identity provider (JSON Web Tokens, RFC 7519) with the signing
// keys that the provider publishes (a JSON Web Key Set, RFC 7517). Package internal/gateway runs a
// Verifier while the configuration has auth.mode jwt.
//
// A token that was verified once is known by its SHA-256 until it expires, so a request costs one
// look into a map. Read verify.go (what a token must have), keys.go (how keys are read and read
// again), search.go (how often tokens cause that) and seen.go (the tokens that were verified).
package jwks

import (
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Config says which tokens are accepted.
type Config struct {
	// URL is where the provider publishes its keys, File the path of a file with them. One of both
	// is set.
	URL, File string
	// Issuer is the claim iss of every token.
	Issuer string
	// Audiences are the values of which the claim aud must have one. Empty: aud is not looked at.
	Audiences []string
	// TenantClaim is the name of the claim with the tenant.
	TenantClaim string
	// Refresh is the interval at which the keys of URL are read again. A File is read each second.
	Refresh time.Duration
}

// equal reports whether two configurations accept the same tokens.
func (c Config) equal(o Config) bool {
	return c.URL == o.URL && c.File == o.File && c.Issuer == o.Issuer && slices.Equal(c.Audiences, o.Audiences) &&
		c.TenantClaim == o.TenantClaim && c.Refresh == o.Refresh
}

// algorithms are the signatures that are accepted. None is symmetric, so that nobody can sign with
// a public key.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.EdDSA}
}

// skew is by how much the clocks of the provider and of the gateway may differ.
const skew = 30 * time.Second
