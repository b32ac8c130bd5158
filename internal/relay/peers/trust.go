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
	certificateLifetime = 365 * 24 * time.Hour
	// clockSlack is how far the clock of another gateway may be behind.
	clockSlack = time.Hour
)

// errUntrusted says that the other end has not the certificate that its record names.
var errUntrusted = errors.New("the other end does not have the certificate of that gateway")

// newCertificate returns a self-signed certificate. Its name is the gateway's, by which the other
// end finds the record.
func newCertificate(gateway string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: gateway}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-clockSlack), NotAfter: time.Now().Add(certificateLifetime),
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

// fingerprint returns the SHA-256 of a certificate in hex.
func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// serverTLS returns the configuration of a server that accepts every live gateway.
func (p *Peers) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{p.certificate}, NextProtos: []string{"http/1.1"},
		ClientAuth:             tls.RequireAnyClientCert, // VerifyConnection decides, by the records
		SessionTicketsDisabled: true,                     // every connection has to prove its identity
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := p.callerOf(context.Background(), &state)
			return err
		},
	}
}

// clientTLS returns the configuration of a client that accepts only the gateway with this record.
func (p *Peers) clientTLS(r record) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{p.certificate}, NextProtos: []string{"http/1.1"},
		InsecureSkipVerify: true, // VerifyConnection decides, by the record
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || fingerprint(state.PeerCertificates[0]) != r.certificate {
				return errUntrusted
			}
			return nil
		},
	}
}

// callerOf returns the gateway at the other end of a connection, as its certificate proves it. A
// cached record that does not fit may be that of an earlier process with the same name, so callerOf
// also asks Redis.
func (p *Peers) callerOf(ctx context.Context, state *tls.ConnectionState) (gateway string, err error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return "", errUntrusted
	}
	leaf := state.PeerCertificates[0]
	gateway = leaf.Subject.CommonName
	if !isID(gateway) {
		return "", errUntrusted
	}
	sum := fingerprint(leaf)
	if r, ok := p.cachedRecord(gateway); ok && r.certificate == sum {
		return gateway, nil
	}
	r, err := p.fetchRecord(ctx, gateway)
	if err != nil {
		return "", err
	}
	if r.certificate != sum {
		return "", fmt.Errorf("gateway %s: %w", gateway, errUntrusted)
	}
	return gateway, nil
}
