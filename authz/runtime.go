package authz

import (
	"encoding/hex"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// RuntimeKey is a key that was made while the gateway runs. It authenticates a tenant of the
// Config.
type RuntimeKey struct {
	// Hash is the key's hash, see HashKey.
	Hash, Tenant string
	// Expires is when the key ends. Zero: it does not end.
	Expires time.Time
}

// SetKeys replaces the keys of run time. A key whose hash is malformed is left out. A key of the
// Config comes before one of run time.
func (a *Authenticator) SetKeys(keys []RuntimeKey) {
	all := make(map[digest]RuntimeKey, len(keys))
	for _, k := range keys {
		if d, err := parseHash(k.Hash); err == nil {
			all[d] = k
		}
	}
	a.runtime.Store(&all)
}

// runtimeTenant finds the tenant of a key of run time. Without such a key it returns nil and no
// error.
func (a *Authenticator) runtimeTenant(p *policy, d digest) (*Tenant, *openai.Error) {
	all := a.runtime.Load()
	if all == nil {
		return nil, nil
	}
	k, ok := (*all)[d]
	if !ok {
		return nil, nil
	}
	if !k.Expires.IsZero() && time.Now().After(k.Expires) {
		return nil, openai.Errorf(openai.CodeExpiredAPIKey, "The API key has expired. Ask the operator of the gateway for a new one.")
	}
	t := p.byName[k.Tenant]
	if t == nil {
		return nil, nil
	}
	own := *t
	own.Key = KeyName(t.Name, hex.EncodeToString(d[:]))
	return &own, nil
}
