// Package authz says who is calling: it turns an API key into a tenant.
//
// There is one policy, the Authenticator, and two ways to it. Inference requests are checked inside the ext_proc exchange
// that they need anyway (package extproc), in its header message, before a body is read. Every other route carries Envoy's
// ext_authz filter, which asks the Server of this package; it fails closed, and serves anyone else's Envoy as well.
//
// A key is 256 random bits. The file holds its SHA-256 only. SHA-256 of a random key needs no salt and no stretching: there is
// nothing to guess. The lookup is by the digest of what was presented, so its timing tells nothing about a stored key.
package authz

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Anyone is the tenant of every caller when no keys are asked for.
const Anyone = "anyone"

// Tenant is someone who may call. It is immutable.
type Tenant struct {
	Name string
	// Models that the tenant may use, by name; "*" is all. A pool is one of these names too.
	Models []string
	// Priority of the tenant's requests, or of those with this key: interactive, default or batch. Empty is default.
	Priority string
}

// Allows says whether the tenant may use the model of this name.
func (t *Tenant) Allows(model string) bool {
	return slices.Contains(t.Models, "*") || slices.Contains(t.Models, model)
}

// Priorities from the highest to the lowest.
const (
	Interactive = "interactive"
	Default     = "default"
	Batch       = "batch"
)

// rank orders the priorities; false for a word that is none. The empty one is default.
func rank(priority string) (int, bool) {
	switch priority {
	case Interactive:
		return 2, true
	case Default, "":
		return 1, true
	case Batch:
		return 0, true
	}
	return 0, false
}

// PriorityOf is the priority of a request that asks for one in the header x-sluice-priority: it can only lower the tenant's own. An
// empty wish is none. The error is of code invalid_request.
func (t *Tenant) PriorityOf(asked string) (string, *openai.Error) {
	own := t.Priority
	if own == "" {
		own = Default
	}
	if asked == "" {
		return own, nil
	}
	wish, ok := rank(asked)
	if !ok {
		return "", &openai.Error{Code: openai.CodeInvalidRequest, Param: headers.Priority,
			Message: headers.Priority + " must be interactive, default or batch."}
	}
	if most, _ := rank(own); wish > most {
		return own, nil
	}
	return asked, nil
}

// Config is the policy.
type Config struct {
	// Open lets everybody in as the tenant Anyone. For listeners on loopback only; the caller sees to that.
	Open    bool
	Tenants []TenantConfig
}

// TenantConfig is a tenant and the hashes of its keys. A tenant some of whose keys have a priority of their own is there several times,
// the tenant's own priority first.
type TenantConfig struct {
	Tenant
	// Keys are "sha256:" and 64 hex digits each. Several keys overlap while one replaces the other.
	Keys []string
}

type digest [sha256.Size]byte

// policy is immutable; a change replaces it.
type policy struct {
	open    *Tenant
	tenants map[digest]*Tenant
	names   map[string]*Tenant
}

// Authenticator holds the policy in force. Its methods may be called concurrently. The zero value lets nobody in.
type Authenticator struct {
	policy atomic.Pointer[policy]
}

// Set replaces the policy. A faulty one leaves the policy in force as it is.
func (a *Authenticator) Set(c Config) error {
	p := &policy{tenants: map[digest]*Tenant{}, names: map[string]*Tenant{}}
	if c.Open {
		p.open = &Tenant{Name: Anyone, Models: []string{"*"}}
		p.names[Anyone] = p.open
	}
	for _, tenant := range c.Tenants {
		t := tenant.Tenant
		if p.names[t.Name] == nil {
			p.names[t.Name] = &t
		}
		for _, key := range tenant.Keys {
			d, err := parseHash(key)
			if err != nil {
				return fmt.Errorf("tenant %s: %w", t.Name, err)
			}
			if other, taken := p.tenants[d]; taken {
				return fmt.Errorf("tenant %s: one of its keys also belongs to tenant %s", t.Name, other.Name)
			}
			p.tenants[d] = &t
		}
	}
	a.policy.Store(p)
	return nil
}

// Tenant finds a tenant by name, for a request that was authenticated before.
func (a *Authenticator) Tenant(name string) (*Tenant, bool) {
	p := a.policy.Load()
	if p == nil {
		return nil, false
	}
	t, ok := p.names[name]
	return t, ok
}

// Credentials are what a request presents, as the values of its headers.
type Credentials struct {
	// Authorization is the header of that name: "Bearer <key>".
	Authorization string
	// APIKey is the header x-api-key (or api-key); looked at when there is no Authorization.
	APIKey string
}

// Authenticate finds the tenant of the caller. The error is of code invalid_api_key and never holds the key.
func (a *Authenticator) Authenticate(c Credentials) (*Tenant, *openai.Error) {
	p := a.policy.Load()
	if p == nil {
		return nil, openai.Errorf(openai.CodeInvalidAPIKey, "No API keys are configured.")
	}
	if p.open != nil {
		return p.open, nil
	}
	key, fault := c.key()
	if fault != nil {
		return nil, fault
	}
	// The map is looked up by a digest of the whole key, which nobody can steer towards a stored one byte by byte, so
	// that a constant-time comparison would protect nothing more.
	if t, ok := p.tenants[sha256.Sum256([]byte(key))]; ok {
		return t, nil
	}
	return nil, openai.Errorf(openai.CodeInvalidAPIKey, "Incorrect API key provided.")
}

// Digest names the key that was presented, without telling it; empty when none was.
func (c Credentials) Digest() string {
	key, fault := c.key()
	if fault != nil {
		return ""
	}
	d := sha256.Sum256([]byte(key))
	return hex.EncodeToString(d[:])
}

// Valid says whether the key of this digest still is one of the tenant's.
func (a *Authenticator) Valid(tenant, key string) bool {
	p := a.policy.Load()
	if p == nil || p.open != nil {
		return p != nil
	}
	d, err := parseHash(hashPrefix + key)
	t, ok := p.tenants[d]
	return err == nil && ok && t.Name == tenant
}

func (c Credentials) key() (string, *openai.Error) {
	if c.Authorization == "" {
		if c.APIKey != "" {
			return c.APIKey, nil
		}
		return "", openai.Errorf(openai.CodeInvalidAPIKey,
			"You didn't provide an API key. Send it in the header Authorization: Bearer <key>.")
	}
	scheme, key, _ := strings.Cut(c.Authorization, " ")
	key = strings.TrimSpace(key)
	if !strings.EqualFold(scheme, "Bearer") || key == "" {
		return "", openai.Errorf(openai.CodeInvalidAPIKey, "The Authorization header must be of the form Bearer <key>.")
	}
	return key, nil
}

// hashPrefix says which hash of a key it is.
const hashPrefix = "sha256:"

func parseHash(s string) (digest, error) {
	var d digest
	text, ok := strings.CutPrefix(s, hashPrefix)
	if !ok || hex.DecodedLen(len(text)) != len(d) {
		return d, fmt.Errorf("a key hash must be sha256: and %d hex digits", hex.EncodedLen(len(d)))
	}
	if _, err := hex.Decode(d[:], []byte(text)); err != nil {
		return d, fmt.Errorf("a key hash must be sha256: and %d hex digits", hex.EncodedLen(len(d)))
	}
	return d, nil
}
