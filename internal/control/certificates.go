package control

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// recheck is how long files count as unchanged after they were looked at.
const recheck = time.Second

// Files are the certificates of a listener, as paths of PEM files.
type Files struct {
	// Cert and Key are the certificate of the server and its key.
	Cert, Key string
	// ClientCA are the authorities that sign the certificates of clients. Empty: a client needs no
	// certificate.
	ClientCA string
	// Allowed are the DNS names or URIs of which the certificate of a client must have one. Empty:
	// every certificate of ClientCA is accepted.
	Allowed []string
}

// certificates is what Files contain now. Connections that exist stay when the files change.
type certificates struct {
	files Files
	log   *zap.Logger

	mu sync.Mutex
	// checked is when the files were looked at, and stamps what they looked like when they were
	// read. Guarded by mu.
	checked time.Time
	stamps  []stamp
	// current is the configuration of the files, without faults. Guarded by mu.
	current *tls.Config
}

// stamp tells whether a file has changed.
type stamp struct {
	modified time.Time
	size     int64
}

// newCertificates reads the files for the first time.
func newCertificates(f Files, log *zap.Logger) (*certificates, error) {
	c := &certificates{files: f, log: log}
	c.stamps, _ = c.look()
	var err error
	c.current, err = c.read()
	return c, err
}

// tlsConfig returns a configuration that follows the files.
func (c *certificates) tlsConfig(protocols []string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := c.get(time.Now()).Clone()
		now.NextProtos = protocols
		return now, nil
	}}
}

// get returns the configuration of the files. While the files are faulty, or half replaced, it is
// that of before.
func (c *certificates) get(now time.Time) *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.checked) < recheck {
		return c.current
	}
	c.checked = now
	stamps, err := c.look()
	if err == nil && slices.Equal(stamps, c.stamps) {
		return c.current
	}
	var next *tls.Config
	if err == nil {
		next, err = c.read()
	}
	if err != nil {
		c.log.Error("certificates of control not read again, those of before stay", zap.Error(err))
		return c.current
	}
	c.current, c.stamps = next, stamps
	c.log.Info("certificates of control read again", zap.Time("valid_until", next.Certificates[0].Leaf.NotAfter))
	return c.current
}

// look returns the stamps of all files.
func (c *certificates) look() ([]stamp, error) {
	var all []stamp
	for _, file := range []string{c.files.Cert, c.files.Key, c.files.ClientCA} {
		if file == "" {
			continue
		}
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		all = append(all, stamp{info.ModTime(), info.Size()})
	}
	return all, nil
}

// read reads the files.
func (c *certificates) read() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	// Without tickets every connection proves its identity by the certificates of now.
	next := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, SessionTicketsDisabled: true}
	if c.files.ClientCA == "" {
		return next, nil
	}
	text, err := os.ReadFile(c.files.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	next.ClientAuth, next.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !next.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("control: %s holds no certificate", c.files.ClientCA)
	}
	if len(c.files.Allowed) > 0 {
		next.VerifyConnection = c.checkName
	}
	return next, nil
}

// errNotAllowed says that the certificate of a client has none of the names that are allowed.
var errNotAllowed = errors.New("the certificate of the client has no name of control.allowed")

// checkName refuses a client whose certificate has none of the allowed names.
func (c *certificates) checkName(state tls.ConnectionState) error {
	leaf := state.PeerCertificates[0]
	if slices.ContainsFunc(leaf.DNSNames, c.allows) {
		return nil
	}
	for _, u := range leaf.URIs {
		if c.allows(u.String()) {
			return nil
		}
	}
	return errNotAllowed
}

func (c *certificates) allows(name string) bool { return slices.Contains(c.files.Allowed, name) }
