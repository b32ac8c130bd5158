package join

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// serverCertificate is the gateway's certificate for nodes. It is replaced before it expires. Its
// key is never stored.
type serverCertificate struct {
	authority *authority

	mu sync.Mutex
	// current is nil before the first connection. Guarded by mu.
	current *tls.Certificate
}

// tlsConfig returns the TLS configuration of the gateway's listener. Client certificates are
// optional, because a node that joins has none. The RPCs check the certificate.
func (f *serverCertificate) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.certificate(time.Now()) },
		ClientAuth:     tls.VerifyClientCertIfGiven, ClientCAs: certPool(f.authority.certificate),
		SessionTicketsDisabled: true, // Each connection must verify its certificate anew.
	}
}

func (f *serverCertificate) certificate(now time.Time) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// The second check finds a certificate from the future, after a wrong clock was set back.
	if f.current != nil && !needsRenewal(f.current.Leaf, now) && !isInvalidAt(f.current.Leaf, now) {
		return f.current, nil
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	der, err := f.authority.sign(gatewayURI, x509.ExtKeyUsageServerAuth, key.Public())
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	// The chain includes the authority, because a node that joins knows only the authority's hash.
	f.current = &tls.Certificate{Certificate: [][]byte{der, f.authority.certificate.Raw}, PrivateKey: key, Leaf: leaf}
	return f.current, nil
}

// caller returns the name and key in the client certificate of a call. The TLS handshake has
// verified it.
func caller(ctx context.Context) (name string, key *ecdsa.PublicKey, ok bool) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return "", nil, false
	}
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	if len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return "", nil, false
	}
	leaf := info.State.VerifiedChains[0][0]
	name, named := nodeNameOf(leaf)
	key, isECDSA := leaf.PublicKey.(*ecdsa.PublicKey)
	return name, key, named && isECDSA
}

// errWrongGateway means that the server at the gateway's address has a certificate of another
// authority.
var errWrongGateway = errors.New("the server at this address is not the gateway that this node belongs to")

// tokenTLS returns a TLS configuration that accepts the gateway whose authority has the hash in the
// token.
func tokenTLS(t token) *tls.Config {
	return clientTLS(func(certificates []*x509.Certificate) (*x509.Certificate, error) {
		for _, c := range certificates {
			if sha256.Sum256(c.Raw) == t.authority {
				return c, nil
			}
		}
		return nil, fmt.Errorf("%w: the token is another gateway's", errWrongGateway)
	})
}

// identityTLS returns a TLS configuration that accepts the gateway that the node has joined, and
// presents the node's certificate.
func identityTLS(i *identity) *tls.Config {
	c := clientTLS(func([]*x509.Certificate) (*x509.Certificate, error) { return i.authority, nil })
	c.Certificates = []tls.Certificate{{Certificate: [][]byte{i.certificate.Raw}, PrivateKey: i.key, Leaf: i.certificate}}
	return c
}

// clientTLS returns a TLS configuration that verifies the server by an authority, which pick
// selects from the server's chain, and by the URI of a gateway. It does not check the host name,
// because a gateway may move.
func clientTLS(pick func([]*x509.Certificate) (*x509.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection verifies the server instead.
		VerifyConnection: func(state tls.ConnectionState) error {
			authority, err := pick(state.PeerCertificates)
			if err != nil {
				return err
			}
			leaf := state.PeerCertificates[0]
			options := x509.VerifyOptions{Roots: certPool(authority), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
			if _, err := leaf.Verify(options); err != nil {
				return fmt.Errorf("%w: %w", errWrongGateway, err)
			}
			if !hasURI(leaf, gatewayURI) {
				return fmt.Errorf("%w: its certificate is not a gateway's", errWrongGateway)
			}
			return nil
		},
	}
}
