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
	// gatewayURI is the URI in the gateway's certificate. A node's certificate has another URI, so
	// a node cannot pass for the gateway although the same authority signed both.
	gatewayURI = "sluice:gateway"
	// nodeURI, followed by the node's name, is the URI in a node's certificate.
	nodeURI = "sluice:node/"

	authorityLifetime   = 20 * 365 * 24 * time.Hour
	certificateLifetime = 365 * 24 * time.Hour
	// clockSlack is how far the clock of a node may be behind the gateway's clock. It is also how
	// far the clock of a gateway may be ahead before somebody sets it right. A machine whose
	// hardware clock has local time is up to 14 hours ahead after its boot.
	clockSlack = 24 * time.Hour
)

// authority is the certificate authority of one gateway. It signs the certificates of the gateway
// and its nodes.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// openAuthority reads the authority from dir, or creates one if there is none.
func openAuthority(dir string) (*authority, error) {
	path := filepath.Join(dir, "ca.pem")
	data, err := readOrCreate(path, makeAuthority)
	if err != nil {
		return nil, err
	}
	certificates, key, err := parsePEM(data)
	if err != nil || len(certificates) != 1 {
		return nil, errors.Join(
			fmt.Errorf("%s is damaged: restore it, or remove it and let all nodes join again", path), err)
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
		NotBefore: time.Now().Add(-clockSlack), NotAfter: time.Now().Add(authorityLifetime),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return formatPEM(key, der)
}

// sign returns a certificate (DER) for a public key. uri is the identity in it, usage the extended
// key usage.
func (a *authority) sign(uri string, usage x509.ExtKeyUsage, key any) ([]byte, error) {
	identity, err := url.Parse(uri)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: strings.TrimPrefix(uri, nodeURI)}, URIs: []*url.URL{identity},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-clockSlack), NotAfter: time.Now().Add(certificateLifetime),
	}
	return x509.CreateCertificate(rand.Reader, template, a.certificate, key, a.key)
}

func (a *authority) signNode(name string, key *ecdsa.PublicKey) ([]byte, error) {
	return a.sign(nodeURI+name, x509.ExtKeyUsageClientAuth, key)
}

// certPool returns a pool that contains only this authority.
func certPool(authority *x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(authority)
	return p
}

// hasURI reports whether uri is the only identity in the certificate.
func hasURI(c *x509.Certificate, uri string) bool {
	return len(c.URIs) == 1 && c.URIs[0].String() == uri
}

// nodeNameOf returns the name of the node that the certificate was issued to. The caller must have
// verified the chain.
func nodeNameOf(c *x509.Certificate) (string, bool) {
	if len(c.URIs) != 1 {
		return "", false
	}
	name, ok := strings.CutPrefix(c.URIs[0].String(), nodeURI)
	return name, ok && checkName(name) == nil
}

// checkName returns an error unless name is a valid name of a node. Valid names need no escaping in
// a URI, a file name or a header.
func checkName(name string) error {
	isAllowed := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r)
	}
	isForbidden := func(r rune) bool { return !isAllowed(r) }
	if name == "" || len(name) > 63 || strings.Trim(name, ".") == "" || strings.ContainsFunc(name, isForbidden) {
		return fmt.Errorf("the node's name %.80q is invalid: use 1 to 63 letters, digits, '-', '_' or '.'", name)
	}
	return nil
}

// isInvalidAt reports whether the certificate is expired or not yet valid.
func isInvalidAt(c *x509.Certificate, now time.Time) bool {
	return now.After(c.NotAfter) || now.Before(c.NotBefore)
}

// needsRenewal reports whether less than a third of the certificate's lifetime is left.
func needsRenewal(c *x509.Certificate, now time.Time) bool {
	return c.NotAfter.Sub(now) < c.NotAfter.Sub(c.NotBefore)/3
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// parseSigningRequest returns the name and the key of a certificate signing request. It verifies
// the signature, which proves that the sender has the private key.
func parseSigningRequest(der []byte) (name string, key *ecdsa.PublicKey, err error) {
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return "", nil, err
	}
	if err := request.CheckSignature(); err != nil {
		return "", nil, err
	}
	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return "", nil, errors.New("the node's key is not an ECDSA key on the curve P-256")
	}
	return request.Subject.CommonName, key, checkName(request.Subject.CommonName)
}

func makeSigningRequest(name string, key *ecdsa.PrivateKey) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
}

// formatPEM encodes certificates and their key as one file, so that they are always replaced
// together.
func formatPEM(key *ecdsa.PrivateKey, certificates ...[]byte) ([]byte, error) {
	var file bytes.Buffer
	for _, der := range certificates {
		// Writing to a Buffer never fails.
		_ = pem.Encode(&file, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	_ = pem.Encode(&file, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return file.Bytes(), nil
}

// parsePEM decodes what formatPEM encoded. It fails if the key does not fit the first certificate.
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
		return nil, nil, errors.New("the file lacks a certificate with its private key")
	}
	return certificates, key, nil
}
