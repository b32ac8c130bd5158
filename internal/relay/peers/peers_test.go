package peers

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/internal/redistest"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	some := &wire{}
	for want, cfg := range map[string]Config{
		"must be a Redis":           {},
		`"" is no host:port`:        {Redis: some},
		"deployment":                {Redis: some, Deployment: "a b"},
		"by 64 at most":             {Redis: some, ID: strings.Repeat("x", 65)},
		"named by":                  {Redis: some, ID: "a/b"},
		`":7" is all addresses`:     {Redis: some, Listen: ":7"},
		`"[::]:7" is all addresses`: {Redis: some, Listen: "[::]:7"},
		`"x" is no host:port`:       {Redis: some, Listen: "x"},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; want %s", err, want)
		}
	}
	for _, cfg := range []Config{{}, {Deployment: strings.Repeat("x", 100), ID: "a.b-c_D"}} {
		cfg.Redis, cfg.Listen = some, anyPort
		if _, err := New(cfg); err != nil {
			t.Error(err)
		}
	}
	a, _ := New(Config{Redis: some, Listen: anyPort})
	b, _ := New(Config{Redis: some, Listen: anyPort})
	if a.ID() == b.ID() {
		t.Error("two gateways have one name")
	}
}

// Serve listens, and has the record say where.
func TestServeListens(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	p, err := New(Config{Redis: c, Listen: anyPort})
	if err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) error { return p.Serve(ctx, http.NotFoundHandler()) })
	eventually(t, "it serves", func() bool { return p.ownAddress() != "" })
	if conn, err := net.Dial("tcp", p.ownAddress()); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
}

// Before there is an address to be reached at, a claim binds nobody else.
func TestClaimBeforeServe(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	p, err := New(Config{Redis: c, Listen: anyPort})
	if err != nil {
		t.Fatal(err)
	}
	if owner, mine, err := p.Claim(t.Context(), "acme", "x", 0); owner != p.ID() || !mine || err == nil {
		t.Error(owner, mine, err)
	}
	if n := c.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys", n)
	}
}

// BenchmarkClaim is what a request with an id pays: a claim and its release.
func BenchmarkClaim(b *testing.B) {
	c := redis.NewClient(&redis.Options{Addr: redistest.Start(b).Addr})
	defer c.Close()
	p, err := New(Config{Redis: c, Listen: anyPort})
	if err != nil {
		b.Fatal(err)
	}
	p.setAddress("127.0.0.1:1")
	for b.Loop() {
		if _, mine, err := p.Claim(b.Context(), "acme", "x", 0); !mine || err != nil {
			b.Fatal(mine, err)
		}
		p.Release(b.Context(), "acme", "x")
	}
}
