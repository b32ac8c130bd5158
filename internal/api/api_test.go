package api_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/api"
	"github.com/sluice-gateway/sluice/internal/headers"
)

func TestR11_ListOfModels(t *testing.T) {
	fleet := engines.NewFleet()
	fleet.Set("test", engines.Part{Models: []engines.Model{
		{Name: "org/big", Task: engines.TextGeneration, ContextLength: 4096, Launcher: engines.Local, MaxReplicas: 1},
		{Name: "small", Aliases: []string{"tiny"}, Launcher: engines.Upstream},
		{Name: "elsewhere", Launcher: engines.None},
	}, Replicas: []engines.Replica{{ID: "small-0", Model: "small", State: engines.Ready}}})
	h := api.New(api.Config{
		Fleet: fleet,
		Allowed: func(tenant, key string) func(string) bool {
			return func(model string) bool { return tenant == "all" && key == "" || tenant == "some" && model == "small" }
		},
		Pools: func() map[string][]string {
			return map[string][]string{"auto": {"elsewhere", "small"}, "tasks": {"elsewhere"}}
		},
		Created: time.Unix(1700000000, 0),
	})
	const small = `{"id":"small","object":"model","created":1700000000,"owned_by":"sluice","state":"ready"}`
	const big = `{"id":"org/big","object":"model","created":1700000000,"owned_by":"sluice","task":"text-generation","context_length":4096,"state":"cold"}`
	const elsewhere = `{"id":"elsewhere","object":"model","created":1700000000,"owned_by":"sluice"}`
	const auto = `{"id":"auto","object":"model","created":1700000000,"owned_by":"sluice"}`
	for _, c := range []struct {
		method, path, tenant string
		status               int
		body                 string
	}{
		{"GET", "/health", "", 200, `{"status":"ok"}`},
		{"GET", "/v1/models", "all", 200, `{"object":"list","data":[` + auto + `,` + big + `,` + small + `]}`},
		{"GET", "/v1/models/auto", "all", 200, auto},
		{"GET", "/v1/models/elsewhere", "all", 200, elsewhere},
		{"GET", "/v1/models/auto", "some", 404, "model_not_found"},
		{"GET", "/v1/models", "some", 200, `{"object":"list","data":[` + small + `]}`},
		{"GET", "/v1/models", "", 200, `{"object":"list","data":[]}`},
		{"GET", "/v1/models/org/big", "all", 200, big},
		{"GET", "/v1/models/tiny", "all", 200, small},
		{"GET", "/v1/models/org/big", "some", 404, "model_not_found"},
		{"GET", "/v1/models/", "some", 200, `{"object":"list","data":[` + small + `]}`},
		{"GET", "/v1/models/none", "all", 404, "model_not_found"},
		{"DELETE", "/v1/models/small", "all", 405, "invalid_request"},
	} {
		t.Run(c.method+c.path+" "+c.tenant, func(t *testing.T) {
			r := httptest.NewRequest(c.method, c.path, nil)
			r.Header.Set(headers.Tenant, c.tenant)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.body) || c.status == 200 && w.Body.String() != c.body {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			if w.Header().Get(headers.Source) != headers.SourceGateway || w.Header().Get("content-type") != "application/json" {
				t.Errorf("headers %v", w.Header())
			}
		})
	}
}

// A client of Anthropic's API, which sends its version, gets the fields and errors of that API.
func TestR11_ModelsForAnthropic(t *testing.T) {
	fleet := engines.NewFleet()
	fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "a", Launcher: engines.Upstream}, {Name: "b", Launcher: engines.Upstream}}})
	h := api.New(api.Config{
		Fleet:   fleet,
		Allowed: func(tenant, _ string) func(string) bool { return func(string) bool { return tenant == "all" } },
		Created: time.Unix(1700000000, 0),
	})
	card := func(name string) string {
		return `{"id":"` + name + `","object":"model","created":1700000000,"owned_by":"sluice","state":"unavailable",` +
			`"type":"model","display_name":"` + name + `","created_at":"2023-11-14T22:13:20Z"}`
	}
	for _, c := range []struct{ path, tenant, body string }{
		{"/v1/models", "all", `{"object":"list","data":[` + card("a") + "," + card("b") + `],"has_more":false,"first_id":"a","last_id":"b"}`},
		{"/v1/models", "", `{"object":"list","data":[],"has_more":false}`},
		{"/v1/models/b", "all", card("b")},
		{"/v1/models/none", "all", `{"type":"error","error":{"type":"not_found_error","message":"The model ` + "`none`" +
			` does not exist, or this API key may not use it. GET /v1/models lists what it may use.","code":"model_not_found","param":"model"}}`},
	} {
		r := httptest.NewRequest("GET", c.path, nil)
		r.Header.Set(headers.Tenant, c.tenant)
		r.Header.Set("anthropic-version", "2023-06-01")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Body.String() != c.body {
			t.Errorf("%s of %q: %s", c.path, c.tenant, w.Body)
		}
	}
}

func TestR11_StateOfAModel(t *testing.T) {
	for want, m := range map[string]struct {
		model    engines.Model
		replicas []engines.State
	}{
		"ready":       {engines.Model{Launcher: engines.Local}, []engines.State{engines.Failed, engines.Ready}},
		"starting":    {engines.Model{Launcher: engines.Local}, []engines.State{engines.Failed, engines.Starting}},
		"failed":      {engines.Model{Launcher: engines.Upstream}, []engines.State{engines.Failed}},
		"cold":        {engines.Model{Launcher: engines.Local, MaxReplicas: 1}, nil},
		"unavailable": {engines.Model{Launcher: engines.Upstream}, nil},
	} {
		fleet := engines.NewFleet()
		m.model.Name = "m"
		part := engines.Part{Models: []engines.Model{m.model}}
		for i, s := range m.replicas {
			part.Replicas = append(part.Replicas, engines.Replica{ID: string(rune('a' + i)), Model: "m", State: s})
		}
		fleet.Set("test", part)
		w := httptest.NewRecorder()
		api.New(api.Config{Fleet: fleet, Allowed: func(string, string) func(string) bool { return func(string) bool { return true } }}).ServeHTTP(w, httptest.NewRequest("GET", "/v1/models/m", nil))
		if !strings.Contains(w.Body.String(), `"state":"`+want+`"`) {
			t.Errorf("%s: %s", want, w.Body)
		}
	}
}
