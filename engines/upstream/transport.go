package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// Access is what a server needs beside its URL. It holds secrets.
type Access struct {
	// Headers are set on every request.
	Headers map[string]string
	// CA holds the certificates, as PEM, one of which must have signed that of an https server; empty means those that the system trusts.
	CA string
	// Unchecked takes any certificate.
	InsecureSkipVerify bool
}

// transport is how the server at the URL is called, without a group; nil for plain HTTP.
func (a Access) transport(base string) *engines.Transport {
	u, err := url.Parse(baseURL(base))
	if err != nil {
		return nil // the look says so
	}
	t := &engines.Transport{Prefix: u.EscapedPath()}
	if u.Scheme == "https" {
		t.TLS = &engines.TLS{ServerName: u.Hostname(), CA: a.CA, Unchecked: a.InsecureSkipVerify}
	}
	for _, name := range slices.Sorted(maps.Keys(a.Headers)) {
		t.Headers = append(t.Headers, engines.Header{Name: name, Value: a.Headers[name]})
	}
	if t.TLS == nil && t.Prefix == "" && len(t.Headers) == 0 {
		return nil
	}
	return t
}

// same says whether two transports differ in nothing but their group.
func isSameTransport(a, b *engines.Transport) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Prefix == b.Prefix && slices.Equal(a.Headers, b.Headers) && (a.TLS == nil) == (b.TLS == nil) && (a.TLS == nil || *a.TLS == *b.TLS)
}

// transportsLocked gives every URL its transport: the one that it has if nothing of it has changed, else that of others who are called in the
// same way, else one of its own. A group is named after its first member and keeps its name.
func (l *Launcher) transportsLocked(d Desired) map[string]*engines.Transport {
	all, changed := map[string]*engines.Transport{}, map[string]*engines.Transport{}
	groups := map[string]*engines.Transport{}
	for _, url := range d.urls() {
		t := d.Access[url].transport(url)
		if s := l.servers[url]; t != nil && s != nil && isSameTransport(t, s.transport) {
			all[url], groups[s.transport.Group] = s.transport, s.transport
		} else if t != nil {
			changed[url] = t
		}
	}
	for _, url := range slices.Sorted(maps.Keys(changed)) {
		t := changed[url]
		for _, known := range groups {
			if isSameTransport(t, known) {
				all[url] = known
			}
		}
		if all[url] != nil {
			continue
		}
		for t.Group = replicaID(url); groups[t.Group] != nil; {
			t.Group += "+"
		}
		all[url], groups[t.Group] = t, t
	}
	return all
}

// client is what looks at a server are made with.
func (l *Launcher) clientFor(t *engines.Transport) *http.Client {
	if t == nil || t.TLS == nil {
		return l.Client
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: t.TLS.Unchecked} //nolint:gosec // when the file says so
	if t.TLS.CA != "" {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM([]byte(t.TLS.CA))
	}
	return newClient(config)
}

// newClient makes a client that follows no redirect: it would show a server's key to another.
func newClient(config *tls.Config) *http.Client {
	return &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 4 * time.Second, DisableCompression: true,
			TLSClientConfig: config},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// untrusted puts the reason why a certificate was refused into words.
func certificateError(err error) error {
	var refused *tls.CertificateVerificationError
	if !errors.As(err, &refused) {
		return err
	}
	return errors.New("its certificate is not trusted: " + strings.TrimPrefix(refused.Err.Error(), "x509: "))
}

// root is the URL without a trailing /v1 or slash.
func baseURL(base string) string {
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(base, "/"), "/v1"), "/")
}

// identity is the replica's id: the host as the file names it, the port, and the path if there is one.
func replicaID(base string) string {
	u, err := url.Parse(baseURL(base))
	if err != nil {
		return base
	}
	return hostPort(base) + u.EscapedPath()
}

// hostport is the host as the file names it and the port.
func hostPort(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return base
	}
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// host is what requests to the server say in their Host header: without the port where that is the scheme's own.
func hostHeader(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	if u.Scheme == "https" && u.Port() == "443" || u.Scheme == "http" && u.Port() == "80" {
		return strings.TrimSuffix(u.Host, ":"+u.Port())
	}
	return u.Host
}
