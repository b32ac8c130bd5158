package config

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// tlsFile writes certificates beside a configuration with the text and parses it.
func tlsFile(t *testing.T, text string) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	ca := testutil.NewAuthority(t, "ca")
	ca.Issue(t, dir, "server", "gateway.example")
	ca.Write(t, filepath.Join(dir, "ca.crt"))
	whole, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "cut.crt"), append(whole, whole[:len(whole)/2]...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	selfSigned(t, dir, "weak", weak, weak.Public())
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	selfSigned(t, dir, "edwards", private, public)
	file := filepath.Join(dir, "sluice.yaml")
	if err := os.WriteFile(file, []byte("auth: {mode: none}\nlisten: 127.0.0.1:1\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(file)
}

// selfSigned writes a certificate with its key.
func selfSigned(t *testing.T, dir, name string, private, public any) {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestO12_TLS(t *testing.T) {
	t.Parallel()
	c, err := tlsFile(t, "tls: {cert: server.crt, key: server.key, client_ca: ca.crt}")
	if err != nil || !filepath.IsAbs(c.TLS.Cert) || !filepath.IsAbs(c.TLS.Key) || !filepath.IsAbs(c.TLS.ClientCA) {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := tlsFile(t, "tls: {cert: edwards.crt, key: edwards.key}"); err != nil {
		t.Errorf("Ed25519: %v", err)
	}
	if c, err = tlsFile(t, ""); err != nil || c.TLS != nil {
		t.Errorf("absent: %+v, %v", c, err)
	}
}

func TestO12_TLSFaults(t *testing.T) {
	t.Setenv("GODEBUG", "rsa1024min=0") // to make a key that is too short
	control := "\ncontrol: {listen: 127.0.0.1:3, cert: server.crt, key: server.key}"
	for name, test := range map[string]struct{ text, want string }{
		"no key":             {"tls: {cert: server.crt}", "3: tls.key: "},
		"an empty path":      {`tls: {cert: "", key: server.key}`, "3: tls.cert: is empty"},
		"no file":            {"tls: {cert: none.crt, key: server.key}", "3: tls.cert: cannot be read"},
		"no files":           {"tls: {cert: none.crt, key: none.key, client_ca: none.ca}", "3: tls.client_ca: cannot be read"},
		"no file of key":     {"tls: {cert: none.crt, key: none.key, client_ca: none.ca}", "3: tls.key: cannot be read"},
		"the wrong key":      {"tls: {cert: server.crt, key: weak.key}", "3: tls.cert: cannot be used: "},
		"a key as authority": {"tls: {cert: server.crt, key: server.key, client_ca: server.key}", "/server.key: it holds no certificate"},
		"a cut authority":    {"tls: {cert: server.crt, key: server.key, client_ca: cut.crt}", "3: tls.client_ca: cannot be used: "},
		"a short key":        {"tls: {cert: weak.crt, key: weak.key}", "weak.crt has an RSA key of 1024 bits"},
		"a key for anybody":  {"tls: {cert: server.crt, key: server.key}" + control, "3: tls: gives the key to every program"},
	} {
		if _, err := tlsFile(t, test.text); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestRedisCertificates: the files of redis are read once, so that a wrong one is a fault of the
// file.
func TestRedisCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := testutil.NewAuthority(t, "authority")
	a.Write(t, filepath.Join(dir, "ca.crt"))
	a.Issue(t, dir, "one")
	a.Issue(t, dir, "two")
	for files, want := range map[string]string{
		"ca: ca.crt": "",
		"ca: ca.crt, cert: one.crt, key: one.key": "",
		"ca: one.key":                 "redis.ca: cannot be used",
		"ca: none":                    "redis.ca: cannot be used",
		"cert: none, key: one.key":    "redis.cert: cannot be read",
		"cert: one.crt, key: two.key": "redis.cert: cannot be used",
	} {
		c, err := Parse(filepath.Join(dir, "sluice.yaml"), []byte("redis: {url: rediss://h, "+files+"}"))
		if want == "" {
			if err != nil || c.Redis.CA != filepath.Join(dir, "ca.crt") {
				t.Errorf("%s: %v", files, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", files, err, want)
		}
	}
}
