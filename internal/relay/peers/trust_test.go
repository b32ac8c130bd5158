package peers

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// counting says "hello" and how often it was asked.
type counting struct{ asked atomic.Int64 }

func (c *counting) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.asked.Add(1)
	io.WriteString(w, "hello")
}

// connection is one to a gateway's address, which is not of a gateway, or not of this code.
type connection struct {
	net.Conn
	reader *bufio.Reader
}

func dial(address string, certificates []tls.Certificate, change func(*tls.Config)) (*connection, error) {
	cfg := &tls.Config{InsecureSkipVerify: true, Certificates: certificates}
	if change != nil {
		change(cfg)
	}
	c, err := tls.Dial("tcp", address, cfg)
	if err != nil {
		return nil, err
	}
	return &connection{c, bufio.NewReader(c)}, nil
}

// get asks for something. The error may be that the other end has refused the certificate.
func (c *connection) get(tenant string) (status int, body string, err error) {
	return c.ask("/", tenant)
}

func (c *connection) ask(path, tenant string) (status int, body string, err error) {
	r := httptest.NewRequest("GET", path, nil)
	r.Header.Set(headers.Tenant, tenant)
	if tenant == "" {
		r.Header.Del(headers.Tenant)
	}
	if err := r.Write(c); err != nil {
		return 0, "", err
	}
	answer, err := http.ReadResponse(c.reader, r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(b), err
}

func certificate(t *testing.T, name string) []tls.Certificate {
	t.Helper()
	c, err := newCertificate(name)
	if err != nil {
		t.Fatal(err)
	}
	return []tls.Certificate{c}
}

// Only who has the certificate of a live gateway gets through, over TLS 1.3, and only for somebody.
func TestWhoIsLetIn(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	asked := &counting{}
	a, b := start(t, c, nil, asked), start(t, c, nil, nil)
	other := start(t, c, func(cfg *Config) { cfg.Deployment = "other" }, nil)
	for name, test := range map[string]struct {
		certificates []tls.Certificate
		change       func(*tls.Config)
	}{
		"nobody":                                  {},
		"a stranger":                              {certificates: certificate(t, "stranger")},
		"a stranger with a gateway's name":        {certificates: certificate(t, b.ID())},
		"a stranger with the name of the server":  {certificates: certificate(t, a.ID())},
		"a stranger with no name":                 {certificates: certificate(t, "")},
		"a stranger with a key for a name":        {certificates: certificate(t, "x}:{sluice}:peer:"+b.ID())},
		"a stranger with a long name":             {certificates: certificate(t, strings.Repeat("x", 1000))},
		"a gateway of another deployment":         {certificates: []tls.Certificate{other.certificate}},
		"a gateway with the TLS of another age":   {[]tls.Certificate{b.certificate}, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }},
		"a gateway's certificate, another's key":  {certificates: []tls.Certificate{{Certificate: b.certificate.Certificate, PrivateKey: a.certificate.PrivateKey}}},
		"a stranger who shows a gateway's too":    {certificates: []tls.Certificate{chained(t, b.certificate)}},
		"a stranger with the gateway's file name": {certificates: certificate(t, "../"+b.ID())},
	} {
		conn, err := dial(a.address, test.certificates, test.change)
		if err != nil {
			continue
		}
		if status, body, err := conn.get("acme"); err == nil {
			t.Errorf("%s is let in: %d %s", name, status, body)
		}
		conn.Close()
	}
	if n := asked.asked.Load(); n != 0 {
		t.Errorf("%d strangers were answered", n)
	}
	conn, err := dial(a.address, []tls.Certificate{b.certificate}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if status, body, err := conn.get("acme"); status != 200 || body != "hello" || err != nil {
		t.Errorf("a gateway gets %d %s, %v", status, body, err)
	}
	if status, body, err := conn.get(""); status != 401 || !strings.Contains(body, string(openai.CodeInvalidAPIKey)) || err != nil {
		t.Errorf("without a tenant a gateway gets %d %s, %v", status, body, err)
	}
}

// A request to the Messages API that is refused gets an error of that API.
func TestB9_RefusedForwardsOfMessages(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	a, b := start(t, c, nil, nil), start(t, c, nil, nil)
	conn, err := dial(a.address, []tls.Certificate{b.certificate}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	check := func(body string, code openai.Code) {
		if !strings.HasPrefix(body, `{"type":"error","error":{`) || !strings.Contains(body, `"code":"`+string(code)+`"`) {
			t.Errorf("%s: %s", code, body)
		}
	}
	_, body, err := conn.ask("/v1/messages", "")
	if err != nil {
		t.Fatal(err)
	}
	check(body, openai.CodeInvalidAPIKey)
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/messages/count_tokens", nil)
	a.authenticate(http.NotFoundHandler()).ServeHTTP(w, r)
	check(w.Body.String(), openai.CodeGatewayUnavailable)
}

// chained is a stranger's certificate with a gateway's behind it.
func chained(t *testing.T, known tls.Certificate) tls.Certificate {
	t.Helper()
	c := certificate(t, known.Leaf.Subject.CommonName)[0]
	c.Certificate = append(c.Certificate, known.Certificate...)
	return c
}

// A connection that was let in is no good any more when the record is gone.
func TestCallerExpires(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	asked := &counting{}
	a := start(t, c, nil, asked)
	b := start(t, c, func(cfg *Config) { cfg.Expiry = short }, nil)
	conn, err := dial(a.address, []tls.Certificate{b.certificate}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if status, _, err := conn.get("acme"); status != 200 || err != nil {
		t.Fatal(status, err)
	}
	b.wire.cut.Store(true)
	var before int64
	eventually(t, "the gateway is refused on the connection that it has", func() bool {
		before = asked.asked.Load()
		status, body, err := conn.get("acme")
		if err != nil {
			t.Fatal(err)
		}
		return status == 503 && strings.Contains(body, string(openai.CodeGatewayUnavailable))
	})
	if asked.asked.Load() != before {
		t.Error("the refused request was answered too")
	}
	if again, err := dial(a.address, []tls.Certificate{b.certificate}, nil); err == nil {
		if status, _, err := again.get("acme"); err == nil {
			t.Errorf("a new connection gets %d", status)
		}
		again.Close()
	}
}

// A record is believed until it would have expired, and no longer.
func TestKnown(t *testing.T) {
	t.Parallel()
	p, err := New(Config{Redis: &wire{}, Listen: anyPort})
	if err != nil {
		t.Fatal(err)
	}
	p.records["a"], p.records["b"] = record{until: time.Now().Add(time.Hour)}, record{until: time.Now()}
	_, a := p.cachedRecord("a")
	_, b := p.cachedRecord("b")
	if _, c := p.cachedRecord("c"); !a || b || c {
		t.Errorf("%t, %t, %t", a, b, c)
	}
}

// An owner whose record is gone is not asked, though it listens.
func TestOwnerExpires(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	asked := &counting{}
	a, b := start(t, c, func(cfg *Config) { cfg.Expiry = short }, asked), start(t, c, nil, nil)
	eventually(t, "the owner can be asked", func() bool { return b.ask(t.Context(), t, a.ID(), "/").StatusCode == 200 })
	a.wire.cut.Store(true)
	eventually(t, "the owner is asked no more", func() bool {
		before := asked.asked.Load()
		answer := b.ask(t.Context(), t, a.ID(), "/")
		if answer.StatusCode == 503 && asked.asked.Load() != before {
			t.Fatal("an owner without a record was asked")
		}
		return answer.StatusCode == 503
	})
}

// A process that listens at the owner's address without being the owner gets no request.
func TestImpostor(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	a, b := start(t, c, nil, nil), start(t, c, nil, nil)
	asked := &counting{}
	impostor := httptest.NewUnstartedServer(asked)
	impostor.TLS = &tls.Config{Certificates: certificate(t, a.ID()), ClientAuth: tls.RequestClientCert}
	impostor.Config.ErrorLog = debugLogger(a.cfg.Log)
	impostor.StartTLS()
	defer impostor.Close()
	if err := c.HSet(t.Context(), a.recordKey(a.ID()), "address", impostor.Listener.Addr().String()).Err(); err != nil {
		t.Fatal(err)
	}
	if answer := b.ask(t.Context(), t, a.ID(), "/"); answer.StatusCode != 503 || asked.asked.Load() != 0 {
		t.Errorf("%s, and the impostor was asked %d times", answer.Status, asked.asked.Load())
	}
}

// A process of the same name has another certificate, which counts at once.
func TestSameNameAgain(t *testing.T) {
	t.Parallel()
	c := client(t, redistest.Start(t))
	asked := &counting{}
	a := start(t, c, nil, asked)
	named := func(cfg *Config) { cfg.ID = "b" }
	first := start(t, c, named, asked)
	for range 2 {
		if answer := first.ask(t.Context(), t, a.ID(), "/"); answer.StatusCode != 200 {
			t.Fatal(answer.Status)
		}
		if answer := a.ask(t.Context(), t, "b", "/"); answer.StatusCode != 200 {
			t.Fatal(answer.Status)
		}
		first.stop()
		first = start(t, c, named, asked)
	}
	if n := asked.asked.Load(); n != 4 {
		t.Errorf("asked %d times", n)
	}
}
