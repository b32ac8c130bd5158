package xds

import (
	"bytes"
	"crypto/tls"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

func refusedNames(s Status) []string {
	var names []string
	for _, n := range s.Refused {
		names = append(names, n.Resource)
	}
	return names
}

// eventuallyRefused waits until exactly these resources are refused.
func eventuallyRefused(t *testing.T, s *Server, want ...string) {
	t.Helper()
	eventually(t, "the refused are "+strings.Join(want, ", "), func() bool { return slices.Equal(refusedNames(s.Status()), want) })
}

// Envoy acknowledges a secret that is equal to the last one without a look, so every secret that is
// sent has a new text. A refused one is proved again with the next one that Envoy acknowledges.
func TestO12_ARefusedSecretIsNotTakenForAccepted(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	config := Config{Listen: "127.0.0.1:1", TLS: TLS{Certificate: "one", Key: "key", ClientCA: "bad"}}
	s.Set(mustBuild(t, config, sample()))
	c := s.connect(t)
	c.ask(listenerKind, nil)
	c.ack(c.expect(listenerKind, resourceName))
	c.expectNothing()
	c.ask(secretKind, nil, listenSecret, clientSecret)
	both := c.expect(secretKind, listenSecret, clientSecret)
	c.ack(both, "no good")
	for i, name := range []string{clientSecret, listenSecret} {
		alone := c.expect(secretKind, name)
		if first := both.Resources[i]; bytes.Equal(first.Resource.Value, alone.Resources[0].Resource.Value) || first.Version != alone.Resources[0].Version {
			t.Errorf("%s: the second text equals the first, or its version %s does not equal %s", name, first.Version, alone.Resources[0].Version)
		}
		c.ack(alone, "no good")
	}
	c.expectNothing()
	if s := s.Status(); s.Configured || !slices.Equal(refusedNames(s), []string{clientSecret, listenSecret}) {
		t.Errorf("status %+v", s)
	}

	config.TLS.ClientCA = "good"
	s.Set(mustBuild(t, config, sample()))
	c.ack(c.expect(secretKind, clientSecret))
	c.ack(c.expect(secretKind, listenSecret))
	c.expectNothing()
	if s := s.Status(); !s.Configured || s.Refused != nil {
		t.Errorf("status %+v", s)
	}
}

// What Envoy reports after a reconnect is what it last accepted, and not what it was last sent.
func TestO12_SecretsAreSentAgainAfterAReconnect(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	r := mustBuild(t, Config{Listen: "127.0.0.1:1", TLS: TLS{Certificate: "one", Key: "key"}}, sample())
	s.Set(r)
	c := s.connect(t)
	c.ask(secretKind, map[string]string{listenSecret: r.Secrets[listenSecret].Version}, listenSecret)
	c.ack(c.expect(secretKind, listenSecret), "no good")
	c.expectNothing()
	if s := s.Status(); !slices.Equal(refusedNames(s), []string{listenSecret}) {
		t.Errorf("status %+v", s)
	}
}

// certificatesOf returns the content of files that a new authority has signed.
func certificatesOf(t *testing.T) (TLS, tls.Certificate) {
	t.Helper()
	dir := t.TempDir()
	a := testutil.NewAuthority(t, "authority")
	a.Issue(t, dir, "server", "127.0.0.1")
	a.Write(t, filepath.Join(dir, "ca.crt"))
	var texts []string
	for _, name := range []string{"server.crt", "server.key", "ca.crt"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	pair, err := tls.X509KeyPair([]byte(texts[0]), []byte(texts[1]))
	if err != nil {
		t.Fatal(err)
	}
	return TLS{Certificate: texts[0], Key: texts[1], ClientCA: texts[2]}, pair
}

// Envoy itself refuses secrets that it has refused before, also when the gateway starts again.
func TestO12_EnvoyRefusesASecret(t *testing.T) {
	t.Parallel()
	good, pair := certificatesOf(t)
	bad := good
	bad.ClientCA += good.ClientCA[:len(good.ClientCA)/2]
	g := newGateway(t, Config{Listen: "127.0.0.1:0", TLS: bad}, nil)
	serves := func() bool {
		c, err := tls.Dial("tcp", g.addr, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}})
		if err != nil {
			return false
		}
		return c.Close() == nil
	}
	become := func(c TLS) {
		g.config.TLS = c
		g.update(t)
	}
	eventually(t, "a secret is refused", func() bool { return len(g.server.Status().Refused) > 0 })
	if serves() || g.server.Status().Configured {
		t.Errorf("Envoy serves without authorities; status %+v", g.server.Status())
	}
	become(good)
	eventuallyRefused(t, g.server)
	eventually(t, "Envoy is configured", func() bool { return g.server.Status().Configured })
	if !serves() {
		t.Error("Envoy does not serve")
	}

	become(bad)
	eventuallyRefused(t, g.server, clientSecret)
	g.stop()
	g.mu.Lock()
	g.acks = map[string]map[string]netip.AddrPort{}
	g.server = NewServer(ServerConfig{OnAck: g.onAck})
	g.server.Set(g.current)
	g.mu.Unlock()
	serveControl(t, g.dir, g)
	eventuallyRefused(t, g.server, clientSecret, listenSecret)
	eventually(t, "Envoy counts as configured", func() bool { return g.server.Status().Configured })
	if !serves() {
		t.Errorf("Envoy does not serve with the authorities of before; status %+v", g.server.Status())
	}
	if s := g.server.Status(); s.Certificate != good.Certificate {
		t.Errorf("the certificate in force is %q", s.Certificate)
	}
	become(good)
	eventuallyRefused(t, g.server)

	other, _ := certificatesOf(t)
	other.Certificate, other.ClientCA = other.Certificate+other.Certificate[:len(other.Certificate)/2], good.ClientCA
	become(other)
	eventuallyRefused(t, g.server, listenSecret)
	if s := g.server.Status(); s.Certificate != good.Certificate {
		t.Errorf("the certificate in force is %q", s.Certificate)
	}
	become(good)
	eventuallyRefused(t, g.server)
}
