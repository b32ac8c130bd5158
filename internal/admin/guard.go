package admin

import (
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// guard refuses attacks by hostile web pages in the operator's browser. Such a page may read the
// API under its own name after that name was resolved to 127.0.0.1 (DNS rebinding). It may also
// send a state-changing request from another origin (CSRF).
type guard struct {
	loopback bool
	origins  *http.CrossOriginProtection
}

func newGuard(listen string) *guard {
	host, _, err := net.SplitHostPort(listen)
	return &guard{loopback: err == nil && loopback(host), origins: http.NewCrossOriginProtection()}
}

// check returns the error to answer a request with, or nil if the request is allowed.
func (g *guard) check(r *http.Request) *openai.Error {
	// Browsers always send a Host header. HTTP/1.0 clients may omit it, but they are not browsers.
	if g.loopback && r.Host != "" && !loopback(hostname(r.Host)) {
		return refusal(http.StatusForbidden,
			"The admin listener is on a loopback address and answers only under localhost, 127.0.0.1 or [::1]: "+
				"a proxy before it must send `Host: localhost`.")
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	if err := g.origins.Check(r); err != nil {
		return refusal(http.StatusForbidden, "Calls from other sites are not allowed.")
	}
	// An HTML form cannot send this media type. A script of another origin must send a preflight
	// request first, which fails.
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return refusal(http.StatusUnsupportedMediaType, "Send this call with content-type: application/json.")
	}
	return nil
}

// refusal returns the error of a request that is not served, with the status.
func refusal(status int, message string) *openai.Error {
	return &openai.Error{Code: openai.CodeInvalidRequest, Status: status, Message: message}
}

// hostname returns a Host header without its port and brackets.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// loopback reports whether a host name or address always means this machine. RFC 6761 reserves
// localhost and the names below it for loopback addresses.
func loopback(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// protect sets the security headers of every response. The page loads only files of its own origin,
// and no other origin may read the API.
func protect(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}
