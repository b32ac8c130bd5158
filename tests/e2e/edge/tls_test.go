package edge

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// secured is a gateway with TLS on its listener, and the folder with its certificates.
type secured struct {
	*harness.Gateway
	dir       string
	authority *testutil.Authority
}

// startSecured starts a gateway whose tls section has the further fields.
func startSecured(t *testing.T, fields string) *secured {
	t.Helper()
	s := &secured{dir: t.TempDir(), authority: testutil.NewAuthority(t, "authority")}
	s.authority.Write(t, s.path("ca.crt"))
	s.issue(t)
	s.Gateway = harness.Start(t, fmt.Sprintf("tls: {cert: %s, key: %s%s}\n", s.path("server.crt"), s.path("server.key"), fields)+small)
	return s
}

func (s *secured) path(name string) string { return filepath.Join(s.dir, name) }

// issue replaces the certificate of the listener.
func (s *secured) issue(t *testing.T) { s.authority.Issue(t, s.dir, "server", "127.0.0.1") }

// client returns a client that trusts the authority. It has a certificate of signer, if that is not
// nil.
func (s *secured) client(t *testing.T, signer *testutil.Authority, http2 bool) *http.Client {
	t.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	text, err := os.ReadFile(s.path("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	c.RootCAs.AppendCertsFromPEM(text)
	if signer != nil {
		dir := t.TempDir()
		signer.Issue(t, dir, "client", "client.example")
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: http2}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// ask sends a chat and returns the protocol and the serial number of the certificate of the
// answer.
func (s *secured) ask(ctx context.Context, client *http.Client, tokens int) (protocol, serial string, err error) {
	body := fmt.Sprintf(`{"model":"chat","messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":%d}`, tokens)
	url := strings.Replace(s.URL, "http:", "https:", 1) + "/v1/chat/completions"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return "", "", err
	}
	r.Header.Set("content-type", "application/json")
	answer, err := client.Do(r)
	if err != nil {
		return "", "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || !strings.Contains(string(b), "[DONE]")) {
		err = fmt.Errorf("%s: %s", answer.Status, b)
	}
	return answer.Proto, answer.TLS.PeerCertificates[0].SerialNumber.String(), err
}

// TestE2E_O12_CertificateIsReplacedUnderLoad replaces the certificate while requests run on old and
// new connections. None fails, and a stream that has begun before goes on.
func TestE2E_O12_CertificateIsReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	s := startSecured(t, "")
	one, two := s.client(t, nil, false), s.client(t, nil, true)
	protocol, before, err := s.ask(t.Context(), one, 1)
	if err != nil || protocol != "HTTP/1.1" {
		t.Fatal(protocol, err)
	}
	if protocol, _, err = s.ask(t.Context(), two, 1); err != nil || protocol != "HTTP/2.0" {
		t.Fatal(protocol, err)
	}
	if answer, err := http.Get(s.URL + "/v1/models"); err == nil {
		t.Errorf("a client without TLS got %s", answer.Status)
	}
	var streams sync.WaitGroup
	for _, client := range []*http.Client{one, two} {
		streams.Go(func() { // until after the replacement, at 10 ms a token
			if _, serial, err := s.ask(t.Context(), client, 300); err != nil || serial != before {
				t.Errorf("a long stream ended with %v on the certificate %s, want %s", err, serial, before)
			}
		})
	}
	load, stop := context.WithCancel(t.Context())
	fresh := func() (serial string, err error) {
		client := s.client(t, nil, true)
		defer client.CloseIdleConnections()
		_, serial, err = s.ask(t.Context(), client, 1)
		return serial, err
	}
	var others sync.WaitGroup
	defer others.Wait()
	defer stop()
	for range 3 {
		others.Go(func() {
			for load.Err() == nil {
				if _, err := fresh(); err != nil {
					t.Errorf("a request during the replacement: %v", err)
				}
			}
		})
	}
	if err := os.Remove(s.path("server.key")); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the fault of the files is a condition", func() error {
		all, err := s.Conditions(condition.CertificateFault)
		if err == nil && all["listen"].Reason != "NotReadable" {
			err = fmt.Errorf("%+v", all)
		}
		return err
	})
	s.issue(t)
	harness.Eventually(t, "new connections get the new certificate", func() error {
		serial, err := fresh()
		if err == nil && serial == before {
			err = errors.New("still the old one")
		}
		return err
	})
	stop()
	others.Wait()
	streams.Wait()
	if metrics := s.EnvoyAdmin("/stats?filter=listener_manager.listener_modified"); !strings.Contains(metrics, "listener_modified: 0") {
		t.Errorf("the listener was replaced: %s", metrics)
	}
}

// TestE2E_O12_ClientsNeedACertificate lets in only clients with a certificate of client_ca, and
// follows that file.
func TestE2E_O12_ClientsNeedACertificate(t *testing.T) {
	t.Parallel()
	clients := testutil.NewAuthority(t, "clients")
	file := filepath.Join(t.TempDir(), "clients.crt")
	clients.Write(t, file)
	s := startSecured(t, ", client_ca: "+file)
	stranger := testutil.NewAuthority(t, "clients")
	check := func(who string, signer *testutil.Authority, want bool) error {
		if _, _, err := s.ask(t.Context(), s.client(t, signer, true), 1); (err == nil) != want {
			return fmt.Errorf("%s: %w", who, errors.Join(err, errors.New("want the other")))
		}
		return nil
	}
	for _, err := range []error{
		check("nobody", nil, false), check("another authority of the same name", stranger, false), check("the authority", clients, true),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	stranger.Write(t, file)
	harness.Eventually(t, "the new authority", func() error { return check("the new authority", stranger, true) })
	if err := check("the old authority", clients, false); err != nil {
		t.Error(err)
	}
}

// TestE2E_O12_TheCertificateInForceAfterARestart: Envoy refuses the certificate of the files, and
// serves with the one of before. The gateway warns of the end of that one, also after a restart.
func TestE2E_O12_TheCertificateInForceAfterARestart(t *testing.T) {
	t.Parallel()
	s := startSecured(t, "") // its certificate ends in an hour
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(1, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	// A certificate of version 1 must not name its version nor have extensions. Go does not mind.
	der = bytes.Replace(der, []byte{0xa0, 3, 2, 1, 2}, []byte{0xa0, 3, 2, 1, 0}, 1)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, content := range map[string][]byte{"server.crt": certificate, "server.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(s.path(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mustWarn := func(when string) {
		t.Helper()
		harness.Eventually(t, "the gateway warns "+when, func() error {
			rejected, err := s.Conditions(condition.EnvoyRejectedConfig)
			all, failed := s.Conditions(condition.CertificateFault)
			if err = cmp.Or(err, failed); err == nil && (len(rejected) == 0 || all["listen"].Reason != "EndsSoon") {
				err = fmt.Errorf("%+v, %+v", rejected, all)
			}
			return err
		})
	}
	mustWarn("at once")
	s.Kill()
	s.Launch()
	mustWarn("after a restart")
}
