package admin

import (
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// guard wards off what a web page in the operator's own browser could try: to read the API under a name of its own that it
// has pointed at 127.0.0.1 (DNS rebinding), and to send a state-changing call across origins.
type guard struct {
	loopback bool
	origins  *http.CrossOriginProtection
}

func newGuard(listen string) *guard {
	host, _, err := net.SplitHostPort(listen)
	return &guard{loopback: err == nil && loopback(host), origins: http.NewCrossOriginProtection()}
}

func (g *guard) check(r *http.Request) *openai.Error {
	// Browsers always send a Host; HTTP/1.0 clients, which are not browsers, need not.
	if g.loopback && r.Host != "" && !loopback(hostname(r.Host)) {
		return refusal(http.StatusForbidden,
			"The admin listener is on a loopback address and answers only under localhost, 127.0.0.1 or [::1].")
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	if err := g.origins.Check(r); err != nil {
		return refusal(http.StatusForbidden, "Calls from other sites are not allowed.")
	}
	// A form cannot send this type, and a script of another origin cannot without asking first.
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return refusal(http.StatusUnsupportedMediaType, "Send this call with content-type: application/json.")
	}
	return nil
}

func refusal(status int, message string) *openai.Error {
	return &openai.Error{Code: openai.CodeInvalidRequest, Status: status, Message: message}
}

// hostname takes the port off a Host header.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// loopback says whether a host is this machine whatever a name server says: RFC 6761 reserves localhost for that.
func loopback(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// protect sets the headers of every answer. The page needs nothing but its own files; the API is nobody else's to read.
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
