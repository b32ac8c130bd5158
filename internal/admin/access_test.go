package admin

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// The tokens of newAccess.
const (
	operatorToken = "operator-token"
	viewerToken   = "viewer-token"
)

func newAccess() *Access {
	return &Access{
		Tokens: []Token{
			{Name: "ops", Role: Operator, Hash: sha256.Sum256([]byte(operatorToken))},
			{Name: "board", Role: Viewer, Hash: sha256.Sum256([]byte(viewerToken))},
		},
		Header: &TrustedHeader{Name: "X-Forwarded-User", From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Role: Viewer, Operators: []string{"alice"}},
	}
}

// newGuarded returns a listener off loopback that needs authentication, and its log.
func newGuarded() (http.Handler, *observer.ObservedLogs) {
	core, logs := observer.New(zap.InfoLevel)
	c := newConfig()
	c.Listen, c.Log, c.Access = "0.0.0.0:9090", zap.New(core), newAccess
	weight := int64(2)
	c.Limits = func(string) (values, file map[string]int64, patched []string, ok bool) {
		return map[string]int64{"weight": weight, "max_concurrent_requests": 64}, nil, nil, true
	}
	c.PatchLimits = func(_ context.Context, _ string, changes map[string]*int64) *openai.Error {
		weight = *changes["weight"]
		return nil
	}
	return New(c), logs
}

// ask sends a request with headers NAME: VALUE. from is the peer's address; empty means 192.0.2.1.
func ask(h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		if name == "from" {
			r.RemoteAddr = value
			continue
		}
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestX12_Roles(t *testing.T) {
	t.Parallel()
	h, _ := newGuarded()
	const limits, patch = "/api/v1/models/chat/limits", `{"weight":3}`
	operator, viewer := "Authorization: Bearer "+operatorToken, "Authorization: Bearer "+viewerToken
	const proxy = "from: 10.1.2.3:5000"
	for _, c := range []struct {
		name, method, path string
		headers            []string
		status             int
	}{
		{"the page is open", "GET", "/", nil, 200},
		{"a script of the page is open", "GET", "/app.js", nil, 200},
		{"health is open", "GET", "/healthz", nil, 200},
		{"readiness is open", "GET", "/readyz", nil, 503},
		{"a stranger asks who they are", "GET", "/api/v1/session", nil, 200},
		{"a stranger reads", "GET", "/api/v1/models", nil, 401},
		{"a stranger reads the metrics", "GET", "/metrics", nil, 401},
		{"a stranger changes", "PATCH", limits, nil, 401},
		{"a stranger reloads", "POST", "/api/v1/reload", nil, 401},
		{"a viewer reads", "GET", "/api/v1/models", []string{viewer}, 200},
		{"a viewer reads the metrics", "GET", "/metrics", []string{viewer}, 200},
		{"a viewer changes", "PATCH", limits, []string{viewer}, 403},
		{"a viewer reloads", "POST", "/api/v1/reload", []string{viewer}, 403},
		{"an operator reads", "HEAD", "/api/v1/models", []string{operator}, 200},
		{"an operator changes", "PATCH", limits, []string{operator}, 200},
		{"an operator reloads", "POST", "/api/v1/reload", []string{operator}, 200},
		{"a wrong token", "GET", "/api/v1/models", []string{"Authorization: Bearer nonsense"}, 401},
		{"no token", "GET", "/api/v1/models", []string{"Authorization: Bearer "}, 401},
		{"another scheme", "GET", "/api/v1/models", []string{"Authorization: Basic " + operatorToken}, 401},
		{"the hash is no token", "GET", "/api/v1/models", []string{"Authorization: Bearer " + string(newAccess().Tokens[0].Hash[:])}, 401},
		{"a user of the proxy reads", "GET", "/api/v1/models", []string{proxy, "X-Forwarded-User: bob"}, 200},
		{"a user of the proxy changes", "PATCH", limits, []string{proxy, "X-Forwarded-User: bob"}, 403},
		{"an operator of the proxy changes", "PATCH", limits, []string{proxy, "X-Forwarded-User: alice"}, 200},
		{"the proxy through IPv4 in IPv6", "GET", "/api/v1/models", []string{"from: [::ffff:10.1.2.3]:1", "X-Forwarded-User: bob"}, 200},
		{"the header of somebody else", "PATCH", limits, []string{"from: 192.0.2.1:1", "X-Forwarded-User: alice"}, 401},
		{"two users", "GET", "/api/v1/models", []string{proxy, "X-Forwarded-User: bob", "X-Forwarded-User: alice"}, 401},
		{"an empty user", "GET", "/api/v1/models", []string{proxy, "X-Forwarded-User: "}, 401},
		{"a wrong token and a user", "GET", "/api/v1/models", []string{proxy, "X-Forwarded-User: alice", "Authorization: Bearer x"}, 401},
		{"a cookie that nobody has made", "GET", "/api/v1/models", []string{"Cookie: sluice_admin=" + strings.Repeat("A", 96)}, 401},
	} {
		body := patch
		if c.path == "/api/v1/reload" {
			body = "{}"
		}
		w := ask(h, c.method, c.path, body, c.headers...)
		if w.Code != c.status {
			t.Errorf("%s: status %d, want %d: %s", c.name, w.Code, c.status, w.Body)
		}
		var answer struct {
			Error struct{ Code, Type, Message string }
		}
		if (w.Code == 401 || w.Code == 403) && (json.Unmarshal(w.Body.Bytes(), &answer) != nil || answer.Error.Code == "" || answer.Error.Message == "") {
			t.Errorf("%s: the error has another shape: %s", c.name, w.Body)
		}
		if w.Code == 401 && !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: the answer names no scheme", c.name)
		}
	}
}

// login logs in and returns the cookie.
func login(t *testing.T, h http.Handler, token string, headers ...string) *http.Cookie {
	t.Helper()
	w := ask(h, "POST", "/api/v1/login", `{"token":"`+token+`"}`, headers...)
	if w.Code != 200 || len(w.Result().Cookies()) != 1 {
		t.Fatalf("login: %d %s", w.Code, w.Body)
	}
	return w.Result().Cookies()[0]
}

func TestX12_Login(t *testing.T) {
	t.Parallel()
	h, _ := newGuarded()
	if w := ask(h, "POST", "/api/v1/login", `{"token":"wrong"}`); w.Code != 401 || len(w.Result().Cookies()) > 0 {
		t.Errorf("a wrong token: %d %s", w.Code, w.Body)
	}
	cookie := login(t, h, operatorToken)
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Path != "/" || cookie.Secure || strings.Contains(cookie.Value, operatorToken) {
		t.Errorf("the cookie is %+v", cookie)
	}
	if secure := login(t, h, operatorToken, "X-Forwarded-Proto: https"); !secure.Secure {
		t.Error("behind TLS the cookie is not secure")
	}
	header := "Cookie: " + cookie.Name + "=" + cookie.Value
	if w := ask(h, "PATCH", "/api/v1/models/chat/limits", `{"weight":3}`, header, "Sec-Fetch-Site: same-origin"); w.Code != 200 {
		t.Errorf("the page changes a limit: %d %s", w.Code, w.Body)
	}
	for _, site := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: http://evil.example"} {
		if w := ask(h, "PATCH", "/api/v1/models/chat/limits", `{"weight":3}`, header, site); w.Code != 403 {
			t.Errorf("another site uses the cookie (%s): %d", site, w.Code)
		}
		if w := ask(h, "POST", "/api/v1/login", `{"token":"`+operatorToken+`"}`, site); w.Code != 403 {
			t.Errorf("another site logs in (%s): %d", site, w.Code)
		}
	}
	if w := ask(h, "GET", "/api/v1/session", "", header); w.Body.String() != `{"name":"ops","role":"operator","by":"login"}`+"\n" {
		t.Errorf("session: %s", w.Body)
	}
	viewer := login(t, h, viewerToken)
	if w := ask(h, "PATCH", "/api/v1/models/chat/limits", `{"weight":3}`, "Cookie: "+viewer.Name+"="+viewer.Value); w.Code != 403 {
		t.Errorf("a viewer changes a limit: %d", w.Code)
	}
	if w := ask(h, "POST", "/api/v1/logout", "{}", "Cookie: "+viewer.Name+"="+viewer.Value); w.Code != 200 || w.Result().Cookies()[0].MaxAge >= 0 {
		t.Errorf("a viewer logs out: %d %v", w.Code, w.Result().Cookies())
	}
}

// A session ends with its time, with its token, and at a gateway with another key.
func TestX12_SessionsEnd(t *testing.T) {
	t.Parallel()
	h := New(newConfig()).(*handler)
	access := newAccess()
	session := func(value string) bool {
		r := httptest.NewRequest("GET", "/", nil)
		r.AddCookie(&http.Cookie{Name: h.cookieName(), Value: value})
		_, ok := h.sessionOf(r, access)
		return ok
	}
	now := time.Now()
	value := h.newSession(access.Tokens[0], now)
	if !session(value) {
		t.Fatal("a new session is refused")
	}
	if session(h.newSession(access.Tokens[0], now.Add(-sessionLifetime-time.Second))) {
		t.Error("an old session is accepted")
	}
	if !session(h.newSession(access.Tokens[0], now.Add(maxClockError-time.Second))) {
		t.Error("after the clock was adjusted the session is refused")
	}
	if session(h.newSession(access.Tokens[0], now.Add(24*time.Hour))) {
		t.Error("a session of a clock that was a day ahead is accepted for longer than a login lasts")
	}
	for i := range len(value) {
		changed := []byte(value)
		if changed[i] = 'A'; changed[i] == value[i] {
			changed[i] = 'B'
		}
		if session(string(changed)) {
			t.Errorf("a session with another character %d is accepted", i)
		}
	}
	access.Tokens = access.Tokens[1:]
	if session(value) {
		t.Error("a session whose token was removed is accepted")
	}
	access = newAccess()
	h.SessionKey = []byte("another")
	if session(value) {
		t.Error("the session of another gateway is accepted")
	}
	h.SessionKey = nil
	if session(h.newSession(access.Tokens[0], now)) {
		t.Error("without a key anybody can make a session")
	}
}

// Each change, done or refused, gives one line, and none holds a secret.
func TestX12_AuditLines(t *testing.T) {
	t.Parallel()
	h, logs := newGuarded()
	bearer := "Authorization: Bearer " + operatorToken
	cookie := login(t, h, viewerToken)
	ask(h, "PATCH", "/api/v1/models/chat/limits", `{"weight":3}`, bearer)
	ask(h, "PATCH", "/api/v1/models/chat/limits", `{"weight":-1}`, bearer)
	ask(h, "POST", "/api/v1/reload", `{}`, bearer)
	ask(h, "POST", "/api/v1/reload", `{}`, "Cookie: "+cookie.Name+"="+cookie.Value)
	ask(h, "POST", "/api/v1/login", `{"token":"guess"}`)
	ask(h, "GET", "/api/v1/models", "", bearer)
	var got []string
	for _, entry := range logs.TakeAll() {
		f := entry.ContextMap()
		if f["from"] != "192.0.2.1:1234" {
			t.Errorf("from %v", f["from"])
		}
		delete(f, "from")
		line, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, entry.Message+" "+string(line))
	}
	want := []string{
		`admin call done {"by":"token","method":"POST","path":"/api/v1/login","role":"viewer","status":200,"who":"board"}`,
		`admin call done {"by":"token","method":"PATCH","new":{"weight":3},"old":{"weight":2},"path":"/api/v1/models/chat/limits","role":"operator","status":200,"who":"ops"}`,
		`admin call refused {"by":"token","method":"PATCH","path":"/api/v1/models/chat/limits","role":"operator","status":400,"who":"ops"}`,
		`admin call done {"by":"token","method":"POST","new":"f00d","old":"f00d","path":"/api/v1/reload","role":"operator","status":200,"who":"ops"}`,
		`admin call refused {"by":"login","method":"POST","path":"/api/v1/reload","role":"viewer","status":403,"who":"board"}`,
		`admin call refused {"by":"","method":"POST","path":"/api/v1/login","role":"","status":401,"who":""}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The calls of strangers give ten lines a second at most.
func TestX12_StrangersDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, logs := newGuarded()
		for range 100 {
			ask(h, "POST", "/api/v1/login", `{"token":"guess"}`)
		}
		if n := logs.Len(); n == 0 || n > 10 {
			t.Errorf("%d lines in one moment", n)
		}
	})
}

func TestX12_HealthListener(t *testing.T) {
	t.Parallel()
	c := newConfig()
	c.Listen, c.Access = "0.0.0.0:9902", newAccess
	h := NewHealth(c)
	for path, status := range map[string]int{"/healthz": 200, "/readyz": 503, "/metrics": 200, "/": 404, "/api/v1/models": 404,
		"/api/v1/models/chat/limits": 404, "/api/v1/session": 404} {
		if w := ask(h, "GET", path, ""); w.Code != status {
			t.Errorf("%s: %d, want %d", path, w.Code, status)
		}
	}
	if w := ask(h, "POST", "/healthz", "{}"); w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
}

// Browsers send the cookies of one port of a host to all. Gateways of one host with keys of their
// own must not overwrite each other's cookie, and those with one key share it.
func TestX12_GatewaysOfOneHostHaveTheirOwnCookies(t *testing.T) {
	t.Parallel()
	name := func(key string) string { return (&handler{Config: Config{SessionKey: []byte(key)}}).cookieName() }
	one, again, two := name("one"), name("one"), name("two")
	if one == two || one != again || !strings.HasPrefix(one, cookiePrefix) {
		t.Errorf("the names are %s, %s and %s", one, again, two)
	}
}
