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

// face is the gateway's own certificate, made anew when it gets old. Its key is never stored.
type face struct {
	authority *authority

	mu sync.Mutex
	// current is nil before the first use; guarded by mu
	current *tls.Certificate
}

// config is the server's side. A node that joins has no certificate yet; join is all that it may call.
func (f *face) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.certificate(time.Now()) },
		ClientAuth:     tls.VerifyClientCertIfGiven, ClientCAs: pool(f.authority.certificate),
		SessionTicketsDisabled: true, // each connection proves anew who it is
	}
}

func (f *face) certificate(now time.Time) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != nil && !old(f.current.Leaf, now) && !expired(f.current.Leaf, now) { // a clock that was ahead may have been set back
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
	// The authority comes with it: who joins knows its hash only.
	f.current = &tls.Certificate{Certificate: [][]byte{der, f.authority.certificate.Raw}, PrivateKey: key, Leaf: leaf}
	return f.current, nil
}

// caller is who calls, by its certificate, which was verified when the connection came up.
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
	name, named := nodeOf(leaf)
	key, isECDSA := leaf.PublicKey.(*ecdsa.PublicKey)
	return name, key, named && isECDSA
}

// errStranger: whoever answers at the gateway's address is not our gateway.
var errStranger = errors.New("who answers there is not the gateway that this node belongs to")

// firstContact accepts the gateway whose authority the token names.
func firstContact(t token) *tls.Config {
	return clientTLS(func(certificates []*x509.Certificate) (*x509.Certificate, error) {
		for _, c := range certificates {
			if sha256.Sum256(c.Raw) == t.authority {
				return c, nil
			}
		}
		return nil, fmt.Errorf("%w: the token is another gateway's", errStranger)
	})
}

// known accepts the gateway that the node has joined, and shows the node's certificate.
func known(i *identity) *tls.Config {
	c := clientTLS(func([]*x509.Certificate) (*x509.Certificate, error) { return i.authority, nil })
	c.Certificates = []tls.Certificate{{Certificate: [][]byte{i.certificate.Raw}, PrivateKey: i.key, Leaf: i.certificate}}
	return c
}

// clientTLS checks the chain by the authority that pick finds, and the identity in it, but no host name: gateways move.
func clientTLS(pick func([]*x509.Certificate) (*x509.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection does it, by our own rule
		VerifyConnection: func(state tls.ConnectionState) error {
			authority, err := pick(state.PeerCertificates)
			if err != nil {
				return err
			}
			leaf := state.PeerCertificates[0]
			options := x509.VerifyOptions{Roots: pool(authority), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
			if _, err := leaf.Verify(options); err != nil {
				return fmt.Errorf("%w: %w", errStranger, err)
			}
			if !hasURI(leaf, gatewayURI) {
				return fmt.Errorf("%w: its certificate is a node's", errStranger)
			}
			return nil
		},
	}
}
