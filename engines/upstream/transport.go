package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/sluice-gateway/sluice/engines"
)

// Access is what a call of a server needs beside the URL. It contains secrets.
type Access struct {
	// Headers are set on every request.
	Headers map[string]string
	// CA holds PEM certificates. One of them must have signed the server's certificate. Empty means
	// the certificates that the system trusts.
	CA string
	// API is the path of OpenAI's API below the URL. Empty means /v1.
	API string
	// InsecureSkipVerify accepts every certificate of the server.
	InsecureSkipVerify bool
}

// transport returns how to call the server at the URL, without a group. It returns nil for plain
// HTTP without path and headers.
func (a Access) transport(base string) *engines.Transport {
	u, err := url.Parse(baseURL(base))
	if err != nil {
		return nil // The check reports the error.
	}
	t := &engines.Transport{Prefix: u.EscapedPath(), API: a.API}
	if u.Scheme == "https" {
		t.TLS = &engines.TLS{ServerName: u.Hostname(), CA: a.CA, Unchecked: a.InsecureSkipVerify}
	}
	for _, name := range slices.Sorted(maps.Keys(a.Headers)) {
		t.Headers = append(t.Headers, engines.Header{Name: name, Value: a.Headers[name]})
	}
	if t.TLS == nil && t.Prefix == "" && t.API == "" && len(t.Headers) == 0 {
		return nil
	}
	return t
}

// isSameTransport reports whether two transports differ at most in their groups.
func isSameTransport(a, b *engines.Transport) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Prefix == b.Prefix && a.API == b.API && slices.Equal(a.Headers, b.Headers) &&
		(a.TLS == nil) == (b.TLS == nil) && (a.TLS == nil || *a.TLS == *b.TLS)
}

// transportsOf returns the transport of every URL. present are the servers until now, by URL. A URL
// keeps its transport if nothing has changed. Otherwise it gets the equal transport of another
// server, or a new one. The group of a transport is named after its first member and keeps that
// name.
func transportsOf(d Desired, present map[string][]*server) map[string]*engines.Transport {
	all, changed := map[string]*engines.Transport{}, map[string]*engines.Transport{}
	groups := map[string]*engines.Transport{}
	for _, url := range d.urls() {
		t := d.Access[url].transport(url)
		if s := present[url]; t != nil && len(s) > 0 && isSameTransport(t, s[0].transport) {
			all[url], groups[s[0].transport.Group] = s[0].transport, s[0].transport
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

// clientFor returns the HTTP client for checks by a transport.
func (l *Launcher) clientFor(t *engines.Transport) *http.Client {
	if t == nil || t.TLS == nil {
		return l.Client
	}
	return engines.NewClient(t)
}

// readable replaces errors of TLS and of connections by ones that say what to do. base is the URL
// of the server.
func readable(err error, base string) error {
	var refused *tls.CertificateVerificationError
	secure := strings.HasPrefix(base, "https:")
	switch {
	case errors.As(err, &refused):
		return errors.New("its certificate is not trusted: " + certificateFault(refused.Err))
	case errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("it answers without TLS: write http:// in its URL")
	case !secure && hasClosed(err):
		return fmt.Errorf("it closed the connection without an answer: write https:// in its URL if it speaks TLS (%w)", err)
	}
	return err
}

// hasClosed reports whether a server has closed the connection before it answered. A server may do
// so before the request is written, for which net/http has an error without a name.
func hasClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		strings.HasSuffix(err.Error(), "server closed idle connection")
}

// certificateFault says why a certificate was rejected.
func certificateFault(err error) string {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		return "this machine does not know who has signed it: name the file with that authority in ca_file"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return strings.TrimPrefix(err.Error(), "x509: ") + ": renew it, or set the clock of this machine"
	}
	return strings.TrimPrefix(err.Error(), "x509: ")
}

// baseURL returns the URL without a trailing "/v1" or slash.
func baseURL(base string) string {
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(base, "/"), "/v1"), "/")
}

// replicaID returns the id of the server's replica: host, port, the path if there is one, and what
// tells it from other servers of the URL.
func replicaID(base string) string {
	u, err := url.Parse(baseURL(base))
	if err != nil {
		return base
	}
	id := hostPort(base) + u.EscapedPath()
	if u.Fragment != "" {
		id += "#" + u.Fragment
	}
	return id
}

// hostPort returns the host as in the URL and the port, which defaults to the scheme's.
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

// hostHeader returns the Host header for the server. The port is omitted if it is the scheme's.
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
