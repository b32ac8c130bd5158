package routing

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestE2E_T1_UpWithNothingButUpstreams(t *testing.T) {
	t.Parallel()
	up := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if !harness.ServeModelList(w, r, "a", "b/c") {
			io.WriteString(w, "fine")
		}
	})
	// This command has its ports by default, so it runs with a file that says the same.
	g := harness.Start(t, "upstreams: ["+up+"]\n")
	for _, name := range []string{"a", "b/c"} {
		if a := g.Post("/v1/completions", `{"model":"`+name+`","prompt":"x"}`); a.StatusCode != 200 || string(a.Content) != "fine" {
			t.Errorf("%s: %s", name, a)
		}
		if a := g.Fetch("/v1/models/" + name); a.StatusCode != 200 {
			t.Errorf("%s: %s", name, a)
		}
	}
}

// provider is an upstream that requires a key, or none, and counts the requests by their key.
type provider struct {
	id          string
	prefix, key string

	mu sync.Mutex
	// chats by the Authorization header that they came with; guarded by mu
	chats map[string]int
	// attempts counts the requests that it was sent, and broken says that it answers none; guarded
	// by mu
	attempts int
	broken   bool
	// faults are what no request should have had; guarded by mu
	faults []string
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := r.Header.Get("Authorization"); got != p.key {
		p.faults = append(p.faults, fmt.Sprintf("%s came with Authorization %q", r.URL.Path, got))
		http.Error(w, "no", http.StatusUnauthorized)
		return
	}
	if r.Host != strings.TrimSuffix(p.id, p.prefix) || r.Header.Get("X-Sluice-Cluster") != "" {
		p.faults = append(p.faults, fmt.Sprintf("%s at %s with %v", r.URL.Path, r.Host, r.Header))
	}
	switch path, below := strings.CutPrefix(r.URL.Path, p.prefix); {
	case !below:
		p.faults = append(p.faults, "path "+r.URL.Path)
		http.NotFound(w, r)
	case path == "/v1/models":
		fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
	case harness.AsksForEngine(r):
		http.NotFound(w, r)
	case path == "/v1/chat/completions":
		if p.attempts++; p.broken {
			panic(http.ErrAbortHandler)
		}
		p.chats[r.Header.Get("Authorization")]++
		fmt.Fprint(w, `{"choices":[]}`)
	default:
		p.faults = append(p.faults, "path "+r.URL.Path)
		http.NotFound(w, r)
	}
}

func (p *provider) check(t *testing.T) (chats, attempts int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, fault := range p.faults {
		t.Errorf("%s: %s", p.id, fault)
	}
	return p.chats[p.key], p.attempts
}

func (p *provider) breakDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = true
}

// startProvider starts a server, by TLS if it is to have a certificate. The certificate is its own
// authority.
func startProvider(t *testing.T, secure bool, prefix, key string) (p *provider, url, ca string) {
	t.Helper()
	p = &provider{prefix: prefix, key: key, chats: map[string]int{}}
	s := httptest.NewUnstartedServer(p)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // it is refused on purpose
	if secure {
		s.StartTLS()
		ca = certificateFile(t, s.Certificate().Raw)
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	p.id = s.Listener.Addr().String() + prefix
	return p, s.URL + prefix, ca
}

func certificateFile(t *testing.T, der []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// strangersCA returns the file of a certificate authority that has signed no certificate of the
// tests.
func strangersCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "stranger"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return certificateFile(t, der)
}

func TestE2E_T1_T6_UpstreamsWithTLSAndKeys(t *testing.T) {
	t.Parallel()
	const key, other = "sk-secret-%REQ(:path)%-1", "sk-secret-2"
	plain, plainURL, _ := startProvider(t, false, "", "")
	secure, secureURL, ca := startProvider(t, true, "/openai", "Bearer "+key)
	keyed, keyedURL, _ := startProvider(t, false, "", other)
	refused, refusedURL, _ := startProvider(t, true, "", "")
	g := harness.Start(t, fmt.Sprintf(`
models:
  - name: m
    launcher: upstream
    upstreams:
      - %s
      - {url: %s/v1, api_key_env: SLUICE_TEST_KEY, ca_file: %s}
      - {url: %s, headers: {Authorization: "${SLUICE_TEST_OTHER}"}}
      - {url: %s, ca_file: %s}
    routing: {strategy: round_robin}
    admission: {max_per_replica: 8}
`, plainURL, secureURL, ca, keyedURL, refusedURL, strangersCA(t)), "SLUICE_TEST_KEY="+key, "SLUICE_TEST_OTHER="+other)
	all := []*provider{plain, secure, keyed}
	harness.Eventually(t, "three are ready, one is not trusted", func() error {
		replicas := g.Replicas()
		for _, p := range all {
			if replicas[p.id].State != "ready" {
				return fmt.Errorf("%+v", replicas)
			}
		}
		if r := replicas[refused.id]; r.State != "failed" || !strings.HasPrefix(r.Reason, "its certificate is not trusted: ") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})

	served := map[string]int{}
	for range 30 {
		a := g.Post("/v1/chat/completions", harness.ChatBody("m", false, 1, "hello"), "Authorization: Bearer client")
		if a.StatusCode != 200 {
			t.Fatal(a)
		}
		served[a.Header.Get("X-Sluice-Replica")]++
	}
	for _, p := range all {
		if n, _ := p.check(t); n != 10 || served[p.id] != n {
			t.Errorf("%s has served %d of 30, and %d bear its name", p.id, n, served[p.id])
		}
	}
	if n, attempts := refused.check(t); n+attempts > 0 {
		t.Errorf("the server that nobody trusts was sent %d requests", attempts)
	}
	checkNoFallbackCrosses(g, plain, secure, keyed)
	checkSecretKept(g, "sk-secret")
}

// A server may have OpenAI's API below another path than /v1. Both ways of streams, and models that
// are discovered, find it there.
func TestE2E_T6_UpstreamsWithTheirAPIElsewhere(t *testing.T) {
	t.Parallel()
	const api = "/v1beta/openai"
	up := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch path, below := strings.CutPrefix(r.URL.Path, api); {
		case below && path == "/models":
			io.WriteString(w, `{"data":[{"id":"m"}]}`)
		case below && path == "/chat/completions":
			io.WriteString(w, `{"choices":[{"index":0,"message":{"role":"assistant","content":"`+r.URL.RequestURI()+`"},"finish_reason":"stop"}]}`)
		default:
			http.NotFound(w, r)
		}
	})
	server := "{url: " + up + ", api_path: " + api + "}"
	g := harness.Start(t, fmt.Sprintf(`
models:
  - {name: native, launcher: upstream, upstreams: [%[1]s], stream: {mode: native}}
  - {name: managed, launcher: upstream, upstreams: [%[1]s], stream: {mode: managed}}
upstreams: [%[1]s]
`, server))
	for _, model := range []string{"m", "native", "managed"} {
		harness.Eventually(t, "the model answers", func() error {
			a := g.Post(harness.ChatPath+"?a=1", harness.ChatBody(model, false, 1, "hello"))
			if a.StatusCode != 200 || !strings.Contains(string(a.Content), api+"/chat/completions") {
				return fmt.Errorf("%s: %s", model, a)
			}
			return nil
		})
	}
}

// A discovered server by TLS that the system trusts; and its requests go on when Sluice has died
// and come back.
func TestE2E_T1_T6_DiscoveredByTLSOverARestart(t *testing.T) {
	t.Parallel()
	secure, url, ca := startProvider(t, true, "", "")
	g := harness.Start(t, "upstreams: ["+url+"]\n", "SSL_CERT_FILE="+ca) // the system's list
	ask := func() {
		t.Helper()
		harness.Eventually(t, "the model is there", func() error {
			if a := g.Post("/v1/chat/completions", harness.ChatBody("m", false, 1, "hello")); a.StatusCode != 200 || a.Header.Get("X-Sluice-Replica") != secure.id {
				return fmt.Errorf("%s from %s", a, a.Header.Get("X-Sluice-Replica"))
			}
			return nil
		})
	}
	ask()
	g.Kill()
	g.Launch()
	g.AwaitReady()
	ask()
	if n, _ := secure.check(t); n != 2 {
		t.Errorf("served %d", n)
	}
}

// checkNoFallbackCrosses checks that a request which fails at one server is not retried at another
// server. The broken server may be out of rotation by then.
func checkNoFallbackCrosses(g *harness.Gateway, broken *provider, others ...*provider) {
	g.T.Helper()
	before := 0
	for _, p := range others {
		n, _ := p.check(g.T)
		before += n
	}
	_, tried := broken.check(g.T)
	broken.breakDown()
	good, bad := 0, 0
	for range 30 {
		a := g.Post("/v1/chat/completions", harness.ChatBody("m", false, 1, "hello"))
		switch {
		case a.StatusCode == 200:
			good++
		case a.StatusCode == 502 || a.Code() == "no_replica":
			bad++
		default:
			g.T.Error(a)
		}
	}
	after := 0
	for _, p := range others {
		n, _ := p.check(g.T)
		after += n
	}
	_, now := broken.check(g.T)
	if bad == 0 || after-before != good || now-tried < bad {
		g.T.Errorf("%d answers and %d failures; the others served %d, the broken one was tried %d times", good, bad, after-before, now-tried)
	}
}

// checkSecretKept fails the test if the secret appears in the log or on a page of the admin
// listener.
func checkSecretKept(g *harness.Gateway, secret string) {
	g.T.Helper()
	harness.Eventually(g.T, "the requests are in the list", func() error {
		if text := g.AdminText("/api/v1/requests"); !strings.Contains(text, `"/v1/chat/completions"`) || strings.Contains(text, "/openai/v1/chat") {
			return fmt.Errorf("%.2000s", text)
		}
		return nil
	})
	for _, path := range []string{"/", "/metrics", "/api/v1/status", "/api/v1/models", "/api/v1/replicas", "/api/v1/requests"} {
		text := g.AdminText(path)
		if strings.Contains(text, secret) {
			g.T.Errorf("%s tells the secret", path)
		}
		if strings.Contains(text, "m#") {
			g.T.Errorf("%s takes the name of a cluster for that of a model", path)
		}
	}
	if strings.Contains(g.LogText(), secret) {
		g.T.Error("the log tells the secret")
	}
}
