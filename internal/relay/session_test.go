package relay

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// TestX14_AForwardedQueryAsksForNoOtherModel: the gateway that has the request id may have another
// server for the model than the gateway that has forwarded the call.
func TestX14_AForwardedQueryAsksForNoOtherModel(t *testing.T) {
	for path, want := range map[string]openai.Guards{"/v1/chat/completions?model=secret": openai.NewGuards([]string{"query_model"}), "/v1/chat/completions?a=b": 0} {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(hello))
		r.Header.Set("content-type", "application/json")
		c, fault := callOfPeer(r, func(string, string) (*authz.Tenant, bool) { return acme, true }, 1<<20)
		if fault != nil || c.Scan.Guarded != want {
			t.Errorf("%s: %+v, %v", path, c, fault)
		}
	}
}

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
