package testutil

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Authority signs certificates for tests.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority makes an authority that signs itself.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	template := certificateTemplate(t, name)
	template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
	a := &Authority{key: newKey(t)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err == nil {
		a.certificate, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Write writes the authority's certificate in PEM. It replaces the file in one step.
func (a *Authority) Write(t testing.TB, file string) {
	t.Helper()
	writePEM(t, file, "CERTIFICATE", a.certificate.Raw)
}

// Issue writes NAME.crt and NAME.key into a directory: a certificate for servers and clients with
// the DNS names, addresses and URIs. It replaces each file in one step.
func (a *Authority) Issue(t testing.TB, dir, name string, subjects ...string) {
	t.Helper()
	template := certificateTemplate(t, name)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, subject := range subjects {
		ip := net.ParseIP(subject)
		u, err := url.Parse(subject)
		switch {
		case ip != nil:
			template.IPAddresses = append(template.IPAddresses, ip)
		case err == nil && strings.Contains(subject, "://"):
			template.URIs = append(template.URIs, u)
		default:
			template.DNSNames = append(template.DNSNames, subject)
		}
	}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, filepath.Join(dir, name+".key"), "PRIVATE KEY", private)
	writePEM(t, filepath.Join(dir, name+".crt"), "CERTIFICATE", der)
}

func certificateTemplate(t testing.TB, name string) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// writePEM writes one PEM block and renames the file into its place.
func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	err := os.WriteFile(file+".new", text, 0o600)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		t.Fatal(err)
	}
}
