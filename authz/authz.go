// Package authz authenticates callers: it maps an API key to a tenant. Package extproc uses it for
// inference requests, and Envoy's ext_authz filter uses its Server for all other routes.
//
// The policy is held by one Authenticator. Inference requests are checked inside the ext_proc
// exchange that they need anyway: extproc checks the key in the message with the headers, before
// Envoy reads a body. The ext_authz filter fails closed. Server speaks plain ext_authz, so an Envoy
// that Sluice does not run may call it too.
//
// A key made by NewKey has 256 random bits. The configuration file holds only the SHA-256 of a key.
// A random key needs no salt and no key stretching, because nobody can guess it. The Authenticator
// looks a key up by its digest, so the time of the lookup says nothing about a stored key.
package authz

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Anyone is the name of the tenant of every caller when Config.Open is set.
const Anyone = "anyone"

// Tenant is a customer of the gateway. A Tenant is immutable.
type Tenant struct {
	Name string
	// Key names the key of the caller, see KeyName. It is empty if the caller needs no key, or if
	// the tenant was found by its name alone.
	Key string
	// Models are the names of the models and pools that the tenant may use. "*" stands for all.
	Models []string
	// KeyLimited says that the key has limits of its own, KeyShown how messages name the key: how
	// it begins, or its id.
	KeyLimited bool
	KeyShown   string
	// KeyModels are those that the key may use, of Models. nil: all of them.
	KeyModels []string
	// Priority is the priority of requests with this key: Interactive, Default or Batch. Empty
	// means Default.
	Priority string
	// EngineLog permits the tenant to read the last log line of a replica that starts for its
	// request.
	EngineLog bool
}

// Allows reports whether the tenant may use the model or pool of this name with this key.
func (t *Tenant) Allows(model string) bool {
	return names(t.Models, model) && (t.KeyModels == nil || names(t.KeyModels, model))
}

// names reports whether a list names the model, or all.
func names(models []string, model string) bool {
	return slices.Contains(models, "*") || slices.Contains(models, model)
}

// The priorities of requests, from the highest to the lowest.
const (
	Interactive = "interactive"
	Default     = "default"
	Batch       = "batch"
)

// rank returns the position of a priority, where a higher number is a higher priority. It returns
// false for an unknown word. The empty word is Default.
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

// PriorityOf returns the priority of a request whose header x-sluice-priority asks for a priority.
// A request can lower the priority of its key and cannot raise it. An empty asked means that the
// client sent no such header. The error has the code invalid_request.
func (t *Tenant) PriorityOf(asked string) (string, *openai.Error) {
	own := cmp.Or(t.Priority, Default)
	if asked == "" {
		return own, nil
	}
	wanted, ok := rank(asked)
	if !ok {
		return "", &openai.Error{Code: openai.CodeInvalidRequest, Param: headers.Priority,
			Message: headers.Priority + " must be interactive, default or batch."}
	}
	if limit, _ := rank(own); wanted > limit {
		return own, nil
	}
	return asked, nil
}

// Config is the policy for Authenticator.Set.
type Config struct {
	// Open authenticates every caller as the tenant Anyone. It is meant for listeners on loopback,
	// which the caller of Set must check.
	Open bool
	// Header has callers named by a proxy. nil: not so.
	Header *TrustedHeader
	// Tokens has callers named by tokens of an identity provider. nil: not so. With neither Open,
	// Header nor Tokens, callers need a key.
	Tokens Tokens
	// DefaultTenant is the tenant of callers whom Header or Tokens give no tenant that exists.
	// Empty: they are refused.
	DefaultTenant string
	Tenants       []TenantConfig
}

// TenantConfig is a tenant and its keys. Any of the keys authenticates the tenant, so an old and a
// new key can overlap.
type TenantConfig struct {
	Tenant
	Keys []KeyConfig
}

// digest is the SHA-256 of a key.
type digest [sha256.Size]byte

// policy is a Config, and the keys of run time, prepared for lookups. It is immutable but for the
// times of use; Authenticator.Set and SetKeys replace it.
type policy struct {
	// open is the tenant of every caller, or nil if callers must say who they are.
	open *Tenant
	// header and tokens are those of the Config, and fallback is its DefaultTenant. Each is nil if
	// the Config has none.
	header   *TrustedHeader
	tokens   Tokens
	fallback *Tenant
	// byKey has every key, byKeyName the tenants of these by the names of the keys, byName every
	// tenant.
	byKey     map[digest]*keyEntry
	byKeyName map[string]*Tenant
	byName    map[string]*Tenant
}

// Authenticator holds the current policy. Its methods are safe for concurrent use. The zero value
// refuses every caller.
type Authenticator struct {
	policy atomic.Pointer[policy]
	// unread says that the keys of run time are not known yet.
	unread atomic.Bool

	// mu is held while the policy is replaced. It guards what the policy is made of: config is nil
	// before the first Set.
	mu      sync.Mutex
	config  *Config
	runtime []RuntimeKey
	// used has when each key of the policy was last used, over all policies. Guarded by mu.
	used map[digest]*lastUse
}

// Set replaces the policy. If the new policy is invalid, Set returns an error and keeps the current
// one.
func (a *Authenticator) Set(c Config) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.replaceLocked(&c, a.runtime)
}

// SetKeys replaces the keys of run time. A key whose hash is malformed, or whose tenant does not
// exist, authenticates nobody. A key of the Config comes before one of run time.
func (a *Authenticator) SetKeys(keys []RuntimeKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.config == nil {
		a.runtime = keys
		return
	}
	_ = a.replaceLocked(a.config, keys) // the Config was valid before
}

// SetUnread says whether the keys of run time are yet to be told by SetKeys. Until then a key that
// may be one of them is refused with gateway_unavailable.
func (a *Authenticator) SetUnread(unread bool) { a.unread.Store(unread) }

// replaceLocked makes a policy of a Config and of the keys of run time. mu is held.
func (a *Authenticator) replaceLocked(c *Config, keys []RuntimeKey) error {
	p, err := newPolicy(c)
	if err != nil {
		return err
	}
	for _, k := range keys {
		p.addRuntimeKey(k)
	}
	a.used = p.keepUses(a.used)
	a.config, a.runtime = c, keys
	a.policy.Store(p)
	return nil
}

// newPolicy makes a policy without keys of run time.
func newPolicy(c *Config) (*policy, error) {
	p := &policy{byKey: map[digest]*keyEntry{}, byKeyName: map[string]*Tenant{}, byName: map[string]*Tenant{}, header: c.Header, tokens: c.Tokens}
	if c.Open {
		p.open = &Tenant{Name: Anyone, Models: []string{"*"}}
		p.byName[Anyone] = p.open
	}
	for _, tenant := range c.Tenants {
		t := tenant.Tenant
		p.byName[t.Name] = &t
		for _, key := range tenant.Keys {
			if err := p.addKey(&t, key); err != nil {
				return nil, fmt.Errorf("tenant %s: %w", t.Name, err)
			}
		}
	}
	if c.DefaultTenant != "" {
		if p.fallback = p.byName[c.DefaultTenant]; p.fallback == nil {
			return nil, fmt.Errorf("there is no tenant %s", c.DefaultTenant)
		}
	}
	return p, nil
}

// noPolicy is the policy before the first Set. It knows nobody.
var noPolicy policy

func (a *Authenticator) current() *policy {
	if p := a.policy.Load(); p != nil {
		return p
	}
	return &noPolicy
}

// Tenant finds a tenant by name. It serves requests that were authenticated before.
func (a *Authenticator) Tenant(name string) (*Tenant, bool) {
	t, ok := a.current().byName[name]
	return t, ok
}

// Caller finds a tenant by its name, with the key that has this digest (see Credentials.Digest). It
// serves requests that were authenticated before. A digest that the tenant does not have gives a
// Tenant without a key.
func (a *Authenticator) Caller(name, digest string) (*Tenant, bool) {
	if k := a.current().keyOf(name, digest); k != nil {
		k.use()
		return k.tenant, true
	}
	return a.Tenant(name)
}

// Holder finds a tenant by its name, with the key of this name (see KeyName). It serves requests
// that another gateway has authenticated. A key that this gateway does not know has the rights of
// its tenant.
func (a *Authenticator) Holder(name, key string) (*Tenant, bool) {
	t, ok := a.Tenant(name)
	if !ok || key == "" {
		return t, ok
	}
	if own := a.current().byKeyName[key]; own != nil && own.Name == name {
		return own, true
	}
	own := *t
	own.Key = key
	return &own, true
}

// Credentials are the values of a request's headers that may hold an API key.
type Credentials struct {
	// Authorization is the value of the header of that name: "Bearer <key>".
	Authorization string
	// APIKey is the value of the header x-api-key or api-key. It counts only when Authorization is
	// empty.
	APIKey string
	// User is the value of the header that Authenticator.Header names.
	User string
	// ForwardedFor is the value of x-forwarded-for. Envoy has added the address of the peer to its
	// end.
	ForwardedFor string
	// OnBlock is called before Authenticate blocks, which it does for 1.5 s at most to read the
	// signing keys of an identity provider again. nil: nobody is told.
	OnBlock func()
}

// Authenticate finds the tenant of a caller. The error has the code invalid_api_key,
// expired_api_key or gateway_unavailable, and never contains the key.
func (a *Authenticator) Authenticate(c Credentials) (*Tenant, *openai.Error) {
	unread := a.unread.Load() // before the policy, which has the keys when they are read
	p := a.current()
	if p == &noPolicy {
		return nil, openai.Errorf(openai.CodeInvalidAPIKey, "No API keys are configured.")
	}
	if p.open != nil {
		return p.open, nil
	}
	if p.header != nil {
		return p.named(c)
	}
	key, fault := c.key()
	if fault != nil {
		return nil, fault
	}
	if p.tokens != nil {
		return p.bearer(key, c.OnBlock)
	}
	k, fault := p.lookup(sha256.Sum256([]byte(key)))
	switch {
	case fault == nil:
	case fault.Code != openai.CodeInvalidAPIKey:
		return nil, fault
	case unread && strings.HasPrefix(key, keyPrefix):
		return nil, openai.Errorf(openai.CodeGatewayUnavailable, "The gateway has not been able to read the keys of run time yet.")
	default:
		return nil, unknownKey(key)
	}
	k.use()
	return k.tenant, nil
}

// Digest returns the SHA-256 of the presented key in hex digits. It identifies the key without
// revealing it. Digest is empty if the credentials hold no key.
func (c Credentials) Digest() string {
	key, fault := c.key()
	if fault != nil {
		return ""
	}
	d := sha256.Sum256([]byte(key))
	return hex.EncodeToString(d[:])
}

// Proof returns by what Watch knows the caller: the digest of its key, or its whole token. Another
// process of the gateway than the one that has verified the token may serve the connection. It has
// to verify the token itself.
func (a *Authenticator) Proof(c Credentials) string {
	if p := a.current(); p.open != nil || p.header != nil || p.tokens == nil {
		return c.Digest()
	}
	token, _ := c.key() // a caller without a token was refused
	return token
}

// Watch returns a function that reports whether the key of this Proof still belongs to the tenant.
// Long connections call Watch when the key was just authenticated, and the function later, to
// notice a key that was revoked. In an open policy every key is valid. Watch may block as
// Authenticate does.
func (a *Authenticator) Watch(tenant, proof string) (valid func() bool) {
	good := func() bool { return false }
	if p := a.current(); p.tokens != nil {
		if t, fault := p.bearer(proof, nil); fault == nil && t.Name == tenant {
			good = p.tokens.Watch(sha256.Sum256([]byte(proof)))
		}
	}
	return func() bool {
		p := a.current()
		switch {
		case p.open != nil:
			return true
		case p.header != nil:
			return p.byName[tenant] != nil
		case p.tokens != nil:
			return p.byName[tenant] != nil && good()
		}
		return p.keyOf(tenant, proof) != nil
	}
}

// Rejects reports whether the key of this Proof does not belong to the tenant. It is false while
// that cannot be known, because the keys of run time or those of an identity provider are yet to be
// read. Rejects may block as Authenticate does.
func (a *Authenticator) Rejects(tenant, proof string) bool {
	unread := a.unread.Load() // before the policy, which has the keys when they are read
	if p := a.current(); p.tokens != nil {
		t, fault := p.bearer(proof, nil)
		if fault != nil {
			return fault.Code != openai.CodeGatewayUnavailable
		}
		return t.Name != tenant
	}
	return !unread && !a.Watch(tenant, proof)()
}

// key returns the API key of the request. The error has the code invalid_api_key.
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

// hashPrefix names the hash function in a stored key.
const hashPrefix = "sha256:"

// parseHash decodes a stored key, see HashKey.
func parseHash(s string) (digest, error) {
	var d digest
	text, ok := strings.CutPrefix(s, hashPrefix)
	if ok && hex.DecodedLen(len(text)) == len(d) {
		if _, err := hex.Decode(d[:], []byte(text)); err == nil {
			return d, nil
		}
	}
	return digest{}, fmt.Errorf("a key hash must be sha256: and %d hex digits", hex.EncodedLen(len(d)))
}
