package peers

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// The Lua scripts. Redis runs each one atomically. All keys of a script are in one hash slot.
var (
	// writeRecordScript writes the record of this gateway. KEYS: record. ARGV: address, hash of the
	// certificate, expiry in ms.
	writeRecordScript = redis.NewScript(`
redis.call('HSET', KEYS[1], 'address', ARGV[1], 'certificate', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1`)

	// removeRecordScript removes a record, unless another process of the same name has replaced it.
	// KEYS: record. ARGV: hash.
	removeRecordScript = redis.NewScript(`
if redis.call('HGET', KEYS[1], 'certificate') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])`)

	// readRecordScript reads a record. KEYS: record. It returns the address, the hash, and the ms
	// until it expires.
	readRecordScript = redis.NewScript(`
local v = redis.call('HMGET', KEYS[1], 'address', 'certificate')
return { v[1] or '', v[2] or '', redis.call('PTTL', KEYS[1]) }`)

	// claimScript claims a key that is free, and returns the owner. It writes the record too,
	// because a claim of a gateway without a record is free. KEYS: claim, record of this gateway.
	// ARGV: this gateway, the prefix of records, expiry of the claim in ms, then as in
	// writeRecordScript.
	claimScript = redis.NewScript(`
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] and redis.call('EXISTS', ARGV[2] .. owner) == 1 then return owner end
redis.call('HSET', KEYS[2], 'address', ARGV[4], 'certificate', ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[6])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return ARGV[1]`)

	// renewScript renews claims, and claims those that are free. KEYS: claims. ARGV: this gateway,
	// the prefix of records, then the expiry of each claim in ms. It returns for each claim whether
	// it is this gateway's.
	renewScript = redis.NewScript(`
local ours = {}
for i, key in ipairs(KEYS) do
  local owner = redis.call('GET', key)
  if owner and owner ~= ARGV[1] and redis.call('EXISTS', ARGV[2] .. owner) == 1 then
    ours[i] = 0
  else
    redis.call('SET', key, ARGV[1], 'PX', ARGV[i + 2])
    ours[i] = 1
  end
end
return ours`)

	// releaseScript removes the claims that are this gateway's. KEYS: claims. ARGV: this gateway.
	releaseScript = redis.NewScript(`
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
return 1`)

	// findScript returns the owner of a claim, '' when it is free. KEYS: claim. ARGV: the prefix of
	// records.
	findScript = redis.NewScript(`
local owner = redis.call('GET', KEYS[1])
if owner and redis.call('EXISTS', ARGV[1] .. owner) == 1 then return owner end
return ''`)
)

// runQuick runs a script for a request that waits, within Config.Timeout.
func (p *Peers) runQuick(ctx context.Context, script *redis.Script, keys []string, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	return p.runScript(ctx, script, keys, args)
}

// runSlow runs a script that no new request waits for.
func (p *Peers) runSlow(ctx context.Context, script *redis.Script, keys []string, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.SlowTimeout)
	defer cancel()
	return p.runScript(ctx, script, keys, args)
}

// runScript runs a script until ctx ends, even if the Redis client does not return then.
func (p *Peers) runScript(ctx context.Context, script *redis.Script, keys []string, args []any) (any, error) {
	type result struct {
		value any
		err   error
	}
	results := make(chan result, 1)
	go func() {
		value, err := script.Run(ctx, p.cfg.Redis, keys, args...).Result()
		results <- result{value, err}
	}()
	select {
	case r := <-results:
		return r.value, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("redis does not answer in time: %w", ctx.Err())
	}
}

func millis(d time.Duration) int64 { return max(d.Milliseconds(), 1) }
