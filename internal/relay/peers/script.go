package peers

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// The scripts. Each is one step for Redis, and all keys of one are in one slot.
var (
	// announceScript writes the record of this gateway. KEYS: record. ARGV: address, hash of the certificate, ms that it holds.
	announceScript = redis.NewScript(`
redis.call('HSET', KEYS[1], 'address', ARGV[1], 'certificate', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1`)

	// leaveScript removes a record, unless another process of the same name has put its own there. KEYS: record. ARGV: hash.
	leaveScript = redis.NewScript(`
if redis.call('HGET', KEYS[1], 'certificate') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])`)

	// lookScript reads a record. KEYS: record. Returns address, hash, ms that it still holds.
	lookScript = redis.NewScript(`
local v = redis.call('HMGET', KEYS[1], 'address', 'certificate')
return { v[1] or '', v[2] or '', redis.call('PTTL', KEYS[1]) }`)

	// claimScript takes a claim that is free and returns the owner. It writes the record too: without one, the claim would still be free.
	// KEYS: claim, record of this gateway. ARGV: this gateway, what begins the keys of records, ms that the claim holds, then as in announceScript.
	claimScript = redis.NewScript(`
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] and redis.call('EXISTS', ARGV[2] .. owner) == 1 then return owner end
redis.call('HSET', KEYS[2], 'address', ARGV[4], 'certificate', ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[6])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return ARGV[1]`)

	// renewScript renews claims, or takes those that are free. KEYS: claims. ARGV: this gateway, what begins the keys of records, then for each
	// claim the ms that it holds. Returns for each whether it is ours.
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

	// releaseScript removes the claims that are ours. KEYS: claims. ARGV: this gateway.
	releaseScript = redis.NewScript(`
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
return 1`)

	// findScript returns the owner of a claim, '' when it is free. KEYS: claim. ARGV: what begins the keys of records.
	findScript = redis.NewScript(`
local owner = redis.call('GET', KEYS[1])
if owner and redis.call('EXISTS', ARGV[1] .. owner) == 1 then return owner end
return ''`)
)

// ask runs a script for a request that waits.
func (p *Peers) ask(ctx context.Context, script *redis.Script, keys []string, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	return p.run(ctx, script, keys, args)
}

// call is ask for what may take longer.
func (p *Peers) call(ctx context.Context, script *redis.Script, keys []string, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, patience*p.cfg.Timeout)
	defer cancel()
	return p.run(ctx, script, keys, args)
}

// run runs a script for as long as ctx holds, however long the client takes to notice that it has ended.
func (p *Peers) run(ctx context.Context, script *redis.Script, keys []string, args []any) (any, error) {
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
