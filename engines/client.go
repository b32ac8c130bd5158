package engines

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"strings"
	"time"
)

// NewClient returns a client for requests of Sluice's own to servers with this Transport; nil is
// plain HTTP. The caller sets the headers by SetHeaders. The client follows no redirects, which
// could disclose a server's key to another server. It closes idle connections after 4 s, before
// vLLM's server does.
func NewClient(t *Transport) *http.Client {
	return &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 4 * time.Second, DisableCompression: true,
			TLSClientConfig: t.TLSConfig()},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// TLSConfig returns the settings of TLS for calls of servers with this Transport, which may be nil.
// The result is nil if they speak no TLS.
func (t *Transport) TLSConfig() *tls.Config {
	if t == nil || t.TLS == nil {
		return nil
	}
	// The configuration file may allow an unchecked certificate.
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.TLS.ServerName, InsecureSkipVerify: t.TLS.Unchecked}
	if t.TLS.CA != "" {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM([]byte(t.TLS.CA))
	}
	return config
}

// URL returns the URL of a path such as /v1/models at the server with an address. The Transport may
// be nil.
func (t *Transport) URL(address, path string) string {
	scheme := "http://"
	if t != nil && t.TLS != nil {
		scheme = "https://"
	}
	return scheme + address + t.Path(path)
}

// Path returns the path at the server of a request for a path such as /v1/models. The Transport may
// be nil.
func (t *Transport) Path(path string) string {
	if t == nil {
		return path
	}
	if below, ok := strings.CutPrefix(path, "/v1/"); ok && t.API != "" {
		path = strings.TrimSuffix(t.API, "/") + "/" + below
	}
	return t.Prefix + path
}

// SetHeaders sets the headers of the Transport, which may be nil, on a request.
func (t *Transport) SetHeaders(h http.Header) {
	if t == nil {
		return
	}
	for _, header := range t.Headers {
		h.Set(header.Name, header.Value)
	}
}
