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

// batchLimit bounds the claims of one script: Redis does nothing else meanwhile.
const batchLimit = 256

// claim is one of ours.
type claim struct {
	// ttl is how long it holds in Redis from each renewal on.
	ttl time.Duration
	// kept: it is renewed. Else it ends at until.
	kept  bool
	until time.Time
}

// claimKey holds nothing of the id itself. The tenant's length keeps "a","bc" and "ab","c" apart.
func (p *Peers) claimKey(tenant, id string) string {
	text := binary.BigEndian.AppendUint64(nil, uint64(len(tenant)))
	sum := sha256.Sum256(append(append(text, tenant...), id...))
	return p.prefix + "stream:" + hex.EncodeToString(sum[:])
}

// Claim makes the tenant's request id this gateway's, unless another one that lives has it. It tells who owns it then, and whether that is this
// gateway. A claim holds for ttl, or with Keep until Release. A ttl of less than Config.Expiry counts as that.
//
// The error wraps ErrLocal: Redis has not answered within Config.Timeout, or Serve has not begun, or Run has ended. Then mine is true, and the claim
// binds nobody else.
func (p *Peers) Claim(ctx context.Context, tenant, id string, ttl time.Duration) (owner string, mine bool, err error) {
	ttl = max(ttl, p.cfg.Expiry) // so that none that is kept expires between two beats
	key := p.claimKey(tenant, id)
	owner, err = p.claim(ctx, key, ttl)
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

// claim asks Redis.
func (p *Peers) claim(ctx context.Context, key string, ttl time.Duration) (owner string, err error) {
	address := p.own()
	if address == "" {
		return "", errGone
	}
	value, err := p.ask(ctx, claimScript, []string{key, p.recordKey(p.cfg.ID)},
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

// Keep has Run renew a claim of this gateway until it is released. Once is enough; more do no harm, and neither does it to keep what is not
// ours. It does not wait for Redis.
func (p *Peers) Keep(tenant, id string) {
	key := p.claimKey(tenant, id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.claims[key]; c != nil {
		c.kept = true
	}
}

// Release gives a claim up, if it is still this gateway's. When Redis does not answer within Config.Timeout, the claim holds until it expires;
// requests for it still come here then.
func (p *Peers) Release(ctx context.Context, tenant, id string) {
	key := p.claimKey(tenant, id)
	p.mu.Lock()
	c := p.claims[key]
	delete(p.claims, key)
	p.mu.Unlock()
	if c == nil {
		return
	}
	if _, err := p.ask(ctx, releaseScript, []string{key}, p.cfg.ID); err != nil {
		p.cfg.Log.Debug("a request id stays this gateway's until its claim expires", zap.Error(err))
	}
}

// Find tells which other gateway has the tenant's request id; false when none that lives has, or this one. The error is that Redis has not
// answered within Config.Timeout: nobody knows then.
func (p *Peers) Find(ctx context.Context, tenant, id string) (owner string, ok bool, err error) {
	value, err := p.ask(ctx, findScript, []string{p.claimKey(tenant, id)}, p.recordsPrefix())
	if err != nil {
		return "", false, err
	}
	owner, _ = value.(string)
	if owner == "" || owner == p.cfg.ID {
		return "", false, nil
	}
	return owner, true, nil
}

// renew renews the claims that are kept, and forgets those that nobody kept and whose time is over.
func (p *Peers) renew(ctx context.Context) error {
	if p.own() == "" {
		return nil
	}
	keys, ttls := p.due()
	for len(keys) > 0 {
		n := min(len(keys), batchLimit)
		if err := p.renewBatch(ctx, keys[:n], ttls[:n]); err != nil {
			return err
		}
		keys, ttls = keys[n:], ttls[n:]
	}
	return nil
}

// due are the claims to renew.
func (p *Peers) due() (keys []string, ttls []any) {
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

func (p *Peers) renewBatch(ctx context.Context, keys []string, ttls []any) error {
	value, err := p.call(ctx, renewScript, keys, append([]any{p.cfg.ID, p.recordsPrefix()}, ttls...)...)
	if err != nil {
		return err
	}
	ours, _ := value.([]any)
	if len(ours) != len(keys) {
		return fmt.Errorf("redis answers %T for %d claims", value, len(keys))
	}
	var released []string
	taken := 0
	p.mu.Lock()
	for i, key := range keys {
		switch c := p.claims[key]; {
		case ours[i] == int64(0) && c != nil:
			delete(p.claims, key)
			taken++
		case ours[i] != int64(0) && c == nil: // while Redis was asked; it may have come back to life
			released = append(released, key)
		}
	}
	p.mu.Unlock()
	if taken > 0 {
		p.cfg.Log.Warn("another gateway has request ids that run here too: one of them could not reach redis", zap.Int("ids", taken))
	}
	if len(released) > 0 {
		_, err = p.call(ctx, releaseScript, released, p.cfg.ID)
	}
	return err
}
