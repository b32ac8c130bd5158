package extproc

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
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

// namedHold is a hold that wants the id of its response.
type namedHold struct{ learned []string }

func (*namedHold) Moved(string)                              {}
func (*namedHold) FirstToken() bool                          { return true }
func (*namedHold) WantsResponseID() bool                     { return true }
func (h *namedHold) LearnResponse(id string)                 { h.learned = append(h.learned, id) }
func (*namedHold) Correct(request.Response) (c request.Cost) { return c }
func (*namedHold) Release()                                  {}

// The id of a native response is read from its beginning, which may come in several pieces.
func TestB2_ObserverLearnsTheResponse(t *testing.T) {
	for name, test := range map[string]struct {
		pieces []string
		want   string
	}{
		"whole":  {[]string{`{"id":"resp_1","object":"response"}`}, "resp_1"},
		"stream": {[]string{": ping\n\n", "event: response.created\nda", `ta: {"response":{"id":"re`, `sp_1","obj`}, "resp_1"},
		"large":  {[]string{strings.Repeat(" ", maxObserved)}, ""},
	} {
		s, _ := newServer(t, nil)
		h := new(namedHold)
		record := s.Requests.Begin(request.Arrival{ID: "e-1"})
		record.SetNative(h, "m", "m-0", 0)
		e := observed(t, s)
		for i, piece := range test.pieces {
			id := ""
			if i == 0 {
				id = "e-1"
			}
			e.toSluice <- seen(id, piece)
		}
		if err := <-e.processed; err != nil { // it ends by itself
			t.Error(err)
		}
		record.Close(nil)
		if got := strings.Join(h.learned, " "); got != test.want {
			t.Errorf("%s: the ids are %q", name, got)
		}
	}
}

func TestB2_NativeResponsesAreObserved(t *testing.T) {
	s, _ := newServer(t, nil)
	for path, want := range map[string]string{"/v1/responses": "1", "/v1/chat/completions": ""} {
		e := open(t, s)
		e.headers(key, ":path: "+path)
		to := set(e.body(`{"model":"m"}`).GetRequestBody().GetResponse().GetHeaderMutation())
		if to[headers.Cluster] == "" || to[headers.Observe] != want {
			t.Errorf("%s: the answer sets %v", path, to)
		}
		if want != "" && to["accept-encoding"] != "identity" {
			t.Errorf("%s: the id could be compressed", path)
		}
	}
}

func TestR11_BadHeartbeatIsRefused(t *testing.T) {
	s, _ := newServer(t, nil)
	e := open(t, s)
	refused := e.headers(key, "x-sluice-heartbeat: loud").GetImmediateResponse()
	if refused.GetStatus().GetCode() != 400 || !strings.Contains(string(refused.GetBody()), "must be chunk or comment") {
		t.Errorf("the answer is %v: %s", refused.GetStatus(), refused.GetBody())
	}
	e = open(t, s)
	if e.headers(key, "x-sluice-heartbeat: comment").GetImmediateResponse() != nil {
		t.Error("comment is refused")
	}
}
