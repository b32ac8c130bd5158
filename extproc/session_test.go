package extproc

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
)

func TestB2_SessionHeader(t *testing.T) {
	s, _ := newRelayed(t, dispatch.WayPolicy{Mode: dispatch.ModeManaged})
	e := open(t, s)
	e.headers(key, "x-session-id: chat-7")
	token := set(e.body(managedBody).GetRequestBody().GetResponse().GetHeaderMutation())[headers.Handoff]
	offer, ok := s.Handoff.Claim(token)
	if !ok {
		t.Fatal("the request was not offered")
	}
	defer offer.Done()
	if got := offer.Scan.Session(); got != "header:chat-7" {
		t.Errorf("the session is %q", got)
	}
}

func TestB2_BadSessionHeaderIsRefused(t *testing.T) {
	s, _ := newServer(t, nil)
	e := open(t, s)
	e.headers(key, "x-session-id: "+strings.Repeat("x", 257))
	refused := e.body(`{"model":"m"}`).GetImmediateResponse()
	if refused.GetStatus().GetCode() != 400 || !strings.Contains(string(refused.GetBody()), "x-session-id is too long") {
		t.Errorf("the answer is %v: %s", refused.GetStatus(), refused.GetBody())
	}
	e = open(t, s)
	refused = e.headers(key, "x-session-id: a", "x-session-id: b").GetImmediateResponse()
	if refused.GetStatus().GetCode() != 400 {
		t.Errorf("two sessions: the answer is %v", refused.GetStatus())
	}
}
