package join

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

const (
	// gatewayURI is in the gateway's certificate: a node's own, though signed by the same authority, cannot pass for it.
	gatewayURI = "sluice:gateway"
	// nodeURI, with the name after it, is in a node's.
	nodeURI = "sluice:node/"

	authorityLasts   = 20 * 365 * 24 * time.Hour
	certificateLasts = 365 * 24 * time.Hour
	// clockSlack is how far a clock may be behind the gateway's.
	clockSlack = time.Hour
)

// authority signs the certificates of one gateway's state directory.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// openAuthority reads the authority, or makes one where there is none.
func openAuthority(dir string) (*authority, error) {
	path := filepath.Join(dir, "ca.pem")
	data, err := readOrMake(path, makeAuthority)
	if err != nil {
		return nil, err
	}
	certificates, key, err := parsePEM(data)
	if err != nil || len(certificates) != 1 {
		return nil, errors.Join(fmt.Errorf("%s is damaged; without it the nodes must join anew", path), err)
	}
	return &authority{certificate: certificates[0], key: key}, nil
}

func makeAuthority() ([]byte, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: "sluice nodes"},
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		NotBefore: time.Now().Add(-clockSlack), NotAfter: time.Now().Add(authorityLasts),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return formatPEM(key, der)
}

// sign makes a certificate for the key.
func (a *authority) sign(uri string, usage x509.ExtKeyUsage, key any) ([]byte, error) {
	identity, err := url.Parse(uri)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: strings.TrimPrefix(uri, nodeURI)}, URIs: []*url.URL{identity},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-clockSlack), NotAfter: time.Now().Add(certificateLasts),
	}
	return x509.CreateCertificate(rand.Reader, template, a.certificate, key, a.key)
}

func (a *authority) signNode(name string, key *ecdsa.PublicKey) ([]byte, error) {
	return a.sign(nodeURI+name, x509.ExtKeyUsageClientAuth, key)
}

// pool has only this authority.
func pool(authority *x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(authority)
	return p
}

// hasURI tells whether the certificate is for this identity and no other.
func hasURI(c *x509.Certificate, uri string) bool {
	return len(c.URIs) == 1 && c.URIs[0].String() == uri
}

// nodeOf is the node that a certificate is for; the chain was verified before.
func nodeOf(c *x509.Certificate) (string, bool) {
	if len(c.URIs) != 1 {
		return "", false
	}
	name, ok := strings.CutPrefix(c.URIs[0].String(), nodeURI)
	return name, ok && checkName(name) == nil
}

// checkName refuses what would not fit a host's name, and so nothing else that a name is put into.
func checkName(name string) error {
	allowed := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r)
	}
	if name == "" || len(name) > 63 || strings.Trim(name, ".") == "" || strings.ContainsFunc(name, func(r rune) bool { return !allowed(r) }) {
		return fmt.Errorf("%.80q cannot be a node's name: 1 to 63 letters, digits and any of - _ . in it", name)
	}
	return nil
}

// expired tells whether a certificate does not hold now.
func expired(c *x509.Certificate, now time.Time) bool {
	return now.After(c.NotAfter) || now.Before(c.NotBefore)
}

// old tells whether less than a third of a certificate's time is left.
func old(c *x509.Certificate, now time.Time) bool {
	return c.NotAfter.Sub(now) < c.NotAfter.Sub(c.NotBefore)/3
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// parseRequest reads a signing request: which name asks, with which key. The signature proves that it has the key.
func parseRequest(der []byte) (name string, key *ecdsa.PublicKey, err error) {
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return "", nil, err
	}
	if err := request.CheckSignature(); err != nil {
		return "", nil, err
	}
	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return "", nil, errors.New("the key of a node must be an ECDSA key on P-256")
	}
	return request.Subject.CommonName, key, checkName(request.Subject.CommonName)
}

func makeRequest(name string, key *ecdsa.PrivateKey) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
}

// formatPEM writes certificates and their key into one file, so that they are never of two minds.
func formatPEM(key *ecdsa.PrivateKey, certificates ...[]byte) ([]byte, error) {
	var file bytes.Buffer
	for _, der := range certificates {
		_ = pem.Encode(&file, &pem.Block{Type: "CERTIFICATE", Bytes: der}) // a Buffer takes everything
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	_ = pem.Encode(&file, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return file.Bytes(), nil
}

// parsePEM reads what formatPEM wrote. The key fits the first certificate.
func parsePEM(data []byte) (certificates []*x509.Certificate, key *ecdsa.PrivateKey, err error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "CERTIFICATE":
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, nil, err
			}
			certificates = append(certificates, c)
		case "PRIVATE KEY":
			parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return nil, nil, err
			}
			key, _ = parsed.(*ecdsa.PrivateKey)
		}
	}
	if key == nil || len(certificates) == 0 || !key.PublicKey.Equal(certificates[0].PublicKey) {
		return nil, nil, errors.New("no certificate with its key")
	}
	return certificates, key, nil
}
