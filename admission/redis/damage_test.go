package redis

import (
	"errors"
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// TestDamagedNumbers: a text that is no number, wherever scripts keep one, neither stops the
// sharing nor outlives the next write.
func TestDamagedNumbers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := stores(t, 2, Config{Timeout: 2 * time.Second}, server)
	c := server.Client()
	count := 0
	claim := func() admission.Claim {
		count++
		x := limited(fmt.Sprint(count), 100)
		x.Tokens, x.Limits.TokensPerMinute = 10, 60_000
		x.TenantLimits = admission.TenantLimits{TokensPerMinute: 60_000, RequestsPerMinute: 6000}
		return x
	}
	// use calls what reads and writes the numbers, at both gateways.
	use := func() {
		for _, s := range all {
			task := claim()
			task.Task = &admission.TaskClaim{Key: task.ID, Lease: time.Minute, Lifetime: time.Hour}
			for _, x := range []admission.Claim{claim(), task} {
				eventually(t, "it shares", func() bool { return acquire(s, x)[0].Reason == admission.Granted })
			}
			s.Correct("chat", "acme", task.ID, 3)
			s.Release(fmt.Sprint(count), 5, false)
		}
		wantError(t, all[1].EndTask(t.Context(), "acme", fmt.Sprint(count-3), 7), nil) // the task of the other gateway
		eventually(t, "nothing is left to report", func() bool { return !all[0].hasChanges() && !all[1].hasChanges() })
	}
	use()
	for _, damaged := range []string{"x", "inf", "nan", "-0.5e300"} {
		for _, key := range c.Keys(t.Context(), "*").Val() {
			switch c.Type(t.Context(), key).Val() {
			case "hash":
				fields := c.HGetAll(t.Context(), key).Val()
				for field := range fields {
					switch field {
					case "id", "model", "tenant", "replica", "key": // no numbers
						delete(fields, field)
					default:
						fields[field] = damaged
					}
				}
				if len(fields) > 0 { // all at once: a gateway may mend the hash meanwhile
					c.HSet(t.Context(), key, fields)
				}
			case "string":
				if err := c.SetArgs(t.Context(), key, damaged, goredis.SetArgs{KeepTTL: true}).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		use()
		for _, key := range []string{"runtime:chat", "tenant_runtime:acme", "served:chat", "epoch"} {
			for field, text := range c.HGetAll(t.Context(), "{sluice}:"+key).Val() {
				if text == damaged {
					t.Errorf("%q stays in %s of %s", damaged, field, key)
				}
			}
		}
		if t.Failed() {
			t.Fatal(all[0].Status().LastError)
		}
	}
}

// TestKeysOfAnotherType: a key that somebody has overwritten with a value of another type neither
// stops the sharing nor stays.
func TestKeysOfAnotherType(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := stores(t, 2, Config{Timeout: 2 * time.Second}, server)
	c, ctx := server.Client(), t.Context()
	claim := func(id string) admission.Claim {
		x := limited(id, 100)
		x.Replica, x.ReplicaLimit, x.Prefill = "chat-0", 100, true
		x.Tokens, x.Limits.TokensPerMinute = 10, 60_000
		x.TenantLimits = admission.TenantLimits{TokensPerMinute: 60_000, MaxConcurrent: 100, MaxPrefill: 100}
		return x
	}
	first := claim("task")
	first.Task = &admission.TaskClaim{Key: "key", Lease: time.Minute, Lifetime: time.Hour}
	wantReasons(t, acquire(all[0], first, claim("a")), admission.Granted, admission.Granted)
	for i, key := range c.Keys(ctx, "*").Val() {
		kind, err := c.Type(ctx, key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if kind == "string" {
			err = c.Watch(ctx, func(tx *goredis.Tx) error { // at once: a gateway may write the key meanwhile
				_, err := tx.TxPipelined(ctx, func(p goredis.Pipeliner) error {
					p.Del(ctx, key)
					return p.HSet(ctx, key, "x", 1).Err()
				})
				return err
			})
		} else {
			err = c.Set(ctx, key, "x", 0).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
		for n, s := range all {
			x := claim(fmt.Sprint(i, "-", n))
			eventually(t, "it shares without "+key, func() bool { return acquire(s, x)[0].Reason == admission.Granted })
			_, err := s.FindTask(ctx, "acme", "key")
			if err != nil && !errors.Is(err, admission.ErrUnknownTask) && !errors.Is(err, admission.ErrUnavailable) {
				t.Errorf("without %s: %v", key, err)
			}
			s.Release(x.ID, 0, false)
		}
		if t.Failed() {
			t.Fatal(all[0].Status().LastError)
		}
	}
}

// TestAKeyOfAnotherTypeCostsNoTokens: a script that meets a key of another type does all of its
// work once. The tokens of a lease come back, although another key of the lease is damaged.
func TestAKeyOfAnotherTypeCostsNoTokens(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, c := stores(t, 1, Config{Timeout: 2 * time.Second}, server)[0], server.Client()
	claim := limited("", 100)
	claim.Replica, claim.ReplicaLimit, claim.Prefill, claim.Tokens = "chat-0", 100, true, 60
	claim.TenantLimits = admission.TenantLimits{TokensPerMinute: 60, MaxConcurrent: 100, MaxPrefill: 100}
	for i, key := range []string{"tenant_leases:acme", "prefill:acme", "replica:chat-0", "runtime:chat", "served:chat"} {
		claim.ID = fmt.Sprint(i)
		wantReasons(t, acquire(s, claim), admission.Granted) // all tokens of a minute
		if err := c.Set(t.Context(), s.prefix+key, "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
		s.Release(claim.ID, 60, false)
		claim.ID += "-again"
		if v := acquire(s, claim)[0]; v.Reason != admission.Granted {
			t.Fatalf("with %s of another type the tokens did not come back: %+v", key, v)
		}
		s.Release(claim.ID, 60, false)
	}
}
