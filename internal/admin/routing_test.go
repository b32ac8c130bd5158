package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

const pickPath = "/api/v1/models/chat/pick"

func TestB1_PickByABody(t *testing.T) {
	t.Parallel()
	c := newConfig()
	c.Listen = "0.0.0.0:9090"
	var asked PickQuestion
	answer := c.Pick
	c.Pick = func(model string, q PickQuestion) (Pick, *openai.Error) {
		asked = q
		return answer(model, q)
	}
	h := New(c)
	for name, test := range map[string]struct {
		query, body string
		endpoint    openai.Endpoint
	}{
		"a chat":       {"", `{"model":"chat","messages":[{"role":"user","content":"hi"}]}`, openai.Chat},
		"a completion": {"", `{"model":"chat","prompt":"hi"}`, openai.Completions},
		"a response":   {"?tenant=acme", `{"model":"chat","input":"hi"}`, openai.Responses},
		"an embedding": {"?path=/v1/embeddings", `{"model":"chat","input":"hi"}`, openai.Embeddings},
	} {
		w := ask(h, "POST", pickPath+test.query, test.body, "X-Session-Id: s-1")
		if w.Code != 200 {
			t.Fatalf("%s: status %d: %s", name, w.Code, w.Body)
		}
		if diff := cmp.Diff(parse(t, chatPick), parse(t, w.Body.String())); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
		if asked.Request == nil || asked.Request.Endpoint != test.endpoint || string(asked.Body) != test.body || asked.Request.Session() != "header:s-1" {
			t.Errorf("%s: asked %+v", name, asked)
		}
		if wantTenant := strings.TrimPrefix(test.query, "?tenant="); strings.Contains(test.query, "tenant") && asked.Tenant != wantTenant {
			t.Errorf("%s: the tenant is %q", name, asked.Tenant)
		}
	}
}

func TestB1_PickRefusesBadBodies(t *testing.T) {
	t.Parallel()
	c := newConfig()
	c.Listen = "0.0.0.0:9090"
	h := New(c)
	for name, test := range map[string]struct {
		path, body, header string
		status             int
		want               string
	}{
		"no JSON":       {pickPath, `{"messages":`, "", 400, "invalid_request"},
		"nothing":       {pickPath, ``, "", 400, "invalid_request"},
		"unknown path":  {pickPath + "?path=/v1/nothing", `{"model":"chat"}`, "", 400, `"param":"path"`},
		"long session":  {pickPath, `{"model":"chat","messages":[]}`, "X-Session-Id: " + strings.Repeat("x", 257), 400, headers.SessionID},
		"unknown model": {"/api/v1/models/nope/pick", `{"model":"chat","messages":[]}`, "", 404, "model_not_found"},
		"too large":     {pickPath, `{"model":"` + strings.Repeat("x", maxPickBody) + `"}`, "", 413, "request_too_large"},
	} {
		w := ask(h, "POST", test.path, test.body, test.header)
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) || !strings.HasPrefix(w.Body.String(), `{"error":{"message":`) {
			t.Errorf("%s: status %d: %s", name, w.Code, w.Body)
		}
	}
}

// A pick changes nothing, so a viewer may ask for one, and it leaves no line in the log.
func TestB1_ViewersMayPick(t *testing.T) {
	t.Parallel()
	h, logs := newGuarded()
	const body = `{"model":"chat","messages":[]}`
	for name, test := range map[string]struct {
		headers []string
		status  int
	}{
		"viewer":     {[]string{"Authorization: Bearer " + viewerToken}, 200},
		"operator":   {[]string{"Authorization: Bearer " + operatorToken}, 200},
		"nobody":     {nil, 401},
		"other site": {[]string{"Authorization: Bearer " + viewerToken, "Sec-Fetch-Site: cross-site"}, 403},
	} {
		if w := ask(h, "POST", pickPath, body, test.headers...); w.Code != test.status {
			t.Errorf("%s: status %d, want %d: %s", name, w.Code, test.status, w.Body)
		}
	}
	if n := logs.FilterMessageSnippet("admin call").Len(); n != 0 {
		t.Errorf("%d audit lines", n)
	}
	if w := ask(h, "PATCH", pickPath, body, "Authorization: Bearer "+viewerToken); w.Code != 403 {
		t.Errorf("PATCH: status %d", w.Code)
	}
}

func TestB1_WhyAReplicaWins(t *testing.T) {
	t.Parallel()
	fast := []PickReplica{
		{ID: "a", Candidate: true, Predicted: 400 * time.Millisecond}, {ID: "b", Predicted: time.Millisecond},
		{ID: "c", Candidate: true, Predicted: 3210 * time.Microsecond}, {ID: "d", Candidate: true, Predicted: 300 * time.Millisecond}}
	for _, test := range []struct {
		pick Pick
		want string
	}{
		{Pick{}, "No replica can take a request now: each is full, or Envoy does not know it yet."},
		{Pick{Picked: "c", Reason: "fastest", Replicas: fast}, "c has the least predicted time to the first token: 3.21ms. The next is d with 300ms."},
		{Pick{Picked: "c", Reason: "fastest", Replicas: fast[1:3]}, "c is the only replica that can take a request now."},
		{Pick{Picked: "c", Reason: "session"}, "c serves the session of the request, and is not much slower than the fastest replica."},
		{Pick{Picked: "c", Reason: "ring"}, "Several replicas are about as fast. Of them, the hash ring names c."},
		{Pick{Picked: "c", Reason: "round_robin"}, "c is picked by the model's routing strategy."},
	} {
		if got := test.pick.why(); got != test.want {
			t.Errorf("%s %q: %s", test.pick.Picked, test.pick.Reason, got)
		}
	}
}

// The routing of a model is shown as a prompt of the usual length finds it, with the last requests
// of the model and of each replica.
func TestB1_RoutingOfAModel(t *testing.T) {
	t.Parallel()
	c := newConfig()
	answered := request.Summary{Model: "chat", Replica: "chat-0", State: request.Done, Source: headers.SourceEngine, Stream: true, Attempts: 1,
		Waited: time.Second, FirstByte: 1200 * time.Millisecond, UsageKnown: true, CachedKnown: true, PromptTokens: 80, CachedTokens: 60,
		Prediction: request.Prediction{TTFT: 150 * time.Millisecond, MatchedTokens: 64, Known: true, Reason: "cached"}}
	moved, running, other := answered, answered, answered
	moved.Replica, moved.CachedTokens, moved.Prediction = "chat-1", 0, request.Prediction{MatchedTokens: 500, Reason: "fastest", Moved: "load"}
	running.State, other.Model = request.Streaming, "other"
	c.Requests = func(int) ([]request.Summary, int) { return []request.Summary{running, answered, moved, other}, 1 }
	var asked PickQuestion
	answer := c.Pick
	c.Pick = func(model string, q PickQuestion) (Pick, *openai.Error) {
		asked = q
		return answer(model, q)
	}
	w := get(New(c), "/api/v1/models/chat/routing")
	want := `{"model":"chat","prompt_tokens":80,"picked":"chat-0","reason":"cached",
		"recent":{"requests":2,"compared":1,"predicted_ms":150,"real_ms":200,"prompt_tokens":160,"matched_tokens":144,"cached_tokens":60,
			"picks":{"cached":1,"fastest":1},"moves":{"load":1}},
		"replicas":[
			{"id":"chat-0","load":4,"candidate":true,"matched_tokens":64,"uncached_tokens":36,"waiting_tokens":500,"rate":6000,"predicted_ms":90,"in_ring_order":1,
			 "recent":{"requests":1,"compared":1,"predicted_ms":150,"real_ms":200,"prompt_tokens":80,"matched_tokens":64,"cached_tokens":60,"picks":{"cached":1},"moves":{}}},
			{"id":"chat-1","load":0,"candidate":false,"matched_tokens":0,"uncached_tokens":100,"waiting_tokens":0,"rate":0,"predicted_ms":0,"in_ring_order":0,
			 "recent":{"requests":1,"compared":0,"predicted_ms":0,"real_ms":0,"prompt_tokens":80,"matched_tokens":80,"cached_tokens":0,"picks":{"fastest":1},"moves":{"load":1}}}]}`
	if diff := cmp.Diff(parse(t, want), parse(t, w.Body.String())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if asked.PromptTokens != 80 {
		t.Errorf("asked %+v", asked)
	}
}
