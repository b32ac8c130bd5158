package peers

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// maxBatch bounds the claims that one script renews. Redis does nothing else while a script runs.
const maxBatch = 256

// claim is a claim of this gateway.
type claim struct {
	// ttl is how long the claim holds in Redis after each renewal.
	ttl time.Duration
	// kept says that Run renews the claim. Otherwise the claim ends at until.
	kept  bool
	until time.Time
}

// claimKey returns the key of a claim: a hash, so that it does not reveal the id. The length of the
// tenant's name tells "a","bc" from "ab","c".
func (p *Peers) claimKey(tenant, id string) string {
	text := binary.BigEndian.AppendUint64(nil, uint64(len(tenant)))
	sum := sha256.Sum256(append(append(text, tenant...), id...))
	return p.prefix + "stream:" + hex.EncodeToString(sum[:])
}

// Claim makes the tenant's request id this gateway's, unless another live gateway has it. It
// returns the owner, and whether that is this gateway. A claim holds for ttl, or until Release if
// it is kept. A ttl below Config.Expiry counts as Config.Expiry.
//
// The error wraps ErrLocal: Redis has not answered within Config.Timeout, Serve has not begun, or
// Run has ended. Then mine is true, and the claim does not bind other gateways.
func (p *Peers) Claim(ctx context.Context, tenant, id string, ttl time.Duration) (owner string, mine bool, err error) {
	ttl = max(ttl, p.cfg.Expiry) // so that no kept claim expires between two renewals
	key := p.claimKey(tenant, id)
	owner, err = p.claimInRedis(ctx, key, ttl)
	if err != nil {
		owner, err = p.cfg.ID, fmt.Errorf("%w: %w", ErrLocal, err)
	}
	if owner != p.cfg.ID {
		return owner, false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.claims[key]
	if c == nil {
		c = &claim{}
		p.claims[key] = c
	}
	c.ttl, c.until = ttl, time.Now().Add(ttl)
	return owner, true, err
}

// claimInRedis claims a key in Redis and returns its owner.
func (p *Peers) claimInRedis(ctx context.Context, key string, ttl time.Duration) (owner string, err error) {
	address := p.ownAddress()
	if address == "" {
		return "", errNoRecord
	}
	value, err := p.runQuick(ctx, claimScript, []string{key, p.recordKey(p.cfg.ID)},
		p.cfg.ID, p.recordsPrefix(), millis(ttl), address, p.sum, millis(p.cfg.Expiry))
	if err != nil {
		return "", err
	}
	owner, ok := value.(string)
	if !ok || owner == "" {
		return "", fmt.Errorf("redis answers %T for an owner", value)
	}
	return owner, nil
}

// Keep makes Run renew a claim until Release. It has no effect on a claim of another gateway, or
// when it is called again. It does not wait for Redis.
func (p *Peers) Keep(tenant, id string) {
	key := p.claimKey(tenant, id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.claims[key]; c != nil {
		c.kept = true
	}
}

// Release gives up a claim, if it is still this gateway's. If Redis does not answer within
// Config.Timeout, the claim holds until it expires; other gateways forward requests for it to this
// one until then.
func (p *Peers) Release(ctx context.Context, tenant, id string) {
	key := p.claimKey(tenant, id)
	p.mu.Lock()
	c := p.claims[key]
	delete(p.claims, key)
	p.mu.Unlock()
	if c == nil {
		return
	}
	if _, err := p.runQuick(ctx, releaseScript, []string{key}, p.cfg.ID); err != nil {
		p.cfg.Log.Debug("claim not released in Redis, it will expire", zap.Error(err))
	}
}

// Find returns the other live gateway that has the tenant's request id. ok is false if there is
// none, or if it is this gateway. The error says that Redis has not answered within Config.Timeout.
func (p *Peers) Find(ctx context.Context, tenant, id string) (owner string, ok bool, err error) {
	value, err := p.runQuick(ctx, findScript, []string{p.claimKey(tenant, id)}, p.recordsPrefix())
	if err != nil {
		return "", false, err
	}
	owner, _ = value.(string)
	if owner == "" || owner == p.cfg.ID {
		return "", false, nil
	}
	return owner, true, nil
}

// renew renews the claims that are kept, and forgets claims that have expired.
func (p *Peers) renew(ctx context.Context) error {
	if p.ownAddress() == "" {
		return nil
	}
	keys, ttls := p.dueClaims()
	for len(keys) > 0 {
		n := min(len(keys), maxBatch)
		if err := p.renewBatch(ctx, keys[:n], ttls[:n]); err != nil {
			return err
		}
		keys, ttls = keys[n:], ttls[n:]
	}
	return nil
}

// dueClaims returns the claims to renew, and forgets those that have expired.
func (p *Peers) dueClaims() (keys []string, ttls []any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for key, c := range p.claims {
		if c.kept {
			keys, ttls = append(keys, key), append(ttls, millis(c.ttl))
		} else if !now.Before(c.until) {
			delete(p.claims, key)
		}
	}
	return keys, ttls
}

// renewBatch renews claims with one script. It releases again what was released meanwhile.
func (p *Peers) renewBatch(ctx context.Context, keys []string, ttls []any) error {
	value, err := p.runSlow(ctx, renewScript, keys, append([]any{p.cfg.ID, p.recordsPrefix()}, ttls...)...)
	if err != nil {
		return err
	}
	ours, _ := value.([]any)
	if len(ours) != len(keys) {
		return fmt.Errorf("redis answers %T for %d claims", value, len(keys))
	}
	var released []string
	lost := 0
	p.mu.Lock()
	for i, key := range keys {
		switch c := p.claims[key]; {
		case ours[i] == int64(0) && c != nil:
			delete(p.claims, key)
			lost++
		case ours[i] != int64(0) && c == nil: // released meanwhile; the script may have claimed it again
			released = append(released, key)
		}
	}
	p.mu.Unlock()
	if lost > 0 {
		p.cfg.Log.Warn("request ids lost to another gateway, one of the two could not reach Redis", zap.Int("ids", lost))
	}
	if len(released) > 0 {
		_, err = p.runSlow(ctx, releaseScript, released, p.cfg.ID)
	}
	return err
}
