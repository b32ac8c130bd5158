package admin

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/request"
)

func TestO10_RequestsAreFiltered(t *testing.T) {
	c := newConfig()
	all := []request.Summary{
		{ID: "1", Model: "chat", Tenant: "acme", State: request.Queued},
		{ID: "2", Model: "chat", Tenant: "other", Replica: "chat-0", State: request.Streaming, ClientID: "mine"},
		{ID: "3", Model: "chat", Tenant: "acme", State: request.Done, Status: 503, Code: "queue_full"},
		{ID: "4", Model: "empty", Tenant: "acme", State: request.Done, Status: 200},
		{ID: "5", Model: "chat", Tenant: "acme", State: request.Done, Status: 500},
	}
	c.Requests = func(limit int) ([]request.Summary, int) { return all, 2 }
	h := New(c)
	for query, want := range map[string]string{
		"": "1 2 3 4 5", "model=chat": "1 2 3 5", "model=default": "1 2 3 5", "tenant=acme": "1 3 4 5", "replica=chat-0": "2", "code=queue_full": "3", "client_request_id=mine": "2",
		"status=5xx": "3 5", "status=200": "4", "state=queued": "1", "state=running": "2", "state=finished": "3 4 5", "state=streaming": "2", "state=done": "3 4 5",
		"status=5xx&limit=1":                    "3",
		"model=chat&tenant=acme&state=finished": "3 5", "model=none": "",
	} {
		w := get(h, "/api/v1/requests?"+query)
		var answer struct {
			Requests []struct {
				ID string `json:"request_id"`
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, q := range answer.Requests {
			got = append(got, q.ID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", query, got, want)
		}
	}
	for _, query := range []string{"status=6xx", "status=x", "status=99", "state=gone", "engine=sim"} {
		if w := get(h, "/api/v1/requests?"+query); w.Code != 400 {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
}

func TestO10_ARequestHasATimeline(t *testing.T) {
	c := newConfig()
	c.TraceURL = "https://traces.example.com/t/{trace_id}"
	c.Strategy = func(string) string { return "prefix" }
	c.Request = func(id string) (request.Detail, bool) {
		d := request.Detail{Read: 2 * time.Millisecond, Retries: []request.Retry{{After: 20 * time.Millisecond, Reason: "connect", Replica: "chat-1"}}}
		d.Summary = request.Summary{ID: "r/1", Method: "POST", Path: "/v1/chat/completions", Model: "chat", Replica: "chat-0", State: request.Done, Status: 200,
			Attempts: 2, Waited: 5 * time.Millisecond, FirstByte: 100 * time.Millisecond, Duration: time.Second, FinishReason: "stop",
			Trace:      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			Prediction: request.Prediction{TTFT: 90 * time.Millisecond, MatchedTokens: 64, Known: true, Reason: "cached"}}
		return d, id == "r/1"
	}
	h := New(c)
	w := get(h, "/api/v1/requests/r%2F1")
	var answer struct {
		ID       string `json:"request_id"`
		Timeline []moment
		Picked   json.RawMessage
		TraceURL string `json:"trace_url"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 200 {
		t.Fatalf("%d %v: %s", w.Code, err, w.Body)
	}
	got := strings.Builder{}
	for _, m := range answer.Timeline {
		fmt.Fprintf(&got, "%v %s %s\n", m.AtMS, m.What, m.Detail)
	}
	const want = "0 received POST /v1/chat/completions\n2 queued chat\n7 admitted \n7 picked chat-1\n20 retried connect at chat-1\n100 first_token \n" +
		"1000 finished status 200, stop\n"
	if got.String() != want || answer.ID != "r/1" || answer.TraceURL != "https://traces.example.com/t/0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("%s, trace %s, timeline:\n%swant:\n%s", answer.ID, answer.TraceURL, got.String(), want)
	}
	if picked := string(answer.Picked); picked != `{"replica":"chat-0","strategy":"prefix","why":"cached","moved":"","predicted_ms":90,"matched_tokens":64,"considered":null,"candidates":null}` {
		t.Errorf("picked: %s", picked)
	}
	if w := get(h, "/api/v1/requests/none"); w.Code != 404 || !strings.Contains(w.Body.String(), "No request `none` runs or is among the last that have ended. `sluice requests` lists them.") {
		t.Errorf("an unknown id: %d %s", w.Code, w.Body)
	}
}

// A request tells the replicas that its pick chose from: the picked one, then the others from the
// best one on, and at most eight.
func TestO10_ARequestHasItsCandidates(t *testing.T) {
	c := newConfig()
	all := []request.Candidate{
		{Replica: "late", Load: 1, TTFT: 900 * time.Millisecond, UncachedTokens: 800}, {Replica: "full", Full: true, Load: 8, TTFT: time.Millisecond},
		{Replica: "usual", Picked: true, Load: 3, TTFT: 90 * time.Millisecond, MatchedTokens: 64, UncachedTokens: 8, WaitingTokens: 5},
	}
	for range 9 {
		all = append(all, request.Candidate{Replica: "other", Load: 2, TTFT: 100 * time.Millisecond})
	}
	c.Request = func(id string) (request.Detail, bool) {
		shown := all[:3]
		if id == "many" {
			shown = all
		}
		return request.Detail{Summary: request.Summary{ID: id, Replica: "usual", Prediction: request.Prediction{Considered: 40, Candidates: shown}}}, true
	}
	h := New(c)
	var answer struct{ Picked json.RawMessage }
	w := get(h, "/api/v1/requests/few")
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	const want = `"considered":40,"candidates":[` +
		`{"replica":"usual","picked":true,"load":3,"full":false,"predicted_ms":90,"matched_tokens":64,"uncached_tokens":8,"waiting_tokens":5},` +
		`{"replica":"late","picked":false,"load":1,"full":false,"predicted_ms":900,"matched_tokens":0,"uncached_tokens":800,"waiting_tokens":0},` +
		`{"replica":"full","picked":false,"load":8,"full":true,"predicted_ms":1,"matched_tokens":0,"uncached_tokens":0,"waiting_tokens":0}]}`
	if !strings.HasSuffix(string(answer.Picked), want) {
		t.Errorf("picked: %s, want at its end %s", answer.Picked, want)
	}
	if got := get(h, "/api/v1/requests/many").Body.String(); strings.Count(got, `"load"`) != 8 || strings.Contains(got, `"full"}`) {
		t.Errorf("of 12 candidates: %s", got)
	}
}

func TestO10_TimelinesOfOtherRequests(t *testing.T) {
	for name, c := range map[string]struct {
		d    request.Detail
		want string
	}{
		"queued":  {request.Detail{Summary: request.Summary{State: request.Queued, Waited: time.Second}}, "received queued"},
		"refused": {request.Detail{Summary: request.Summary{State: request.Done, Status: 429, Waited: time.Millisecond}}, "received queued finished"},
		"left":    {request.Detail{Summary: request.Summary{State: request.Done, Replica: "r"}}, "received admitted picked cancelled"},
		"managed": {request.Detail{Summary: request.Summary{State: request.Streaming, Replica: "r", Attempts: 3}}, "received admitted picked retried"},
		"moved": {request.Detail{Summary: request.Summary{State: request.Streaming, Replica: "r", Attempts: 2},
			Retries: []request.Retry{{Reason: "5xx"}}}, "received admitted picked retried"},
		"preempted": {request.Detail{Summary: request.Summary{State: request.Streaming, Replica: "r", Attempts: 4},
			Retries: []request.Retry{{Reason: "connect"}, {Reason: "preempted"}, {Reason: "reset"}}}, "received retried retried admitted picked retried"},
		"two ways": {request.Detail{Summary: request.Summary{State: request.Done, Status: 200, Cause: request.CauseCancelled}}, "received cancelled"},
	} {
		var got []string
		for _, m := range timeline(&c.d) {
			got = append(got, m.What)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}
