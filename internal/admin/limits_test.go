package admin

import (
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// limitStore holds the limits that can be changed, by the keys of Config.Limits.
type limitStore map[string]struct {
	values, file map[string]int64
	patched      []string
}

func (k limitStore) limits(key string) (values, file map[string]int64, patched []string, ok bool) {
	e, ok := k[key]
	return e.values, e.file, e.patched, ok
}

func (k limitStore) patch(_ context.Context, key string, changes map[string]*int64) *openai.Error {
	e, ok := k[key]
	if !ok {
		return openai.Errorf(openai.CodeModelNotFound, "no %s", key)
	}
	if v := changes["weight"]; v != nil && *v == 0 {
		return &openai.Error{Code: openai.CodeInvalidRequest, Param: "weight", Message: "weight must be at least 1"}
	}
	for field, v := range changes {
		e.values[field] = e.file[field]
		if v != nil {
			e.values[field] = *v
			e.patched = append([]string{field}, e.patched...)
		}
	}
	k[key] = e
	return nil
}

// newPatchable returns a Config with Limits and PatchLimits, and the limits that they use.
func newPatchable() (Config, limitStore) {
	k := limitStore{}
	for key, values := range map[string]map[string]int64{
		"model/chat":            {"weight": 2, "max_concurrent_requests": 64, "max_tokens_per_minute": 9},
		"model/org/a<b>/limits": {"weight": 1, "max_concurrent_requests": 0, "max_tokens_per_minute": 0},
		"tenant/acme":           {"weight": 3, "requests_per_minute": 1, "tokens_per_minute": 2, "max_concurrent_streams": 3, "max_prefill": 4},
		"tenant/a/b c":          {"weight": 1, "requests_per_minute": 0, "tokens_per_minute": 0, "max_concurrent_streams": 0, "max_prefill": 0},
	} {
		e := k[key]
		e.values, e.file = values, maps.Clone(values)
		if key == "model/org/a<b>/limits" {
			e.file = nil
		}
		k[key] = e
	}
	k["tenant/gone"] = k["tenant/acme"]
	c := newConfig()
	rows := append(c.Tenants(), Tenant{Name: "a/b c"})
	c.Tenants = func() []Tenant { return rows }
	c.Limits, c.PatchLimits = k.limits, k.patch
	return c, k
}

func patch(c Config, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("PATCH", path, strings.NewReader(body))
	r.Host = "localhost:9090"
	r.Header.Set("Content-Type", "application/json")
	New(c).ServeHTTP(w, r)
	return w
}

func TestPatchLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ path, body, want string }{
		{"/api/v1/models/chat/limits", `{"max_tokens_per_minute": 0, "max_concurrent_requests": 5}`,
			`{"weight":2,"max_concurrent_requests":5,"max_tokens_per_minute":0,"max_per_replica":8,"max_prefill_per_replica":0,"max_queue":1000,"queue_timeout":"1m",
			"patched":["max_concurrent_requests","max_tokens_per_minute"],"file":{"weight":2,"max_concurrent_requests":64,"max_tokens_per_minute":9}}`},
		{"/api/v1/models/default/limits", ` {"weight":null} `,
			`{"weight":2,"max_concurrent_requests":64,"max_tokens_per_minute":9,"max_per_replica":8,"max_prefill_per_replica":0,"max_queue":1000,"queue_timeout":"1m",
			"patched":[],"file":{"weight":2,"max_concurrent_requests":64,"max_tokens_per_minute":9}}`},
		{"/api/v1/models/org%2Fa%3Cb%3E%2Flimits/limits", `{"weight":4}`,
			`{"weight":4,"max_concurrent_requests":0,"max_tokens_per_minute":0,"max_per_replica":0,"max_prefill_per_replica":0,"max_queue":0,"queue_timeout":"0s",
			"patched":["weight"],"file":{}}`},
		{"/api/v1/models/org/a%3Cb%3E/limits/limits", `{"weight":4}`,
			`{"weight":4,"max_concurrent_requests":0,"max_tokens_per_minute":0,"max_per_replica":0,"max_prefill_per_replica":0,"max_queue":0,"queue_timeout":"0s",
			"patched":["weight"],"file":{}}`},
		{"/api/v1/tenants/acme/limits", `{"max_prefill":1000000000000}`,
			`{"weight":3,"requests_per_minute":1,"tokens_per_minute":2,"max_concurrent_streams":3,"max_prefill":1000000000000,
			"max_queue_bytes":1099511627776,"patched":["max_prefill"],
			"file":{"weight":3,"requests_per_minute":1,"tokens_per_minute":2,"max_concurrent_streams":3,"max_prefill":4}}`},
		{"/api/v1/tenants/a%2Fb%20c/limits", `{"requests_per_minute":7}`,
			`{"weight":1,"requests_per_minute":7,"tokens_per_minute":0,"max_concurrent_streams":0,"max_prefill":0,
			"max_queue_bytes":0,"patched":["requests_per_minute"],
			"file":{"weight":1,"requests_per_minute":0,"tokens_per_minute":0,"max_concurrent_streams":0,"max_prefill":0}}`},
	} {
		cfg, _ := newPatchable()
		w := patch(cfg, c.path, c.body)
		if w.Code != 200 {
			t.Errorf("%s: status %d: %s", c.path, w.Code, w.Body)
			continue
		}
		if diff := cmp.Diff(parse(t, c.want), parse(t, w.Body.String())); diff != "" {
			t.Errorf("%s %s: (-want +got)\n%s", c.path, c.body, diff)
		}
		if again := get(New(cfg), c.path).Body.String(); again != w.Body.String() {
			t.Errorf("%s: PATCH answered %s, and then GET %s", c.path, w.Body, again)
		}
	}
}

// TestLimitsInLists: the lists of models and tenants show a changed limit at once, and name it as
// patched.
func TestLimitsInLists(t *testing.T) {
	t.Parallel()
	cfg, _ := newPatchable()
	patch(cfg, "/api/v1/models/chat/limits", `{"weight":7}`)
	patch(cfg, "/api/v1/tenants/acme/limits", `{"weight":8}`)
	for path, list := range map[string]string{"/api/v1/models": "models", "/api/v1/tenants": "tenants"} {
		first := parse(t, get(New(cfg), path).Body.String()).(map[string]any)[list].([]any)[0].(map[string]any)
		limits := first["limits"].(map[string]any)
		if first["weight"] != limits["weight"] || first["weight"].(float64) < 7 || !cmp.Equal(limits["patched"], []any{"weight"}) ||
			limits["file"].(map[string]any)["weight"].(float64) > 3 {
			t.Errorf("%s: %v", path, first)
		}
	}
}

func TestPatchesThatAreRefused(t *testing.T) {
	t.Parallel()
	long := `{"weight":` + strings.Repeat(" ", maxPatch) + `1}`
	const whole = "must be a whole number that is not negative, or null for the value of the file."
	const notHere = "is not a limit that can be changed here."
	const onlyFile = "can only be changed in the configuration file."
	for _, c := range []struct {
		path, body, param, message string
		status                     int
	}{
		{"models/chat", `{"weight":-1}`, "weight", whole, 400},
		{"models/chat", `{"weight":-99999999999999999999}`, "weight", whole, 400},
		{"models/chat", `{"weight":1.5}`, "weight", whole, 400},
		{"models/chat", `{"weight":1e3}`, "weight", whole, 400},
		{"models/chat", `{"weight":99999999999999999999}`, "weight", "is too large.", 400},
		{"models/chat", `{"weight":"1"}`, "weight", whole, 400},
		{"models/chat", `{"weight":true}`, "weight", whole, 400},
		{"models/chat", `{"weight":[1]}`, "weight", whole, 400},
		{"models/chat", `{"weight":{}}`, "weight", whole, 400},
		{"models/chat", `{"weight":0}`, "weight", "must be at least 1", 400},
		{"models/chat", `{"weight":1,"max_tokens_per_minute":2,"weight":1}`, "weight", "is given more than once.", 400},
		{"models/chat", `{"weight":null,"weight":null}`, "weight", "is given more than once.", 400},
		{"models/chat", `{"weight":1,"Weight":1}`, "Weight", notHere, 400},
		{"models/chat", `{"requests_per_minute":1}`, "requests_per_minute", notHere, 400},
		{"models/chat", `{"patched":["weight"]}`, "patched", notHere, 400},
		{"models/chat", `{"max_per_replica":1}`, "max_per_replica", onlyFile, 400},
		{"models/chat", `{"max_queue":1}`, "max_queue", onlyFile, 400},
		{"models/chat", `{"weight":1,"queue_timeout":"1m"}`, "queue_timeout", onlyFile, 400},
		{"tenants/acme", `{"max_queue_bytes":1}`, "max_queue_bytes", onlyFile, 400},
		{"tenants/acme", `{"max_concurrent_requests":1}`, "max_concurrent_requests", notHere, 400},
		{"tenants/acme", `{}`, "", "Name at least one limit to change.", 400},
		{"tenants/acme", `null`, "", "must be a JSON object", 400},
		{"tenants/acme", `[{"weight":1}]`, "", "must be a JSON object", 400},
		{"tenants/acme", `{"weight":1`, "", "not valid JSON", 400},
		{"tenants/acme", `{"weight":1} {}`, "", "not valid JSON", 400},
		{"tenants/acme", `{"weight":1,}`, "", "not valid JSON", 400},
		{"tenants/acme", `weight=1`, "", "not valid JSON", 400},
		{"tenants/acme", "", "", "not valid JSON", 400},
		{"tenants/acme", long, "", "longer than 65536 bytes", 400},
		{"models/nope", `{"weight":1}`, "", "does not exist", 404},
		{"tenants/nope", `{"weight":1}`, "", "does not exist", 404},
		{"tenants/gone", `{"weight":1}`, "", "does not exist", 404},
		{"models/empty", `{"weight":1}`, "", "no model/empty", 404}, // this error comes from PatchLimits
	} {
		cfg, k := newPatchable()
		before := fmt.Sprint(k)
		w := httptest.NewRecorder()
		r := httptest.NewRequest("PATCH", "/", strings.NewReader(c.body))
		r.URL.Path, r.URL.RawPath = "/api/v1/"+c.path+"/limits", "/api/v1/"+c.path+"/limits"
		r.Host = "localhost:9090"
		r.Header.Set("Content-Type", "application/json")
		New(cfg).ServeHTTP(w, r)
		fault := parse(t, w.Body.String()).(map[string]any)["error"].(map[string]any)
		param, _ := fault["param"].(string)
		if w.Code != c.status || param != c.param || !strings.Contains(fault["message"].(string), c.message) || fault["type"] != "invalid_request_error" {
			t.Errorf("PATCH %s %.60s: %d %s, want %d, param %q and %q", c.path, c.body, w.Code, w.Body, c.status, c.param, c.message)
		}
		if after := fmt.Sprint(k); after != before {
			t.Errorf("PATCH %s %.60s was refused, but the limits are %s, want %s", c.path, c.body, after, before)
		}
	}
}

func FuzzPatch(f *testing.F) {
	for _, s := range []string{`{"weight":1}`, `{"weight":null,"max_prefill":3}`, `{"a":{"b":[]}}`, `{"weight":1,"weight":2}`, `{"\ud800":1}`, ` [`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		changes, fault := parsePatch(body, func(string) string { return "" })
		if (fault == nil) == (changes == nil) {
			t.Fatalf("parsePatch(%q) = %v and %v, want exactly one of them", body, changes, fault)
		}
		for field, v := range changes {
			if v != nil && *v < 0 {
				t.Errorf("parsePatch(%q): %s is %d, want no negative value", body, field, *v)
			}
		}
	})
}
