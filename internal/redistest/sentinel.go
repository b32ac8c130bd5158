package redistest

import (
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/certificates"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// Certificates are the files of servers that speak TLS and demand a certificate of their clients.
type Certificates struct {
	// Dir is the folder of the files.
	Dir string
	// Authority signs the certificates.
	Authority *testutil.Authority
}

// NewCertificates makes an authority, and a certificate for servers at 127.0.0.1.
func NewCertificates(t testing.TB) *Certificates {
	t.Helper()
	c := &Certificates{Dir: t.TempDir(), Authority: testutil.NewAuthority(t, "authority of redis")}
	c.Authority.Write(t, c.CA())
	c.Authority.Issue(t, c.Dir, "redis", "127.0.0.1")
	return c
}

// CA returns the file of the authority.
func (c *Certificates) CA() string { return filepath.Join(c.Dir, "ca.crt") }

func (c *Certificates) cert() string { return filepath.Join(c.Dir, "redis.crt") }

func (c *Certificates) key() string { return filepath.Join(c.Dir, "redis.key") }

// config returns what a client of the tests needs.
func (c *Certificates) config(t testing.TB) *tls.Config {
	t.Helper()
	content, err := certificates.Read(certificates.Files{Cert: c.cert(), Key: c.key(), CA: c.CA()})
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{content.Pair}, RootCAs: content.CAs}
}

// StartTLS starts a server that speaks TLS alone, and demands a certificate of its clients.
func StartTLS(t testing.TB, c *Certificates) *Server {
	t.Helper()
	return (&Server{tls: c}).start(t)
}

// The name of the master of a Guarded, and the passwords of its servers and sentinels.
const (
	MasterName       = "sluice-master"
	MasterPassword   = "master-password"
	SentinelUser     = "watcher"
	SentinelPassword = "sentinel-password"
)

// Guarded is a master and a replica, both with MasterPassword, and the three sentinels that guard
// them. SentinelUser may ask the sentinels, and nobody without a password may.
type Guarded struct {
	Servers, Sentinels []*Server
}

// Sentinels starts a Guarded. It returns when all sentinels know all servers. c has the
// certificates of all; nil: they speak without TLS.
func Sentinels(t testing.TB, c *Certificates) *Guarded {
	t.Helper()
	g := &Guarded{}
	master := (&Server{password: MasterPassword, tls: c}).start(t)
	host, port, _ := net.SplitHostPort(master.Addr)
	replica := (&Server{password: MasterPassword, tls: c, options: []string{"--replicaof", host + " " + port}}).start(t)
	g.Servers = []*Server{master, replica}
	for range 3 {
		conf := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s 2\nsentinel auth-pass %[1]s %[4]s\n"+
			"sentinel down-after-milliseconds %[1]s 1000\nsentinel failover-timeout %[1]s 5000\n"+
			"requirepass %[5]s\nuser %[6]s on >%[5]s allchannels -@all +subscribe +ping +sentinel|get-master-addr-by-name +sentinel|sentinels\n",
			MasterName, host, port, MasterPassword, SentinelPassword, SentinelUser)
		g.Sentinels = append(g.Sentinels, (&Server{sentinel: conf, password: SentinelPassword, tls: c}).start(t))
	}
	for _, s := range g.Sentinels {
		c := s.Client()
		testutil.Eventually(t, "the sentinel knows the replica and the other sentinels", func() bool {
			info, err := c.Info(t.Context(), "sentinel").Result()
			return err == nil && strings.Contains(info, "status=ok") && strings.Contains(info, "slaves=1,sentinels=3")
		})
	}
	testutil.Eventually(t, "the replica has the data", func() bool {
		info, err := replica.Client().Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	return g
}

// CutOff starts one more sentinel that knows the master of now. It reaches neither the servers nor
// the other sentinels, and so never hears of another master.
func (g *Guarded) CutOff(t testing.TB) *Server {
	t.Helper()
	master := g.Servers[0]
	host, port, _ := net.SplitHostPort(master.Addr)
	conf := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s 2\nsentinel auth-pass %[1]s wrong\nrequirepass %[4]s\n"+
		"user %[5]s on >%[4]s allchannels -@all +subscribe +ping +sentinel|get-master-addr-by-name +sentinel|sentinels\n",
		MasterName, host, port, SentinelPassword, SentinelUser)
	s := (&Server{sentinel: conf, password: SentinelPassword, tls: master.tls}).start(t)
	g.Sentinels = append(g.Sentinels, s)
	return s
}

// URL returns the URL of the sentinels, with the password of the master.
func (g *Guarded) URL() string {
	scheme := "redis://"
	if g.Sentinels[0].tls != nil {
		scheme = "rediss://"
	}
	return scheme + ":" + MasterPassword + "@" + strings.TrimPrefix(URL(g.Sentinels...), "redis://") + "/0"
}

// Used returns the index in Sentinels of one that SentinelUser is connected to; -1 if there is
// none.
func (g *Guarded) Used(t testing.TB) int {
	t.Helper()
	for i, s := range g.Sentinels {
		if list, err := s.Client().ClientList(t.Context()).Result(); err == nil && strings.Contains(list, "user="+SentinelUser) {
			return i
		}
	}
	return -1
}
