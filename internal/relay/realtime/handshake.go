package realtime

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"github.com/coder/websocket"
	"go.uber.org/zap"
	"golang.org/x/net/http/httpguts"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// subprotocol is the one that the server chooses. A browser that offers subprotocols, its key among
// them, expects one of them in the answer.
const subprotocol = "realtime"

// ServeHTTP implements http.Handler. It returns when the socket is closed and nothing of it runs
// any more.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s, fault := h.accept(w, r)
	if fault != nil {
		h.Requests.Answered(r, fault.HTTPStatus(), fault)
		fault.AnswerTo(w, r.URL.Path)
		return
	}
	if s == nil {
		return
	}
	defer h.removeSession(s)
	why := s.run()
	if h.Log != nil {
		h.Log.Debug("realtime socket closed", zap.String("tenant", s.tenant), zap.String("request_id", s.id),
			zap.Int("code", int(why.code)), zap.String("reason", why.reason), zap.Int("turns", s.turnsStarted))
	}
}

// accept upgrades the request to a WebSocket. It returns neither a session nor a fault when it has
// written the answer itself.
func (h *Handler) accept(w http.ResponseWriter, r *http.Request) (*session, *openai.Error) {
	if fault := h.check(r); fault != nil {
		return nil, fault
	}
	s := newSession(h, r)
	full, ok := h.addSession(s)
	if !ok {
		return nil, openai.Stopping()
	}
	w.Header().Set(headers.Source, headers.SourceGateway)
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}, InsecureSkipVerify: true})
	if err != nil { // websocket.Accept has answered
		s.socket.stop(closeGone)
		h.removeSession(s)
		return nil, nil
	}
	s.socket.attach(conn)
	if full != nil {
		s.socket.stop(full)
	}
	return s, nil
}

// check checks the handshake (RFC 6455, section 4.2.1), so that its errors are answered in the form
// of the API.
func (h *Handler) check(r *http.Request) *openai.Error {
	switch key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(r.Header.Get("Sec-WebSocket-Key"))); {
	case r.Method != http.MethodGet:
		return &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusMethodNotAllowed, Message: "The path takes GET only.",
			Header: map[string]string{"allow": http.MethodGet}}
	case !httpguts.HeaderValuesContainsToken(r.Header["Upgrade"], "websocket"),
		!httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade"):
		return &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusUpgradeRequired, Message: "The path speaks WebSocket only.",
			Header: map[string]string{"upgrade": "websocket", "connection": "Upgrade"}}
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		return &openai.Error{Code: openai.CodeInvalidRequest, Message: "The WebSocket version must be 13.",
			Header: map[string]string{"sec-websocket-version": "13"}}
	case err != nil, len(key) != 16, len(r.Header.Values("Sec-WebSocket-Key")) != 1:
		return openai.Errorf(openai.CodeInvalidRequest, "Sec-WebSocket-Key must be 16 bytes in base64, once.")
	case h.Allows != nil && !sameOrigin(r) && !h.Allows(r.Header.Get("Origin")):
		return &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusForbidden,
			Message: "Pages of other hosts may not open sockets at a gateway without keys, unless its field cors lists them."}
	}
	tenant, key := r.Header.Get(headers.Tenant), r.Header.Get(headers.Key)
	if _, ok := h.Tenants(tenant, key); !ok || h.Watch != nil && !h.Watch(tenant, key)() {
		return openai.Errorf(openai.CodeInvalidAPIKey, "The key, or its tenant, is not known any more.")
	}
	return nil
}

// sameOrigin reports whether a page of the gateway's own host asks, or no page: only browsers send
// an origin.
func sameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}
