// Package certificates reads the certificates of a TLS server or client from PEM files, and reads
// them again when the files change. Package internal/control uses it for Envoys of other hosts,
// package internal/gateway for the clients of Envoy's listener, and package admission/redis for
// connections to Redis.
package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"
)

// Recheck is how long files count as unchanged after they were looked at.
const Recheck = time.Second

// Files are the paths of PEM files.
type Files struct {
	// Cert and Key are the own certificate and its key. Empty: a client shows none.
	Cert, Key string
	// CA are the authorities that sign the certificates of the other side. Empty: a client needs no
	// certificate, and that of a server is signed by an authority of the system.
	CA string
	// ForEnvoy tells that Envoy serves with the files. Envoy accepts less than Go does.
	ForEnvoy bool
}

// Content is what Files contain. A Content is immutable.
type Content struct {
	// Cert, Key and CA are the texts of the files. Empty: there is no file.
	Cert, Key, CA string
	// Pair is the certificate with its key. Its Leaf is set; nil: there is no certificate.
	Pair tls.Certificate
	// CAs has the certificates of CA. It is nil without CA.
	CAs *x509.CertPool
}

// Read reads the files. It fails if a file cannot be read, the key is not that of the certificate,
// or CA has no certificate. It also fails if the files are for Envoy and Envoy would refuse them.
// The error never contains the key.
func Read(f Files) (*Content, error) {
	var c Content
	for _, file := range []struct {
		path string
		text *string
	}{{f.Cert, &c.Cert}, {f.Key, &c.Key}, {f.CA, &c.CA}} {
		if file.path == "" {
			continue
		}
		text, err := os.ReadFile(file.path)
		if err != nil {
			return nil, err
		}
		if *file.text = string(text); !utf8.Valid(text) {
			return nil, fmt.Errorf("%s is not in PEM format", file.path)
		}
	}
	if f.Cert != "" {
		var err error
		if c.Pair, err = tls.X509KeyPair([]byte(c.Cert), []byte(c.Key)); err != nil {
			return nil, fmt.Errorf("%s with %s: %w", f.Cert, f.Key, err)
		}
	}
	if f.ForEnvoy {
		if err := checkForEnvoy(f, &c); err != nil {
			return nil, err
		}
	}
	if f.CA == "" {
		return &c, nil
	}
	c.CAs = x509.NewCertPool()
	if !c.CAs.AppendCertsFromPEM([]byte(c.CA)) {
		return nil, fmt.Errorf("%s holds no certificate", f.CA)
	}
	return &c, nil
}

// Follower has the newest usable content of files that may change. Its methods are safe for
// concurrent use.
type Follower struct {
	files Files
	// subject says in log messages whose they are.
	subject string
	log     *zap.Logger

	mu sync.Mutex
	// checked is when the files were looked at, and stamps what they looked like when they were
	// read. Guarded by mu.
	checked time.Time
	stamps  []stamp
	// current is the last content without faults, fault the reason why a newer one cannot be used.
	// Guarded by mu.
	current *Content
	fault   error
}

// stamp tells whether a file has changed.
type stamp struct {
	modified time.Time
	size     int64
}

// Follow reads the files for the first time. subject says in log messages whose they are.
func Follow(f Files, subject string, log *zap.Logger) (*Follower, error) {
	c := &Follower{files: f, subject: subject, log: log}
	c.stamps, _ = c.look()
	var err error
	if c.current, err = Read(f); err != nil {
		return nil, fmt.Errorf("%s: %w", subject, err)
	}
	return c, nil
}

// Current returns the content of the files at a time, which is usually now. While the files are
// faulty, or half replaced, it is the content of before. The same pointer means the same content.
func (c *Follower) Current(now time.Time) *Content {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.checked) < Recheck {
		return c.current
	}
	c.checked = now
	stamps, err := c.look()
	if err == nil && slices.Equal(stamps, c.stamps) {
		c.fault = nil
		return c.current
	}
	var next *Content
	if err == nil {
		next, err = Read(c.files)
	}
	if err != nil {
		if c.fault == nil || c.fault.Error() != err.Error() {
			c.log.Error("certificates not read again, those of before stay", zap.String("of", c.subject), zap.Error(err))
		}
		c.fault = err
		return c.current
	}
	c.current, c.stamps, c.fault = next, stamps, nil
	fields := []zap.Field{zap.String("of", c.subject)}
	if next.Pair.Leaf != nil {
		fields = append(fields, zap.Time("valid_until", next.Pair.Leaf.NotAfter))
	}
	c.log.Info("certificates read again", fields...)
	return c.current
}

// Fault returns why the files cannot be used as they were at the last call of Current. nil: they
// can.
func (c *Follower) Fault() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fault
}

func (c *Follower) look() ([]stamp, error) {
	var all []stamp
	for _, file := range []string{c.files.Cert, c.files.Key, c.files.CA} {
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
