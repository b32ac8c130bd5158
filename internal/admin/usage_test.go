package admin

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/usage"
)

// usageHandler returns a handler with a fixed answer, and where the last question goes.
func usageHandler() (http.Handler, *usage.Question) {
	asked := new(usage.Question)
	c := newConfig()
	c.Listen = "0.0.0.0:9090"
	c.Usage = func(_ context.Context, q usage.Question) usage.Answer {
		*asked = q
		values := []string{"acme", "=1+1", "chat"}[:len(q.By)]
		counts := usage.Counts{Requests: 3, EstimatedRequests: 1, PromptTokens: 30, CachedTokens: 4, CompletionTokens: 5,
			EstimatedPromptTokens: 6, EstimatedCompletionTokens: 7, Cost: 1_500_000_000}
		return usage.Answer{From: time.Unix(0, 0).UTC(), To: time.Unix(3600, 0).UTC(), Complete: true,
			Items: []usage.Item{{Values: values, Counts: counts}}}
	}
	return New(c), asked
}

func getUsage(h http.Handler, query string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/usage?"+query, nil))
	return w
}

func TestO4_UsageAsJSON(t *testing.T) {
	h, asked := usageHandler()
	w := getUsage(h, "from=-3600&to=2100-01-01T00:00:00Z")
	want := `{"complete":true,"from":"1970-01-01T00:00:00Z","to":"1970-01-01T01:00:00Z","usage":[{"cached_tokens":4,"completion_tokens":5,"cost":1.5,` +
		`"estimated_completion_tokens":7,"estimated_prompt_tokens":6,"estimated_requests":1,"key":"=1+1","model":"chat","prompt_tokens":30,` +
		`"requests":3,"tenant":"acme"}]}` + "\n"
	if diff := cmp.Diff(want, w.Body.String()); diff != "" || w.Code != 200 {
		t.Error(w.Code, diff)
	}
	if ago := time.Since(asked.From); ago < time.Hour || ago > time.Hour+time.Minute || asked.To.Year() != 2100 {
		t.Errorf("%+v", asked)
	}
}

func TestO4_UsageAsCSV(t *testing.T) {
	h, _ := usageHandler()
	w := getUsage(h, "format=csv&group_by=tenant,key")
	want := "tenant,key,requests,prompt_tokens,cached_tokens,completion_tokens,estimated_requests,estimated_prompt_tokens," +
		"estimated_completion_tokens,cost\nacme,'=1+1,3,30,4,5,1,6,7,1.5\n"
	if diff := cmp.Diff(want, w.Body.String()); diff != "" || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/csv") {
		t.Error(w.Header(), diff)
	}
}

// Usage and history read a time alike.
func TestO4_OneWayToReadATime(t *testing.T) {
	h, _ := usageHandler()
	c := newConfig()
	c.History = newHistory(t)
	for _, wrong := range []string{"yesterday", "5", "1969-12-31T23:59:59Z", "9001-01-01T00:00:00Z", "-99999999999999999999"} {
		used, past := getUsage(h, "from="+wrong), get(New(c), "/api/v1/history?from="+wrong)
		if diff := cmp.Diff(used.Body.String(), past.Body.String()); diff != "" || used.Code != 400 || past.Code != 400 {
			t.Errorf("%s: %d, %d: %s", wrong, used.Code, past.Code, diff)
		}
	}
}

func TestO4_WrongQuestions(t *testing.T) {
	h, _ := usageHandler()
	for query, param := range map[string]string{
		"from=yesterday":             "from",
		"from=3600":                  "from",
		"to=2026-11-23":              "to",
		"from=-10&to=-20":            "to",
		"group_by=tenant,tenant":     "group_by",
		"group_by=replica":           "group_by",
		"format=xml":                 "format",
		"since=-10":                  "since",
		"from=-10&from=-20":          "from",
		"from=-99999999999999999999": "from",
	} {
		if w := getUsage(h, query); w.Code != 400 || !strings.Contains(w.Body.String(), `"param":"`+param+`"`) {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	if w := getUsage(h, "from=-9999999999999"); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
