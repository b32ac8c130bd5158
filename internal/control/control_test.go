package control

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/internal/certificates"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// remembering is a listener that remembers the last connection that it has accepted.
type remembering struct {
	net.Listener
	last atomic.Pointer[net.TCPConn]
}

func (l *remembering) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.last.Store(c.(*net.TCPConn))
	}
	return c, err
}

// served is a listener whose services answer HTTP with their names.
type served struct {
	*Listener
	tcp       *remembering
	dir       string
	authority *testutil.Authority
}

func serve(t *testing.T, change func(*Files)) *served {
	t.Helper()
	s := &served{dir: t.TempDir(), authority: testutil.NewAuthority(t, "authority")}
	s.authority.Issue(t, s.dir, "server", "gateway.example")
	s.authority.Write(t, filepath.Join(s.dir, "ca.crt"))
	files := Files{Files: certificates.Files{Cert: filepath.Join(s.dir, "server.crt"), Key: filepath.Join(s.dir, "server.key"), CA: filepath.Join(s.dir, "ca.crt")}}
	if change != nil {
		change(&files)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.tcp = &remembering{Listener: tcp}
	if s.Listener, err = New(s.tcp, files, zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel))); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run() }()
	var servers []*http.Server
	for _, name := range services() {
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) })}
		servers = append(servers, server)
		go server.Serve(s.Service(name)) //nolint:errcheck // ends with Close
	}
	t.Cleanup(func() {
		s.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, server := range servers {
			server.Close()
		}
	})
	return s
}

// client returns the configuration of a client with a certificate of the authority for the names;
// without a certificate if a is nil.
func (s *served) client(t *testing.T, a *testutil.Authority, protocol string, names ...string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	c := &tls.Config{ServerName: "gateway.example", RootCAs: x509.NewCertPool()}
	c.RootCAs.AppendCertsFromPEM(text)
	if protocol != "" {
		c.NextProtos = []string{protocol}
	}
	if a == nil {
		return c
	}
	a.Issue(t, s.dir, "client", names...)
	pair, err := tls.LoadX509KeyPair(filepath.Join(s.dir, "client.crt"), filepath.Join(s.dir, "client.key"))
	if err != nil {
		t.Fatal(err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c
}

// ask returns which service answers a client.
func (s *served) ask(c *tls.Config) (string, error) {
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		return "", err
	}
	return askOver(conn, c)
}

// askOver returns which service answers a client on a new connection.
func askOver(tcp net.Conn, c *tls.Config) (string, error) {
	conn := tls.Client(tcp, c)
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		return "", err
	}
	b, err := io.ReadAll(conn)
	if len(b) == 0 {
		return "", fmt.Errorf("no answer: %w", err)
	}
	_, name, _ := strings.Cut(string(b), "\r\n\r\n")
	return name, nil
}

func TestU16_TheProtocolNamesTheService(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	for protocol, want := range map[string]string{
		"": headers.ALPNControl, headers.ALPNControl: headers.ALPNControl, headers.ALPNAPI: headers.ALPNAPI,
		headers.ALPNRelay: headers.ALPNRelay, headers.ALPNGRPC: headers.ALPNGRPC,
	} {
		if got, err := s.ask(s.client(t, s.authority, protocol, "envoy")); got != want || err != nil {
			t.Errorf("protocol %q: %q, %v", protocol, got, err)
		}
	}
	if got, err := s.ask(s.client(t, s.authority, "sluice-admin", "envoy")); err == nil {
		t.Errorf("an unknown protocol is answered by %q", got)
	}
}

// A connection that was accepted before the end of accepting, and whose handshake comes later, is
// served.
// A connection whose peer has vanished is found as soon on a listener of a predecessor, which
// knows nothing of keepAlive, as on one of this process.
func TestU16_VanishedPeersAreFound(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	option := func(name int) (value int) {
		c := s.tcp.last.Load()
		if c == nil {
			return 0
		}
		if raw, err := c.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { value, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name) })
		}
		return value
	}
	testutil.Eventually(t, "TCP asks whether the peer is there", func() bool {
		return option(unix.TCP_KEEPIDLE) == 10 && option(unix.TCP_KEEPINTVL) == 5 && option(unix.TCP_KEEPCNT) == 3
	})
}

func TestU16_NothingAcceptedIsLost(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	config := s.client(t, s.authority, headers.ALPNRelay, "envoy")
	early, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ask(config); err != nil { // the listener has accepted the one before this too
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() { s.StopAccepting(); close(stopped) }()
	testutil.Eventually(t, "nothing is accepted any more", func() bool {
		c, err := net.Dial("tcp", s.Addr().String())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	if got, err := askOver(early, config); got != headers.ALPNRelay || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	<-stopped
}

// An address that opens many connections and sends nothing does not keep the Envoys of others
// waiting until its handshakes end.
func TestU16_ASilentAddressKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	silent := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	var first net.Conn
	for i := range maxHandshakes + maxOfSource {
		c, err := silent.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i == 0 {
			first = c
		}
	}
	if got, err := s.ask(s.client(t, s.authority, headers.ALPNRelay, "envoy")); got != headers.ALPNRelay || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_ = first.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // an error shows at the read
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the Envoy was served only after the first handshake of the silent address: %v", err)
	}
}

func TestU16_WhoIsLetIn(t *testing.T) {
	t.Parallel()
	s := serve(t, func(f *Files) { f.Allowed = []string{"envoy.example", "spiffe://cluster/envoy"} })
	stranger := testutil.NewAuthority(t, "authority")
	for name, test := range map[string]struct {
		authority *testutil.Authority
		names     []string
		want      bool
	}{
		"nobody":                             {},
		"another authority of the same name": {stranger, []string{"envoy.example"}, false},
		"another name":                       {s.authority, []string{"web.example"}, false},
		"no name":                            {s.authority, nil, false},
		"the name":                           {s.authority, []string{"web.example", "envoy.example"}, true},
		"the URI":                            {s.authority, []string{"spiffe://cluster/envoy"}, true},
	} {
		if got, err := s.ask(s.client(t, test.authority, headers.ALPNRelay, test.names...)); (err == nil) != test.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	open := serve(t, func(f *Files) { f.CA = "" })
	if _, err := open.ask(open.client(t, nil, "")); err != nil {
		t.Errorf("without client_ca: %v", err)
	}
}

func TestU16_CertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	next := testutil.NewAuthority(t, "next")
	next.Issue(t, s.dir, "server", "gateway.example")
	next.Write(t, filepath.Join(s.dir, "ca.crt"))
	s.identity.get(time.Now().Add(certificates.Recheck))
	if got, err := s.ask(s.client(t, next, "", "envoy")); err != nil {
		t.Errorf("the new authority: %q, %v", got, err)
	}
	if got, err := s.ask(s.client(t, s.authority, "", "envoy")); err == nil {
		t.Errorf("the old authority is answered by %q", got)
	}
}

func TestU16_NoCertificates(t *testing.T) {
	t.Parallel()
	if _, err := New(nil, Files{Files: certificates.Files{Cert: "none", Key: "none"}}, nil); err == nil {
		t.Error("a listener without certificates")
	}
}
