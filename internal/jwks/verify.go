package jwks

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Identity is what a token says about its bearer.
type Identity struct {
	// Tenant is the tenant's claim. It is empty if the token has no such claim.
	Tenant string
	// Expires is when the token ends.
	Expires time.Time
}

// The reasons why a token is refused. Errors wrap them.
var (
	// ErrExpired means that the token has ended.
	ErrExpired = errors.New("the token has expired")
	// ErrInvalid means that the token is not one of the provider's for this gateway.
	ErrInvalid = errors.New("the token is not valid")
	// ErrNoKeys means that the gateway has not read the keys of the provider yet, or not again for
	// a token that no known key has signed.
	ErrNoKeys = errors.New("the signing keys of the identity provider cannot be read")
)

// Verify returns what a token says. The error wraps ErrExpired, ErrInvalid or ErrNoKeys, and never
// contains the token. When no known key has signed the token, Verify has the keys read again and
// waits 1.5 s for that at most. search.go bounds how often. Verify calls onBlock before it waits,
// unless onBlock is nil.
func (v *Verifier) Verify(token string, onBlock func()) (Identity, error) {
	p := v.policy.Load()
	if p == nil {
		return Identity{}, ErrNoKeys
	}
	digest := sha256.Sum256([]byte(token))
	now := time.Now()
	if e, ok := p.seen.get(digest); ok && p.keys.has(e.print) {
		return e.identity, expiry(e.identity, now)
	}
	e, err := v.verify(p, token, now, onBlock)
	if err == nil {
		p.seen.put(digest, e)
	}
	return e.identity, err
}

// Watch returns a function that reports whether a token that was just verified is still good: by
// the clock, the keys and the configuration of the moment. digest is its SHA-256. The token stays
// known to the function, however many others come.
func (v *Verifier) Watch(digest [sha256.Size]byte) (valid func() bool) {
	p := v.policy.Load()
	if p == nil {
		return func() bool { return false }
	}
	e, tenantClaim, known := p.verified(digest)
	if !known {
		return func() bool { return false }
	}
	return func() bool {
		p := v.policy.Load()
		// By another claim the token may be another tenant's.
		if p == nil || p.config.TenantClaim != tenantClaim || !p.keys.has(e.print) {
			return false
		}
		_, err := p.config.check(e.claims, time.Now())
		return err == nil
	}
}

// expiry returns ErrExpired if a token has ended.
func expiry(i Identity, now time.Time) error {
	if now.After(i.Expires.Add(skew)) {
		return ErrExpired
	}
	return nil
}

// verify checks a token that was not seen before.
func (v *Verifier) verify(p *policy, token string, now time.Time, onBlock func()) (entry, error) {
	parsed, err := jwt.ParseSigned(token, algorithms())
	if err != nil || len(parsed.Headers) != 1 {
		return entry{}, fmt.Errorf("%w: it must be a JSON Web Token signed with RS256, ES256 or EdDSA", ErrInvalid)
	}
	id := parsed.Headers[0].KeyID
	mayBeNew := func(err error) bool { return errors.Is(err, errUnsigned) || errors.Is(err, errUnnamed) && id != "" }
	e, err := p.signed(parsed, now)
	if !mayBeNew(err) {
		return e, err
	}
	if _, _, invalid := p.config.read(parsed, now); invalid != nil && p.keys != nil {
		return e, err // the token is invalid whatever key has signed it
	}
	fault := v.renew(id, onBlock) // a provider may use the id of a key again for a new one, or use no ids
	if p = v.policy.Load(); p == nil || p.keys == nil {
		return entry{}, ErrNoKeys
	}
	e, err = p.signed(parsed, now)
	switch {
	case !mayBeNew(err):
	case errors.Is(fault, errUnsigned): // no key of this id, as the last reading has found
	case fault != nil:
		return entry{}, fault // the key may be a new one
	default:
		v.missed(id)
	}
	return e, err
}

// errUnsigned means that none of the known keys has signed a token.
var errUnsigned = fmt.Errorf("%w: no key of the identity provider has signed it", ErrInvalid)

// claims are the claims that the gateway uses, besides that of the tenant.
type claims struct {
	Issuer    string           `json:"iss"`
	Audience  jwt.Audience     `json:"aud"`
	Expiry    *jwt.NumericDate `json:"exp"`
	NotBefore *jwt.NumericDate `json:"nbf"`
	IssuedAt  *jwt.NumericDate `json:"iat"`
}

// maxTried is how many keys are tried for one token. A try costs some 50 µs, and made-up tokens
// cost the tries of all keys that may have signed them.
const maxTried = 16

// errUnnamed means that more keys may have signed a token than are tried.
var errUnnamed = fmt.Errorf("%w: more than %d keys may have signed it: its header and its key at the identity provider must have a kid",
	ErrInvalid, maxTried)

// signed checks a token that one of the known keys has signed. If too many may have signed it, only
// those that it names are tried.
func (p *policy) signed(token *jwt.JSONWebToken, now time.Time) (entry, error) {
	named, others := p.keys.find(token.Headers[0].KeyID)
	tooMany := len(named)+len(others) > maxTried
	if tooMany {
		others = nil
	}
	for _, key := range slices.Concat(named[:min(len(named), maxTried)], others) {
		if token.Claims(key.key) == nil {
			i, used, err := p.config.read(token, now)
			return entry{i, key.print, used}, err
		}
	}
	if tooMany {
		return entry{}, errUnnamed
	}
	return entry{}, errUnsigned
}

// read reads and checks the claims of a token with a good signature.
func (c Config) read(token *jwt.JSONWebToken, now time.Time) (i Identity, used claims, err error) {
	var all map[string]any
	if token.UnsafeClaimsWithoutVerification(&used, &all) != nil { // the signature was verified before
		return i, used, fmt.Errorf("%w: one of its claims iss, aud, exp, nbf and iat has another type than RFC 7519 says", ErrInvalid)
	}
	if i, err = c.check(used, now); err == nil {
		i.Tenant, _ = all[c.TenantClaim].(string)
	}
	return i, used, err
}

// check checks the claims of a token.
func (c Config) check(used claims, now time.Time) (Identity, error) {
	if used.Expiry == nil {
		return Identity{}, fmt.Errorf("%w: it has no claim exp", ErrInvalid)
	}
	i := Identity{Expires: used.Expiry.Time()}
	expected := jwt.Expected{Issuer: c.Issuer, Time: now}
	if len(c.Audiences) > 0 {
		expected.AnyAudience = c.Audiences
	}
	all := jwt.Claims{Issuer: used.Issuer, Audience: used.Audience, Expiry: used.Expiry, NotBefore: used.NotBefore, IssuedAt: used.IssuedAt}
	switch err := all.ValidateWithLeeway(expected, skew); {
	case errors.Is(err, jwt.ErrExpired):
		return i, ErrExpired
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return i, fmt.Errorf("%w: its claim iss is another one", ErrInvalid)
	case errors.Is(err, jwt.ErrInvalidAudience):
		return i, fmt.Errorf("%w: its claim aud is another one", ErrInvalid)
	case err != nil:
		return i, fmt.Errorf("%w: it is not valid yet", ErrInvalid)
	}
	return i, nil
}

// publicKey is a key that signs tokens.
type publicKey struct {
	key   jose.JSONWebKey
	print string
}
