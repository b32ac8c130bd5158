package edge

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_N3_AnAdapterIsPermittedAlone has tenants and keys of one adapter, which is all that they
// may use, and a tenant of the model, which includes the adapters.
func TestE2E_N3_AnAdapterIsPermittedAlone(t *testing.T) {
	t.Parallel()
	upstream := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "base") {
			return
		}
		if strings.HasPrefix(r.URL.Path, "/v1/responses") {
			w.Header().Set("content-type", "application/json")
			io.WriteString(w, `{"id":"resp_1","object":"response"}`)
			return
		}
		w.Header().Set("content-type", "text/event-stream")
		io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	})
	g := harness.Start(t, fmt.Sprintf(`
auth: {mode: keys}
models: [{name: base, adapters: [sql, prose], launcher: upstream, upstreams: [%q]}]
tenants:
  - {name: acme, models: [sql], keys: [%q]}
  - {name: beta, models: [base], keys: [%q, {hash: %q, models: [prose]}]}
`, upstream, authz.HashKey("acme"), authz.HashKey("beta"), authz.HashKey("narrow")))
	for key, permitted := range map[string][]string{"acme": {"sql"}, "beta": {"base", "prose", "sql"}, "narrow": {"prose"}} {
		header := "authorization: Bearer " + key
		for _, model := range []string{"base", "prose", "sql"} {
			want := http.StatusNotFound
			if slices.Contains(permitted, model) {
				want = http.StatusOK
			}
			chat := strings.TrimSuffix(harness.ChatBody(model, true, 1, "x"), "}")
			for what, a := range map[string]*harness.Answer{
				"native":   g.Post(harness.ChatPath, chat+"}", header),
				"managed":  g.Post(harness.ChatPath, chat+`,"request_id":"`+key+"-"+model+`"}`, header),
				"a task":   g.Post("/schedule", `{"request_id":"`+key+"/"+model+`","model":"`+model+`","estimated_tokens":1}`, header),
				"the card": g.Fetch("/v1/models/"+model, header),
			} {
				if a.StatusCode != want || want == http.StatusNotFound && a.Code() != "model_not_found" {
					t.Errorf("%s of %s with the key %s: %v, want %d", what, model, key, a, want)
				}
			}
			list := string(g.Fetch("/v1/models", header).Content)
			if strings.Contains(list, `"id":"`+model+`"`) != (want == http.StatusOK) {
				t.Errorf("the list with the key %s: %s", key, list)
			}
		}
	}
	if a := g.Fetch("/v1/streams/beta-base", "authorization: Bearer narrow"); a.StatusCode != http.StatusNotFound {
		t.Errorf("a key of an adapter reads a stream of the model: %v", a)
	}
	g.Post("/v1/responses", `{"model":"sql","input":"x"}`, "authorization: Bearer acme")
	harness.Eventually(t, "a response of the adapter is read again", func() error {
		if a := g.Fetch("/v1/responses/resp_1", "authorization: Bearer acme"); a.StatusCode != http.StatusOK {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
}
