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

func TestAPI(t *testing.T) {
	fleet := engines.NewFleet()
	fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "org/big"}, {Name: "small", Aliases: []string{"tiny"}},
		{Name: "elsewhere", Launcher: engines.None}}})
	h := api.New(api.Config{
		Fleet:   fleet,
		Allowed: func(tenant, model string) bool { return tenant == "all" || tenant == "some" && model == "small" },
		Pools:   func() []string { return []string{"auto", "small"} },
		Created: time.Unix(1700000000, 0),
	})
	const small = `{"id":"small","object":"model","created":1700000000,"owned_by":"sluice"}`
	const big = `{"id":"org/big","object":"model","created":1700000000,"owned_by":"sluice"}`
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
