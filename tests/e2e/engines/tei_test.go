package engines

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A model of text-embeddings-inference reranks by the same API as all others.
func TestE2E_N1_T6_RerankOnTEI(t *testing.T) {
	t.Parallel()
	tei := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "r") {
			return
		}
		var asked struct {
			Query string
			Texts []string
		}
		if json.NewDecoder(r.Body).Decode(&asked) != nil || r.URL.Path != "/rerank" || asked.Query != "q" || len(asked.Texts) != 3 {
			w.WriteHeader(422)
			return
		}
		w.Header().Set("x-compute-tokens", "31")
		io.WriteString(w, `[{"index":2,"score":0.75},{"index":0,"score":0.5},{"index":1,"score":0.25}]`)
	})
	g := harness.Start(t, `
models:
  - {name: r, launcher: upstream, task: rerank, rerank_api: tei, upstreams: ["`+tei+`"]}
`)
	a := g.Post("/v1/rerank", `{"model":"r","query":"q","documents":["a","b",{"text":"c"}],"top_n":2}`)
	var got struct {
		Model   string
		Results []struct {
			Index    int
			Score    float64 `json:"relevance_score"`
			Document struct{ Text string }
		}
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	if err := json.Unmarshal(a.Content, &got); err != nil || a.StatusCode != 200 || len(got.Results) != 2 || got.Results[0].Index != 2 ||
		got.Results[0].Score != 0.75 || got.Results[0].Document.Text != "c" || got.Results[1].Index != 0 || a.Header.Get("X-Sluice-Source") != "engine" {
		t.Errorf("%v: %s", err, a)
	}
	var list struct {
		Requests []struct {
			TokensIn  int  `json:"tokens_in"`
			Estimated bool `json:"estimated"`
		} `json:"requests"`
	}
	harness.Eventually(t, "the client and the list are told the usage", func() error {
		g.Get("/api/v1/requests?limit=1", &list)
		if got.Usage.Prompt != 31 || len(list.Requests) != 1 || list.Requests[0].TokensIn != 31 || list.Requests[0].Estimated {
			return fmt.Errorf("the client is told %d tokens, and the list has %+v", got.Usage.Prompt, list)
		}
		return nil
	})
	if a := g.Post("/v1/rerank", `{"model":"r","query":"q","documents":[]}`); a.StatusCode != 400 || a.Code() != "invalid_request" {
		t.Errorf("%s", a)
	}
	g.AwaitIdle("r")
}
