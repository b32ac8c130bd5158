package redis

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/certificates"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// guarded returns how to connect to servers with sentinels.
func guarded(g *redistest.Guarded) Server {
	return Server{URL: g.URL(), Sentinel: &Sentinel{redistest.MasterName, redistest.SentinelUser, redistest.SentinelPassword}}
}

// TestFailoverBySentinels: the host of the master dies, with the sentinel that the gateways ask.
// The gateways share again at the master that the other sentinels choose. It has the leases, and
// one gateway hears there what the other one releases.
func TestFailoverBySentinels(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*redistest.Certificates{"plain": nil, "TLS": redistest.NewCertificates(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := redistest.Sentinels(t, c)
			server := guarded(g)
			if c != nil {
				server.Certificates = follow(t, c, zap.NewNop())
			}
			var all []*Store
			for _, name := range []string{"gw0", "gw1"} {
				s, err := New(Config{Server: server, Gateway: name, Timeout: 500 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				runStore(t, s)
				all = append(all, s)
			}
			bothShare := func() bool {
				return all[0].Status().Up && all[1].Status().Up && all[0].Gateways() == 2 && all[1].Gateways() == 2
			}
			eventually(t, "both share", bothShare)
			wantReasons(t, acquire(all[0], limited("a", 1)), admission.Granted)
			replica := g.Servers[1].Client()
			eventually(t, "the replica has the lease", func() bool {
				n, err := replica.ZCard(t.Context(), "{sluice}:leases:chat").Result()
				return err == nil && n == 1
			})
			heard := &recordingSubscriber{}
			all[1].Subscribe(heard)
			dead := g.Sentinels[max(g.Used(t), 0)]
			g.Servers[0].Pause() // no connection is closed, as when a host dies
			dead.Pause()
			defer dead.Resume()
			defer g.Servers[0].Resume()
			eventually(t, "Redis is lost", func() bool { return !all[0].Status().Up && !all[1].Status().Up })
			eventually(t, "both share the new master", func() bool {
				n, _ := replica.ZCard(t.Context(), "{sluice}:gateways").Result()
				return n == 2 && bothShare()
			})
			wantReasons(t, acquire(all[1], limited("b", 1)), admission.ModelConcurrency)
			all[0].Release("a", 0, false)
			waitUntilHeard(t, all, heard, "c", "d")
		})
	}
}

// TestASentinelThatIsCutOff: a gateway asks a sentinel that never hears of a new master. It shares
// at the one that the other sentinels tell, also while the old one is a replica that answers. Ping
// says which sentinel is wrong.
func TestASentinelThatIsCutOff(t *testing.T) {
	t.Parallel()
	g := redistest.Sentinels(t, nil)
	others := g.Sentinels
	cutOff := g.CutOff(t)
	server := guarded(g)
	var fronts []*redistest.Address
	for _, s := range others { // at first nobody else is asked
		front := redistest.Front(cutOff)
		fronts = append(fronts, front)
		server.URL = strings.Replace(server.URL, s.Addr, strings.TrimPrefix(front.URL(), "redis://"), 1)
	}
	s, err := New(Config{Server: server, Timeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	runStore(t, s)
	eventually(t, "it shares", func() bool { return s.Status().Up })
	for i, front := range fronts {
		front.Move(others[i])
	}
	g.Servers[0].Pause()
	replica := g.Servers[1].Client()
	shares := func() bool {
		n, _ := replica.ZCard(t.Context(), "{sluice}:gateways").Result()
		info, _ := replica.Info(t.Context(), "replication").Result()
		return n > 0 && strings.Contains(info, "role:master") && s.Status().Up
	}
	eventually(t, "it shares the new master", shares)
	g.Servers[0].Resume()
	eventually(t, "the old master is a replica", func() bool {
		info, _ := g.Servers[0].Client().Info(t.Context(), "replication").Result()
		return strings.Contains(info, "master_link_status:up")
	})
	if err := replica.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	writes := func() int {
		n, _ := replica.HGet(t.Context(), "{sluice}:epoch", "writes").Int()
		return n
	}
	before := writes()
	eventually(t, "it shares the new master again", func() bool { return writes() > before && shares() })
	p, err := Ping(t.Context(), guarded(g))
	if err != nil || len(p.Silent) != 1 || !strings.Contains(p.Silent[0].Error(), g.Servers[0].Addr) {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestMostTold: as many sentinels tell one master as another. The answer is always the same then.
func TestMostTold(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		told        []string
		given, want string
	}{
		{[]string{"a", "b", "b"}, "a", "b"},
		{[]string{"a", "b", "c", "d"}, "", "a"},
		{[]string{"a", "b", "c", "d"}, "c", "c"},
		{[]string{"", "", "a"}, "", "a"},
		{[]string{"", "", "a"}, "b", "b"},
		{[]string{"", "a", "a"}, "b", "a"},
		{[]string{"", ""}, "", ""},
	} {
		for range 20 { // the order of a map is random
			if got := mostTold(test.told, test.given); got != test.want {
				t.Errorf("%q, %q: %q, want %q", test.told, test.given, got, test.want)
			}
		}
	}
}

// follow follows the certificate client of the folder, which it issues, and the authority.
func follow(t *testing.T, c *redistest.Certificates, log *zap.Logger) *certificates.Follower {
	t.Helper()
	c.Authority.Issue(t, c.Dir, "client")
	f, err := certificates.Follow(certificates.Files{Cert: filepath.Join(c.Dir, "client.crt"), Key: filepath.Join(c.Dir, "client.key"), CA: c.CA()}, "redis", log)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestClientCertificates: a Redis that demands a certificate gets that of the files, and a new one
// after a change of the files. A client without one is refused.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	files := redistest.NewCertificates(t)
	server := redistest.StartTLS(t, files)
	core, logs := observer.New(zap.InfoLevel)
	s := Server{URL: strings.Replace(redistest.URL(server), "redis://", "rediss://", 1), Certificates: follow(t, files, zap.New(core))}
	ping := func(s Server) error {
		_, err := Ping(t.Context(), s)
		return err
	}
	if err := ping(s); err != nil {
		t.Fatal(err)
	}
	other := s
	other.ServerName = "another"
	if err := ping(other); err == nil || !strings.Contains(err.Error(), "another") {
		t.Errorf("with another server name: %v", err)
	}
	// Another authority than that of the server signs the client's certificate, and then again the
	// one that the server trusts.
	testutil.NewAuthority(t, "wrong").Issue(t, files.Dir, "client")
	eventually(t, "the wrong certificate is shown", func() bool { return ping(s) != nil })
	files.Authority.Issue(t, files.Dir, "client")
	eventually(t, "the right certificate is shown", func() bool { return ping(s) == nil })
	if logs.FilterMessage("certificates read again").Len() < 2 {
		t.Errorf("the log does not tell of the changes: %v", logs.All())
	}
	if err := os.Remove(filepath.Join(files.Dir, "client.key")); err != nil {
		t.Fatal(err)
	}
	if err := ping(s); err != nil {
		t.Errorf("without its key the certificate of before is not shown: %v", err)
	}
	alone, err := certificates.Follow(certificates.Files{CA: files.CA()}, "redis", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	s.Certificates = alone
	if err := ping(s); err == nil {
		t.Error("a client without a certificate was let in")
	}
}

// TestPingSentinels: Ping says which sentinels do not tell the master, and why.
func TestPingSentinels(t *testing.T) {
	t.Parallel()
	g := redistest.Sentinels(t, nil)
	s := guarded(g)
	if p, err := Ping(t.Context(), s); err != nil || len(p.Silent) > 0 {
		t.Fatalf("%+v, %v", p, err)
	}
	for want, sentinel := range map[string]Sentinel{
		"WRONGPASS":                  {redistest.MasterName, redistest.SentinelUser, "wrong"},
		"NOAUTH":                     {Master: redistest.MasterName},
		`it knows no master "other"`: {"other", redistest.SentinelUser, redistest.SentinelPassword},
	} {
		wrong := s
		wrong.Sentinel = &sentinel
		if _, err := Ping(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), ErrSentinels.Error()) ||
			!strings.Contains(err.Error(), g.Sentinels[0].Addr) {
			t.Errorf("want %s: %v", want, err)
		}
	}
	g.Sentinels[1].Kill()
	if p, err := Ping(t.Context(), s); err != nil || len(p.Silent) != 1 || !strings.Contains(p.Silent[0].Error(), g.Sentinels[1].Addr) {
		t.Errorf("one sentinel is dead: %+v, %v", p, err)
	}
}

// TestPingHangingSentinels: sentinels that accept a connection and say nothing do not use up the
// time for the others.
func TestPingHangingSentinels(t *testing.T) {
	t.Parallel()
	g := redistest.Sentinels(t, nil)
	s := guarded(g)
	for _, silent := range g.Sentinels[:2] {
		silent.Pause()
		defer silent.Resume()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	p, err := Ping(ctx, s)
	if err != nil || len(p.Silent) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestASentinelThatTellsAnotherMaster: the sentinel in use publishes nothing, and tells another
// master than most. The gateway goes to the master that most tell, and comes back when all tell the
// first one again. No connection fails meanwhile.
func TestASentinelThatTellsAnotherMaster(t *testing.T) {
	t.Parallel()
	g := redistest.Sentinels(t, nil)
	for _, s := range g.Sentinels {
		s.Kill()
	}
	second, first := g.Servers[0].Client(), g.Servers[1].Client()
	if err := first.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	other, used := g.CutOff(t), (&redistest.Guarded{Servers: g.Servers[1:]}).CutOff(t)
	var fronts []*redistest.Address
	var hosts []string
	for range 3 {
		front := redistest.Front(used)
		fronts, hosts = append(fronts, front), append(hosts, strings.TrimPrefix(front.URL(), "redis://"))
	}
	server := guarded(g)
	server.URL = "redis://:" + redistest.MasterPassword + "@" + strings.Join(hosts, ",")
	s, err := New(Config{Server: server, Timeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	runStore(t, s)
	writes := func(c *client.Client) int {
		n, _ := c.HGet(t.Context(), "{sluice}:epoch", "writes").Int()
		return n
	}
	sharesAt := func(c *client.Client) func() bool {
		from := writes(c)
		return func() bool { return writes(c) > from && s.Status().Up }
	}
	eventually(t, "it shares the first master", sharesAt(first))
	for _, front := range fronts[1:] {
		front.Move(other)
	}
	eventually(t, "it shares the second master", sharesAt(second))
	for _, front := range fronts[1:] {
		front.Move(used)
	}
	eventually(t, "it shares the first master again", sharesAt(first))
}

// TestClosedConnectionsToAMasterAreNotUsed: Redis closes connections without use if it has a
// timeout. The next call makes another one, as without sentinels.
func TestClosedConnectionsToAMasterAreNotUsed(t *testing.T) {
	t.Parallel()
	g := redistest.Sentinels(t, nil)
	c, err := NewClient(guarded(g), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	for range 3 {
		if err := c.Ping(t.Context()).Err(); err != nil {
			t.Error(err)
		}
		if err := g.Servers[0].Client().ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestConnectionsThatAreLeftAreNotUsed: when most sentinels tell another master, the connections to
// the one before are closed. The next call goes to the other one, and does not fail.
func TestConnectionsThatAreLeftAreNotUsed(t *testing.T) {
	t.Parallel()
	for name, certificates := range map[string]*redistest.Certificates{"plain": nil, "TLS": redistest.NewCertificates(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := redistest.Sentinels(t, certificates)
			for _, s := range g.Sentinels {
				s.Kill()
			}
			first, second := g.CutOff(t), (&redistest.Guarded{Servers: g.Servers[1:]}).CutOff(t)
			server := guarded(g)
			scheme, _, _ := strings.Cut(server.URL, ":")
			var fronts []*redistest.Address
			var hosts []string
			for range 3 {
				front := redistest.Front(first)
				fronts, hosts = append(fronts, front), append(hosts, strings.TrimPrefix(front.URL(), "redis://"))
			}
			server.URL = scheme + "://:" + redistest.MasterPassword + "@" + strings.Join(hosts, ",")
			if certificates != nil {
				server.Certificates = follow(t, certificates, zap.NewNop())
			}
			c, err := NewClient(server, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			if err := c.Set(t.Context(), "of", "the client", 0).Err(); err != nil {
				t.Fatal(err)
			}
			used := func(s *redistest.Server) bool {
				list, err := s.Client().ClientList(t.Context()).Result()
				return err == nil && strings.Contains(list, "cmd=set")
			}
			if !used(g.Servers[0]) {
				t.Fatal("the first master has no connection")
			}
			for _, front := range fronts[1:] {
				front.Move(second)
			}
			eventually(t, "the connection is closed", func() bool { return !used(g.Servers[0]) })
			if err := c.Get(t.Context(), "of").Err(); err != nil {
				t.Error(err)
			}
		})
	}
}
