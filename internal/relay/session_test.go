package relay

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// A call over a WebSocket or gRPC, and one that another gateway forwards, keep their session.
func TestB2_SessionOfACall(t *testing.T) {
	header := http.Header{}
	header.Set(headers.SessionID, "chat-7")
	own, fault := NewCall(CallParams{Tenant: acme, Path: "/v1/chat/completions", Body: []byte(hello), Header: header})
	if fault != nil {
		t.Fatal(fault)
	}
	forwarded := setCall(httptest.NewRequest(http.MethodPost, own.Path, strings.NewReader(hello)), own)
	forwarded.Header.Set("content-type", "application/json")
	other, fault := callOfPeer(forwarded, func(string, string) (*authz.Tenant, bool) { return acme, true }, 1<<20)
	if fault != nil {
		t.Fatal(fault)
	}
	if a, b := own.Asked(), other.Asked(); a.Session != "header:chat-7" || b.Session != a.Session {
		t.Errorf("the sessions are %q and %q", a.Session, b.Session)
	}
	header.Set(headers.SessionID, strings.Repeat("x", 257))
	if _, fault := NewCall(CallParams{Tenant: acme, Path: "/v1/chat/completions", Body: []byte(hello), Header: header}); fault == nil {
		t.Error("a long session was accepted")
	}
}
