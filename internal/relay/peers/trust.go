package peers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"time"
)

const (
	certificateLasts = 365 * 24 * time.Hour
	// clockSlack is how far another clock may be behind.
	clockSlack = time.Hour
)

// errStranger: whoever is at the other end has not the certificate that its record names.
var errStranger = errors.New("who is at the other end is not that gateway")

// newCertificate signs itself. Its name is the gateway's, by which the other end finds the record.
func newCertificate(gateway string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: gateway}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-clockSlack), NotAfter: time.Now().Add(certificateLasts),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// serverTLS accepts any gateway that lives.
func (p *Peers) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{p.certificate}, NextProtos: []string{"http/1.1"},
		ClientAuth:             tls.RequireAnyClientCert, // VerifyConnection decides, by our own rule
		SessionTicketsDisabled: true,                     // each connection proves anew who it is
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := p.caller(context.Background(), &state)
			return err
		},
	}
}

// clientTLS accepts the one gateway that has this record.
func (p *Peers) clientTLS(r record) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{p.certificate}, NextProtos: []string{"http/1.1"},
		InsecureSkipVerify: true, // VerifyConnection does it, by our own rule
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || fingerprint(state.PeerCertificates[0]) != r.certificate {
				return errStranger
			}
			return nil
		},
	}
}

// caller is the gateway at the other end, by the certificate whose key it has shown to have. A record that is known and does not fit may be
// that of a process before it, so Redis is asked too.
func (p *Peers) caller(ctx context.Context, state *tls.ConnectionState) (gateway string, err error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return "", errStranger
	}
	leaf := state.PeerCertificates[0]
	gateway = leaf.Subject.CommonName
	if !isID(gateway) {
		return "", errStranger
	}
	sum := fingerprint(leaf)
	if r, ok := p.known(gateway); ok && r.certificate == sum {
		return gateway, nil
	}
	r, err := p.look(ctx, gateway)
	if err != nil {
		return "", err
	}
	if r.certificate != sum {
		return "", fmt.Errorf("gateway %s: %w", gateway, errStranger)
	}
	return gateway, nil
}
