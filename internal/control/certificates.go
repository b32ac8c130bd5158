package control

import (
	"crypto/tls"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/certificates"
)

// Files are the certificates of a listener, as paths of PEM files.
type Files struct {
	certificates.Files
	// Allowed are the DNS names or URIs of which the certificate of a client must have one. Empty:
	// every certificate of CA is accepted.
	Allowed []string
}

// identity is what the files say now. Connections that exist stay when the files change.
type identity struct {
	follower *certificates.Follower
	allowed  []string
	// current is the configuration of the newest content.
	current atomic.Pointer[settings]
}

// settings are the configuration of one content.
type settings struct {
	content *certificates.Content
	tls     *tls.Config
}

// newIdentity reads the files for the first time.
func newIdentity(f Files, log *zap.Logger) (*identity, error) {
	follower, err := certificates.Follow(f.Files, "control", log)
	if err != nil {
		return nil, err
	}
	return &identity{follower: follower, allowed: f.Allowed}, nil
}

// tlsConfig returns a configuration that follows the files.
func (i *identity) tlsConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return i.get(time.Now()), nil
	}}
}

// get returns the configuration of the files.
func (i *identity) get(now time.Time) *tls.Config {
	content := i.follower.Current(now)
	if s := i.current.Load(); s != nil && s.content == content {
		return s.tls
	}
	// Without tickets every connection proves its identity by the certificates of now.
	next := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: services(), Certificates: []tls.Certificate{content.Pair}, SessionTicketsDisabled: true}
	if content.CAs != nil {
		next.ClientAuth, next.ClientCAs = tls.RequireAndVerifyClientCert, content.CAs
		if len(i.allowed) > 0 {
			next.VerifyConnection = i.checkName
		}
	}
	i.current.Store(&settings{content, next})
	return next
}

// errNotAllowed says that the certificate of a client has none of the names that are allowed.
var errNotAllowed = errors.New("the certificate of the client has no name of control.allowed")

// checkName refuses a client whose certificate has none of the allowed names.
func (i *identity) checkName(state tls.ConnectionState) error {
	leaf := state.PeerCertificates[0]
	if slices.ContainsFunc(leaf.DNSNames, i.allows) {
		return nil
	}
	for _, u := range leaf.URIs {
		if i.allows(u.String()) {
			return nil
		}
	}
	return errNotAllowed
}

func (i *identity) allows(name string) bool { return slices.Contains(i.allowed, name) }
