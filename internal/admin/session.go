package admin

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

const (
	// cookiePrefix begins the name of the cookie of a login.
	cookiePrefix = "sluice_admin_"
	// sessionLifetime is how long a login lasts.
	sessionLifetime = 12 * time.Hour
	// maxClockError is by how much the clock of the machine may have been ahead when a login began.
	// A clock that was further ahead would have made the login longer.
	maxClockError = time.Minute
	// maxLogin is the maximum length of the body of a login, in bytes.
	maxLogin = 4 << 10
)

// A session is a cookie that only this gateway can make. It holds the time at which it ends, in
// seconds since 1970, the hash of its token, and a MAC of both. It does not contain the token,
// because a browser sends the cookie to all ports of the host. It ends early when its token leaves
// the configuration, or when the clock of the machine turns out to have been ahead.

// cookieName returns the name of the cookie. Browsers do not tell the ports of a host apart, so
// gateways with different keys on one host have cookies of different names.
func (h *handler) cookieName() string {
	hash := sha256.Sum256(append([]byte(cookiePrefix), h.SessionKey...))
	return cookiePrefix + hex.EncodeToString(hash[:4])
}

// newSession returns the value of the cookie for a login with this token.
func (h *handler) newSession(t Token, now time.Time) string {
	body := binary.BigEndian.AppendUint64(nil, uint64(now.Add(sessionLifetime).Unix()))
	hash := sha256.Sum256(t.Hash[:])
	body = append(body, hash[:]...)
	return base64.RawURLEncoding.EncodeToString(append(body, h.sessionMAC(body)...))
}

// sessionMAC returns the MAC of the first part of a session.
func (h *handler) sessionMAC(body []byte) []byte {
	mac := hmac.New(sha256.New, h.SessionKey)
	mac.Write(body)
	return mac.Sum(nil)
}

// sessionOf returns the token of the session that the request presents.
func (h *handler) sessionOf(r *http.Request, a *Access) (Token, bool) {
	const ends, hashed = 8, 8 + sha256.Size
	cookie, err := r.Cookie(h.cookieName())
	if err != nil || len(h.SessionKey) == 0 {
		return Token{}, false
	}
	value, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil || len(value) != hashed+sha256.Size || !hmac.Equal(value[hashed:], h.sessionMAC(value[:hashed])) {
		return Token{}, false
	}
	left := time.Until(time.Unix(int64(binary.BigEndian.Uint64(value[:ends])), 0))
	if left <= 0 || left > sessionLifetime+maxClockError {
		return Token{}, false
	}
	for _, t := range a.Tokens {
		if hash := sha256.Sum256(t.Hash[:]); hmac.Equal(hash[:], value[ends:hashed]) {
			return t, true
		}
	}
	return Token{}, false
}

// sessionView is who has sent a request. All fields are empty for a caller without valid
// credentials.
type sessionView struct {
	Name string `json:"name"`
	Role Role   `json:"role"`
	// By is how the caller was authenticated: token, login, header, or none while the listener
	// needs no authentication.
	By string `json:"by"`
}

// session tells callers who they are. It answers strangers too, so that the page can ask whether it
// has to show the login.
func (h *handler) session(w http.ResponseWriter, r *http.Request) {
	c, _ := h.authenticate(r)
	writeJSON(w, http.StatusOK, sessionView{c.name, c.role, c.by})
}

// login sets the cookie of a session for the token in the body.
func (h *handler) login(w http.ResponseWriter, r *http.Request) {
	access := h.Access()
	if access == nil {
		writeError(w, notFound("This listener needs no login."))
		return
	}
	var body struct {
		Token string `json:"token"`
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLogin))
	if err == nil {
		err = json.Unmarshal(data, &body)
	}
	if err != nil {
		writeError(w, openai.Errorf(openai.CodeInvalidRequest, "The body must be {\"token\": \"…\"}."))
		return
	}
	token, ok := access.token(strings.TrimSpace(body.Token))
	if !ok {
		writeError(w, openai.Errorf(openai.CodeInvalidAPIKey, "This token is not one of admin_auth."))
		return
	}
	auditOf(r).caller = caller{name: token.Name, role: token.Role, by: "token"}
	http.SetCookie(w, h.cookie(r, h.newSession(token, time.Now()), int(sessionLifetime.Seconds())))
	writeJSON(w, http.StatusOK, sessionView{token.Name, token.Role, "login"})
}

func (h *handler) logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, h.cookie(r, "", -1))
	writeJSON(w, http.StatusOK, map[string]bool{"logged_out": true})
}

// cookie returns the cookie of a session. maxAge is in seconds; a negative one removes the cookie.
// Scripts cannot read it, and browsers send it with requests of this site alone.
func (h *handler) cookie(r *http.Request, value string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: h.cookieName(), Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https"),
	}
}
