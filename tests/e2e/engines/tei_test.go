package engines

import (
	"encoding/json"
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
	}
	if err := json.Unmarshal(a.Content, &got); err != nil || a.StatusCode != 200 || len(got.Results) != 2 || got.Results[0].Index != 2 ||
		got.Results[0].Score != 0.75 || got.Results[0].Document.Text != "c" || got.Results[1].Index != 0 || a.Header.Get("X-Sluice-Source") != "engine" {
		t.Errorf("%v: %s", err, a)
	}
	if a := g.Post("/v1/rerank", `{"model":"r","query":"q","documents":[]}`); a.StatusCode != 400 || a.Code() != "invalid_request" {
		t.Errorf("%s", a)
	}
	g.AwaitIdle("r")
}
