package routing

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// picked is the answer of a pick.
type picked struct {
	Picked, Reason, Why string
	PromptTokens        int `json:"prompt_tokens"`
	Replicas            []struct {
		ID       string
		Matched  int     `json:"matched_tokens"`
		Uncached int     `json:"uncached_tokens"`
		Rate     float64 `json:"rate"`
		MS       float64 `json:"predicted_ms"`
	}
}

// explain asks where a chat with this body would go.
func explain(g *harness.Gateway, body map[string]any) (p picked) {
	g.T.Helper()
	text, _ := json.Marshal(body)
	answer, err := http.Post(g.Admin+"/api/v1/models/chat/pick", "application/json", strings.NewReader(string(text)))
	if err != nil {
		g.T.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&p); err != nil || answer.StatusCode != 200 {
		g.T.Fatalf("%s: %v", answer.Status, err)
	}
	return p
}

// TestE2E_B1_PicksAreExplained: what a pick tells of a body agrees with where the request goes and
// with what the engine then finds in its cache. The metrics have both.
func TestE2E_B1_PicksAreExplained(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, fmt.Sprintf(cachingSims, 3, 3, 1<<16))
	const documents, tokens = 6, 2048
	body := func(document int, question string) map[string]any {
		text := prose(fmt.Sprint("document", document), tokens) + question
		return map[string]any{"model": "chat", "stream": true, "stream_options": map[string]any{"include_usage": true}, "max_tokens": 4,
			"messages": []map[string]string{{"role": "user", "content": text}}}
	}
	for n := range documents {
		if _, err := send(g, harness.ChatPath, body(n, " What?")); err != nil {
			t.Fatal(err)
		}
	}
	for n := range documents {
		told := explain(g, body(n, " Why?"))
		if told.Picked == "" || told.Reason == "" || !strings.Contains(told.Why, told.Picked) || len(told.Replicas) != 3 {
			t.Fatalf("%+v", told)
		}
		for _, r := range told.Replicas {
			if cached := r.ID == told.Picked; cached != (r.Matched > told.PromptTokens/2) || r.MS <= 0 || r.Rate <= 0 {
				t.Errorf("document %d: %s is picked, and of %s is told %+v", n, told.Picked, r.ID, r)
			}
		}
		a, err := send(g, harness.ChatPath, body(n, " Why?"))
		if err != nil {
			t.Fatal(err)
		}
		if at := a.Header.Get("X-Sluice-Replica"); at != told.Picked {
			t.Errorf("document %d went to %s, told was %s (%s)", n, at, told.Picked, told.Why)
		}
	}
	harness.Eventually(t, "all are counted", func() error {
		predicted, real := g.Metric(`sluice_route_predicted_ttft_seconds_count{model="chat"}`), g.Metric(`sluice_route_ttft_seconds_count{model="chat"}`)
		if predicted != 2*documents || real != predicted {
			return fmt.Errorf("%v first tokens were predicted, %v measured", predicted, real)
		}
		return nil
	})
	matched, cached := g.Metric(matchedTokens), g.Metric(`sluice_route_cached_tokens_total{model="chat"}`)
	if cached < documents*tokens*0.95 || matched < 0.9*cached || matched > 1.1*cached {
		t.Errorf("%v tokens were cached, %v were predicted to be", cached, matched)
	}
}
