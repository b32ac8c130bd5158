package authz

import (
	"cmp"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// KeyConfig is one key of a tenant.
type KeyConfig struct {
	// ID names the key beside its tenant. Empty: FileKeyID of its hash.
	ID string
	// Hash is the key's hash, see HashKey.
	Hash string
	// Priority is the priority of requests with the key. Empty: the tenant's.
	Priority string
	// Models are the models and pools that the key may use, of those of the tenant. nil: all.
	Models []string
	// Limited says that the key has limits of its own beside those of the tenant.
	Limited bool
	// Expires is when the key ends. Zero: it does not end.
	Expires time.Time
}

// RuntimeKey is a key that was made while the gateway runs. It authenticates a tenant of the
// Config.
type RuntimeKey struct {
	KeyConfig
	// Tenant is the name of the tenant.
	Tenant string
}

// keyEntry is one key in force. It is immutable but for its last use.
type keyEntry struct {
	// tenant is the tenant with what the key changes of it.
	tenant *Tenant
	// expires is when the key ends; zero: it does not end.
	expires time.Time
	used    *lastUse
}

// lastUse is when a key was last used, in minutes since 1970; 0: never.
type lastUse struct{ minute atomic.Int64 }

// use notes that the key is used now. It writes at most once a minute.
func (k *keyEntry) use() {
	if now := time.Now().Unix() / 60; k.used.minute.Load() != now {
		k.used.minute.Store(now)
	}
}

// lookup finds the key with this digest, of the file or of run time. The error has the code
// invalid_api_key or expired_api_key.
//
// The map is indexed by a digest of the whole key. A caller cannot approach a stored digest byte by
// byte, so a constant-time comparison would protect nothing more.
func (p *policy) lookup(d digest) (*keyEntry, *openai.Error) {
	k := p.byKey[d]
	switch {
	case k == nil:
		return nil, openai.Errorf(openai.CodeInvalidAPIKey, "Incorrect API key provided.")
	case !k.expires.IsZero() && time.Now().After(k.expires):
		return nil, openai.Errorf(openai.CodeExpiredAPIKey, "The API key has expired. Ask the operator of the gateway for a new one.")
	}
	return k, nil
}

// unknownKey returns the error for a key that nobody has. It says what is wrong with the text as
// far as the text alone shows that.
func unknownKey(text string) *openai.Error {
	hint := ""
	switch {
	case strings.HasPrefix(text, hashPrefix):
		hint = " It is the hash of a key: send the key itself."
	case isWhole(text):
		hint = " It was revoked, its hash is not in the file of this gateway, or another gateway has made it."
	case strings.Contains(text, keyPrefix):
		hint = " It is cut or mistyped, or something stands before or behind it: copy it again."
	}
	return openai.Errorf(openai.CodeInvalidAPIKey, "Incorrect API key provided.%s", hint)
}

// keyOf returns the tenant's key whose digest has these hex digits; nil if the tenant has no such
// key, or not any more.
func (p *policy) keyOf(tenant, digits string) *keyEntry {
	d, err := parseHash(hashPrefix + digits)
	if err != nil {
		return nil
	}
	if k, _ := p.lookup(d); k != nil && k.tenant.Name == tenant {
		return k
	}
	return nil
}

func (p *policy) addKey(t *Tenant, c KeyConfig) error {
	d, err := parseHash(c.Hash)
	if err != nil {
		return err
	}
	if other, exists := p.byKey[d]; exists {
		return fmt.Errorf("one of its keys also belongs to tenant %s", other.tenant.Name)
	}
	own := *t
	if own.KeyShown = FileKeyID(c.Hash); c.ID != "" {
		own.KeyShown = KeyPrefix(c.ID)
	}
	own.Key, own.KeyLimited = KeyName(t.Name, cmp.Or(c.ID, FileKeyID(c.Hash))), c.Limited
	own.Priority, own.KeyModels = cmp.Or(c.Priority, t.Priority), c.Models
	p.byKey[d] = &keyEntry{tenant: &own, expires: c.Expires}
	p.byKeyName[own.Key] = &own
	return nil
}

// addRuntimeKey adds a key of run time, unless its tenant is gone or the Config has the key.
func (p *policy) addRuntimeKey(k RuntimeKey) {
	if t := p.byName[k.Tenant]; t != nil {
		_ = p.addKey(t, k.KeyConfig) // a faulty key authenticates nobody
	}
}

// keepUses gives every key of the policy its last use of before, and returns the last uses of all
// of them.
func (p *policy) keepUses(before map[digest]*lastUse) map[digest]*lastUse {
	all := make(map[digest]*lastUse, len(p.byKey))
	for d, k := range p.byKey {
		if k.used = before[d]; k.used == nil {
			k.used = new(lastUse)
		}
		all[d] = k.used
	}
	return all
}

// LastUsed returns when each key was last used at this gateway, to the minute, by the names of the
// keys (see KeyName). Keys that were not used since the start are missing.
func (a *Authenticator) LastUsed() map[string]time.Time {
	all := map[string]time.Time{}
	for _, k := range a.current().byKey {
		if minute := k.used.minute.Load(); minute > 0 {
			all[k.tenant.Key] = time.Unix(minute*60, 0).UTC()
		}
	}
	return all
}
