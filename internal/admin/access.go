package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// Role says what a caller of the admin listener may do.
type Role string

// The roles.
const (
	// Viewer may read everything and change nothing.
	Viewer Role = "viewer"
	// Operator may also change limits and reload the configuration.
	Operator Role = "operator"
)

// Access says who may use the listener. Its zero value admits nobody.
type Access struct {
	// Tokens are the tokens that callers present as "Authorization: Bearer …" or to the login.
	Tokens []Token
	// Header is the header by which a proxy names the user that it has authenticated. nil: there is
	// none.
	Header *TrustedHeader
}

// Token is one token.
type Token struct {
	// Name says in the audit lines who has changed something.
	Name string
	Role Role
	// Hash is the SHA-256 of the token.
	Hash [sha256.Size]byte
}

// TrustedHeader is a header that a proxy sets.
type TrustedHeader struct {
	// Name is the name of the header. Its value is the name of the user.
	Name string
	// From are the addresses of the proxy. The header of other peers is ignored.
	From []netip.Prefix
	// Role is the role of the users that are not in Operators.
	Role      Role
	Operators []string
}

// caller is who has sent a request.
type caller struct {
	name string
	role Role
	// by is how the caller was authenticated: "token", "login", "header", or "none" while the
	// listener needs no authentication.
	by string
}

// errNotAuthenticated returns the answer to a request without valid credentials.
func errNotAuthenticated() *openai.Error {
	return openai.Errorf(openai.CodeInvalidAPIKey,
		"This listener needs a token of admin_auth: send \"Authorization: Bearer …\", or log in on the page.")
}

// authenticate returns who has sent the request. A request with a wrong bearer token is refused,
// even if a cookie or a header would admit it.
func (h *handler) authenticate(r *http.Request) (caller, *openai.Error) {
	access := h.Access()
	if access == nil {
		return caller{name: "local", role: Operator, by: "none"}, nil
	}
	if header := r.Header.Get("Authorization"); header != "" {
		scheme, secret, _ := strings.Cut(header, " ")
		token, ok := access.token(strings.TrimSpace(secret))
		if !strings.EqualFold(scheme, "bearer") || !ok {
			return caller{}, errNotAuthenticated()
		}
		return caller{name: token.Name, role: token.Role, by: "token"}, nil
	}
	if token, ok := h.sessionOf(r, access); ok {
		return caller{name: token.Name, role: token.Role, by: "login"}, nil
	}
	if c, ok := access.Header.caller(r); ok {
		return c, nil
	}
	return caller{}, errNotAuthenticated()
}

// token returns the token of this text. It compares with all tokens in constant time.
func (a *Access) token(secret string) (Token, bool) {
	hash := sha256.Sum256([]byte(secret))
	found := -1
	for i := range a.Tokens {
		if subtle.ConstantTimeCompare(a.Tokens[i].Hash[:], hash[:]) == 1 {
			found = i
		}
	}
	if secret == "" || found < 0 {
		return Token{}, false
	}
	return a.Tokens[found], true
}

// caller returns the user that the proxy names. The header counts only once and only from the
// addresses of the proxy.
func (t *TrustedHeader) caller(r *http.Request) (caller, bool) {
	if t == nil {
		return caller{}, false
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	values := r.Header.Values(t.Name)
	isProxy := func(p netip.Prefix) bool { return p.Contains(peer.Addr().Unmap().WithZone("")) }
	if err != nil || len(values) != 1 || values[0] == "" || !slices.ContainsFunc(t.From, isProxy) {
		return caller{}, false
	}
	c := caller{name: values[0], role: t.Role, by: "header"}
	if slices.Contains(t.Operators, c.name) {
		c.role = Operator
	}
	return c, true
}

// authorize returns the error to answer a request with, or nil if the caller may send it.
func (c caller) authorize(r *http.Request) *openai.Error {
	if isRead(r) || c.role == Operator {
		return nil
	}
	return refusal(http.StatusForbidden, "The role viewer may only read. This call needs a token with the role operator.")
}

// isRead reports whether a request changes nothing.
func isRead(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodPost && isPick(r.URL.EscapedPath())
}
