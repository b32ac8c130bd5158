package routing

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// With a strategy that knows nothing of prompts, too, a response is continued, read, cancelled and
// deleted at the replica that has it. What no replica can serve is refused by name.
func TestE2E_R7_StoredResponses(t *testing.T) {
	t.Parallel()
	for mode, strategy := range map[string]string{"native": "round_robin", "managed": "least_connections"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			g := harness.Start(t, responseStores(t, mode, strategy))
			g.AwaitReplicas("m", 4)
			at := map[string]int{}
			for conversation := range 4 {
				at[converse(g, fmt.Sprint("topic ", conversation), mode)]++
			}
			if len(at) < 2 {
				t.Errorf("all conversations are at one replica, so this test shows nothing: %v", at)
			}
			checkStored(g)
		})
	}
}

// awaitStoredUsage waits until the ledger has what one response in the background has used, once.
func awaitStoredUsage(g *harness.Gateway) {
	g.T.Helper()
	harness.Eventually(g.T, "the usage is that of the response", func() error {
		var answer struct {
			Usage []struct {
				CompletionTokens int64 `json:"completion_tokens"`
			} `json:"usage"`
		}
		if err := g.TryGet("/api/v1/usage", &answer); err != nil {
			return err
		}
		if len(answer.Usage) != 1 || answer.Usage[0].CompletionTokens/storedTokens != 1 {
			return fmt.Errorf("%+v", answer)
		}
		return nil
	})
}

// checkStored uses a stored response in all ways.
func checkStored(g *harness.Gateway) {
	answer := g.Post("/v1/responses", `{"model":"m","input":"keep this","store":true,"background":true}`, "Idempotency-Key: keep this")
	id, home := responseID(g.T, answer), answer.Header.Get("X-Sluice-Replica")
	awaitSession(g, id)
	do := func(method, path string, status int, want string) {
		g.T.Helper()
		request, err := http.NewRequest(method, g.URL+path, http.NoBody)
		if err != nil {
			g.T.Fatal(err)
		}
		a := g.Do(harness.Client, request)
		if a.StatusCode != status || !strings.Contains(string(a.Content), want) || status == 200 && a.Header.Get("X-Sluice-Replica") != home {
			g.T.Errorf("%s %s, stored at %s, from %s: %s", method, path, home, a.Header.Get("X-Sluice-Replica"), a)
		}
	}
	do("GET", "/v1/responses/"+id+"?include=x", 200, `"did":"GET  include=x"`)
	do("GET", "/v1/responses/"+id, 200, `"did":"GET"`)
	awaitStoredUsage(g)
	do("GET", "/v1/responses/"+id+"/input_items", 200, `"did":"GET input_items"`)
	do("GET", "/responses/"+id+"/input_items?limit=3", 200, `"did":"GET input_items limit=3"`)
	for _, call := range []string{"input_tokens", "compact"} {
		for _, other := range []string{"", "And then?"} {
			a := g.Post("/v1/responses/"+call, fmt.Sprintf(`{"model":"m","input":%q,"previous_response_id":%q}`, other, id))
			if a.StatusCode != 200 || a.Header.Get("X-Sluice-Replica") != home {
				g.T.Errorf("%s of a response at %s, from %s: %s", call, home, a.Header.Get("X-Sluice-Replica"), a)
			}
		}
	}
	do("POST", "/v1/responses/"+id+"/cancel", 200, `"did":"POST cancel"`)
	if out, err := g.RunCommand("replicas", "drain", home, "-c", g.Config); err != nil {
		g.T.Fatalf("%v\n%s", err, out)
	}
	do("GET", "/v1/responses/"+id, 200, `"did":"GET"`)
	do("DELETE", "/v1/responses/"+id, 200, `"did":"DELETE"`)
	do("GET", "/v1/responses/"+id, 404, "has no such response")
	do("GET", "/v1/responses/resp_unknown", 404, `"code":"response_not_found"`)
	do("PUT", "/v1/responses/"+id, 405, "GET and DELETE")
	do("GET", "/v1/responses/"+id+"/other", 404, "There is nothing at this path.")
	if a := g.Post("/v1/responses", `{"model":"m","input":"x","conversation":"conv_1"}`); a.StatusCode != 400 || !strings.Contains(string(a.Content), `"param":"conversation"`) {
		g.T.Errorf("a conversation: %s", a)
	}
}
