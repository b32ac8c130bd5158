package peers

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/internal/redistest"
)

// claims claims and expects an answer of Redis.
func (g *gateway) claims(t *testing.T, tenant, id string) (owner string, mine bool) {
	t.Helper()
	owner, mine, err := g.Claim(t.Context(), tenant, id, 0)
	if err != nil {
		t.Fatal(err)
	}
	if mine != (owner == g.ID()) {
		t.Fatalf("%s is told that %s owns it, and that it is its own: %t", g.ID(), owner, mine)
	}
	return owner, mine
}

func (g *gateway) finds(t *testing.T, tenant, id string) string {
	t.Helper()
	owner, ok, err := g.Find(t.Context(), tenant, id)
	if err != nil || ok != (owner != "") {
		t.Fatal(owner, ok, err)
	}
	return owner
}

// Of many who ask at once through two gateways, all are told the same owner. In a cluster the keys
// of one script must be in one slot.
func TestClaimRace(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, c redis.Scripter) {
		gateways := []*gateway{start(t, c, nil, nil), start(t, c, nil, nil)}
		for id := range 10 {
			var wg sync.WaitGroup
			owners := make([]string, 200)
			for i := range owners {
				wg.Go(func() {
					var err error
					g := gateways[i%2]
					var mine bool
					if owners[i], mine, err = g.Claim(t.Context(), "acme", fmt.Sprint(id), time.Minute); err != nil || mine != (owners[i] == g.ID()) {
						t.Errorf("%v, mine %t of %s, which is %s", err, mine, owners[i], g.ID())
					}
				})
			}
			wg.Wait()
			for _, owner := range owners {
				if owner != owners[0] || owner == "" {
					t.Fatalf("request %d has the owners %q and %q", id, owners[0], owner)
				}
			}
		}
	}
	t.Run("one", func(t *testing.T) {
		t.Parallel()
		run(t, client(t, redistest.Start(t)))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		if testing.Short() {
			t.Skip("takes some seconds")
		}
		run(t, client(t, redistest.Cluster(t)...))
	})
}

// A claim is of its tenant, and no key tells an id.
func TestClaimKeys(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	a, b := start(t, c, nil, nil), start(t, c, nil, nil)
	other := start(t, c, func(cfg *Config) { cfg.Deployment = "other" }, nil)
	secret := strings.Repeat("secret", 1000)
	a.claims(t, "a", "bc")
	a.claims(t, "acme", secret)
	if _, mine := b.claims(t, "ab", "c"); !mine {
		t.Error("one tenant's id is another's")
	}
	if _, mine := b.claims(t, "a", "bc"); mine {
		t.Error("an id has two owners")
	}
	if _, mine := other.claims(t, "a", "bc"); !mine {
		t.Error("deployments share ids")
	}
	for _, key := range c.Keys(t.Context(), "*").Val() {
		if strings.Contains(key, "secret") || len(key) > 120 || !strings.HasPrefix(key, "{sluice}:") && !strings.HasPrefix(key, "{other}:") {
			t.Errorf("there is a key %q", key)
		}
	}
}

func TestFindAndRelease(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	a, b := start(t, c, nil, nil), start(t, c, nil, nil)
	if owner := b.finds(t, "acme", "x"); owner != "" {
		t.Errorf("%q owns what nobody has claimed", owner)
	}
	a.claims(t, "acme", "x")
	if owner := b.finds(t, "acme", "x"); owner != a.ID() {
		t.Errorf("%q owns it; want %q", owner, a.ID())
	}
	if owner := a.finds(t, "acme", "x"); owner != "" {
		t.Errorf("the owner is told to ask %q", owner)
	}
	b.Release(t.Context(), "acme", "x")
	if owner := b.finds(t, "acme", "x"); owner != a.ID() {
		t.Error("a gateway has released another's claim")
	}
	a.Release(t.Context(), "acme", "x")
	if _, mine := b.claims(t, "acme", "x"); !mine {
		t.Error("a claim outlives its release")
	}
}

// What has gone to another gateway is not released for it.
func TestReleaseOfWhatWasTaken(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	a, b := start(t, c, nil, nil), start(t, c, nil, nil)
	third := start(t, c, nil, nil)
	a.claims(t, "acme", "x")
	c.Set(t.Context(), a.claimKey("acme", "x"), b.ID(), 0)
	a.Release(t.Context(), "acme", "x")
	if owner := third.finds(t, "acme", "x"); owner != b.ID() {
		t.Errorf("%q owns it; want %q", owner, b.ID())
	}
}

// A claim ends with its time, unless it is kept.
func TestKeep(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	brief := func(cfg *Config) { cfg.Expiry = short }
	a, b := start(t, c, brief, nil), start(t, c, brief, nil)
	a.claims(t, "acme", "kept")
	a.Keep("acme", "kept")
	a.claims(t, "acme", "left")
	eventually(t, "the claim that nobody keeps expires", func() bool { return b.finds(t, "acme", "left") == "" })
	renewed, left := 0, c.PTTL(t.Context(), a.claimKey("acme", "kept")).Val()
	eventually(t, "the one that is kept is renewed, and again", func() bool {
		now := c.PTTL(t.Context(), a.claimKey("acme", "kept")).Val()
		if now > left {
			renewed++
		}
		left = now
		return renewed == 2
	})
	eventually(t, "the one that nobody keeps is forgotten", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.Peers.claims) == 1
	})
}

// More claims than one script renews.
func TestKeepMany(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	a := start(t, c, nil, nil)
	const n = 2*maxBatch + 1
	for i := range n {
		a.claims(t, "acme", fmt.Sprint(i))
		a.Keep("acme", fmt.Sprint(i))
	}
	claims := func() int { return len(c.Keys(t.Context(), "{sluice}:stream:*").Val()) }
	if got := c.Del(t.Context(), c.Keys(t.Context(), "{sluice}:stream:*").Val()...).Val(); got != n || claims() != 0 {
		t.Fatalf("%d claims", got)
	}
	if err := a.renew(t.Context()); err != nil || claims() != n {
		t.Errorf("%d claims renewed, %v; want %d", claims(), err, n)
	}
}

// A gateway that claims is owner at once, though Redis may have lost its record a moment ago.
func TestClaimAnnounces(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	a, b := start(t, c, nil, nil), start(t, c, nil, nil)
	a.stop()
	a.Peers.setAddress(a.address) // and no Run that renews the record
	if n := c.Exists(t.Context(), a.recordKey(a.ID())).Val(); n != 0 {
		t.Fatalf("%d records", n)
	}
	a.claims(t, "acme", "x")
	if owner, _ := b.claims(t, "acme", "x"); owner != a.ID() {
		t.Errorf("%q owns it; want %q", owner, a.ID())
	}
}

// What is released while it is being renewed does not come back.
func TestReleaseWhileRenewed(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	a := start(t, c, nil, nil)
	a.claims(t, "acme", "x")
	a.Keep("acme", "x")
	keys, ttls := a.dueClaims()
	a.Release(t.Context(), "acme", "x")
	if err := a.renewBatch(t.Context(), keys, ttls); err != nil {
		t.Fatal(err)
	}
	if n := c.Exists(t.Context(), keys...).Val(); n != 0 || len(keys) != 1 {
		t.Errorf("%d of %d claims are back", n, len(keys))
	}
}

// The claims of a gateway that Redis hears nothing of are free when its record has expired, not
// before, and stay with who takes them.
func TestTakeover(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	a, b := start(t, c, func(cfg *Config) { cfg.Expiry = short }, nil), start(t, c, nil, nil)
	if _, _, err := a.Claim(t.Context(), "acme", "x", time.Hour); err != nil {
		t.Fatal(err)
	}
	a.Keep("acme", "x")
	a.wire.cut.Store(true)
	eventually(t, "the claim is taken over", func() bool {
		_, mine := b.claims(t, "acme", "x")
		if mine && c.Exists(t.Context(), a.recordKey(a.ID())).Val() == 1 {
			t.Fatal("taken from a gateway that lives")
		}
		return mine
	})
	b.Keep("acme", "x")
	a.wire.cut.Store(false)
	eventually(t, "the first owner finds that it has lost it", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.Peers.claims) == 0
	})
	if owner, _ := a.claims(t, "acme", "x"); owner != b.ID() {
		t.Errorf("%q owns it; want %q", owner, b.ID())
	}
}

// A gateway that ends leaves no record, so its claims are free at once.
func TestLeave(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	a, b := start(t, c, nil, nil), start(t, c, nil, nil)
	if _, _, err := a.Claim(t.Context(), "acme", "x", time.Hour); err != nil {
		t.Fatal(err)
	}
	a.stop()
	if _, mine := b.claims(t, "acme", "x"); !mine {
		t.Error("who has ended still owns it")
	}
	if _, mine, err := a.Claim(t.Context(), "acme", "y", 0); !mine || !errors.Is(err, ErrLocal) {
		t.Errorf("who has ended claims: %t, %v", mine, err)
	}
	if n := len(c.Keys(t.Context(), "{sluice}:peer:*").Val()); n != 1 {
		t.Errorf("%d records; want one", n)
	}
}

// A Redis that stands still costs a claim its timeout and no more; what was claimed meanwhile is
// told later.
func TestRedisStands(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := start(t, client(t, server), func(cfg *Config) { cfg.Timeout, cfg.Expiry = 50*time.Millisecond, short }, nil)
	b := start(t, client(t, server), func(cfg *Config) { cfg.Expiry = short }, nil)
	server.Pause()
	began := time.Now()
	owner, mine, err := a.Claim(t.Context(), "acme", "x", time.Minute)
	if took := time.Since(began); owner != a.ID() || !mine || !errors.Is(err, ErrLocal) || took > 5*time.Second {
		t.Errorf("%q, %t, %v after %v", owner, mine, err, took)
	}
	a.Keep("acme", "x")
	if _, ok, err := a.Find(t.Context(), "acme", "y"); ok || err == nil {
		t.Errorf("found: %t, %v", ok, err)
	}
	server.Resume()
	eventually(t, "the others are told", func() bool { return b.finds(t, "acme", "x") == a.ID() })
}

// A Redis that has lost everything is told all again.
func TestRedisEmptied(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	brief := func(cfg *Config) { cfg.Expiry, cfg.Timeout = short, time.Second }
	a, b := start(t, client(t, server), brief, nil), start(t, client(t, server), brief, nil)
	a.claims(t, "acme", "x")
	a.Keep("acme", "x")
	server.Kill()
	if _, mine, err := b.Claim(t.Context(), "acme", "x", 0); !mine || !errors.Is(err, ErrLocal) {
		t.Errorf("without Redis: %t, %v", mine, err)
	}
	b.Release(t.Context(), "acme", "x")
	server.Restart()
	eventually(t, "the claim is back", func() bool {
		owner, _, err := b.Find(t.Context(), "acme", "x")
		return err == nil && owner == a.ID()
	})
}
