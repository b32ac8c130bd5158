package routing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// startEngines starts a gateway whose replicas are the engines of other gateways, and returns the
// URLs of the replicas.
func startEngines(t *testing.T, n int) []string {
	t.Helper()
	g := harness.Start(t, fmt.Sprintf(`
models:
  - {name: m, engine: sim, launcher: local, replicas: {min: %d, max: %d}, variables: {prefill_rate: 20000, token_interval: 10ms}}
`, n, n))
	g.AwaitReplicas("m", n)
	var urls []string
	for _, r := range g.Replicas() {
		urls = append(urls, "http://"+r.Address)
	}
	return urls
}

// sharing returns the configuration of a gateway that shares a Redis and has these engines.
func sharing(redis *redistest.Server, engines ...string) string {
	return fmt.Sprintf(`
redis: %s
redis_timeout: 500ms
orphan_grace: 2s
models:
  - {name: m, launcher: upstream, upstreams: ["%s"], stream: {mode: managed}, admission: {max_per_replica: 100}}
`, redistest.URL(redis), strings.Join(engines, `", "`))
}

// id returns the id of the replica that an engine is.
func id(url string) string { return strings.TrimPrefix(url, "http://") }

// routeMetric returns the value of a metric of what gateways tell each other.
func routeMetric(g *harness.Gateway, name string) int {
	g.T.Helper()
	for line := range strings.Lines(g.AdminText("/metrics")) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				g.T.Fatal(line)
			}
			return int(n)
		}
	}
	return 0
}

const received = `sluice_route_placements_total{result="received"}`

// awaitPlacements waits until a gateway has heard of n placements.
func awaitPlacements(g *harness.Gateway, n int) {
	g.T.Helper()
	harness.Eventually(g.T, "the placements have been heard", func() error {
		if got := routeMetric(g, received); got < n {
			return fmt.Errorf("%d of %d", got, n)
		}
		return nil
	})
}

// document returns a prompt of about 8 kB that begins as no other one, and ends with a question.
func document(n int, question string) string {
	return strings.Repeat(fmt.Sprintf("This is line %d. ", n), 500) + question
}

// ask sends a chat of one message and returns the replica that has answered, and how much of the
// prompt it had cached.
func ask(g *harness.Gateway, message string, fields ...string) (replica string, cached, prompt int) {
	g.T.Helper()
	body := harness.ChatBody("m", false, 1, message)
	for _, f := range fields {
		body = strings.TrimSuffix(body, "}") + "," + f + "}"
	}
	a := g.Post(harness.ChatPath, body)
	var answer struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(a.Content, &answer); err != nil || a.StatusCode != http.StatusOK {
		g.T.Fatal(a, err)
	}
	return a.Header.Get("X-Sluice-Replica"), answer.Usage.Details.Cached, answer.Usage.Prompt
}

// askFirst asks a first question about documents from to to-1. It returns the replica that has
// answered for each document.
func askFirst(g *harness.Gateway, from, to int) map[int]string {
	g.T.Helper()
	at := map[int]string{}
	for n := from; n < to; n++ {
		at[n], _, _ = ask(g, document(n, "A question."))
	}
	return at
}

// wantFollow asks a second question about each document and expects the replica that has answered
// the first one.
func wantFollow(g *harness.Gateway, first map[int]string) {
	g.T.Helper()
	for n, want := range first {
		at, cached, prompt := ask(g, document(n, "A second question."))
		if at != want || cached < prompt*9/10 {
			g.T.Errorf("document %d: asked %s, which had %d of %d tokens; want %s", n, at, cached, prompt, want)
		}
	}
}

// What one gateway has sent to a replica, another one finds there. The first gateway has only two
// of the three engines, so without the news the second one would send a third of the documents to
// the other engine.
func TestE2E_B1_TwoGatewaysKnowWhatEachHasCached(t *testing.T) {
	t.Parallel()
	const documents = 12
	engines, redis := startEngines(t, 3), redistest.Start(t)
	a, b := harness.Start(t, sharing(redis, engines[1:]...)), harness.Start(t, sharing(redis, engines...))
	a.AwaitSharedState(true, 2)
	b.AwaitSharedState(true, 2)
	first := askFirst(a, 0, documents)
	awaitPlacements(b, documents)
	wantFollow(b, first)

	t.Run("while Redis is away each goes on alone", func(t *testing.T) {
		redis.Kill()
		a.AwaitSharedState(false, 0)
		b.AwaitSharedState(false, 0)
		first := askFirst(a, documents, 2*documents)
		askFirst(b, 1000, 1000+documents)
		heard := routeMetric(b, received)
		redis.Restart()
		awaitPlacements(b, heard+documents) // what was not heard comes first or with the latest ones
		wantFollow(b, first)
	})
}

func TestE2E_B1_B2_FourGatewaysKnowPromptsAndSessions(t *testing.T) {
	t.Parallel()
	const documents = 12
	engines, redis := startEngines(t, 3), redistest.Start(t)
	gateways := []*harness.Gateway{harness.Start(t, sharing(redis, engines[:2]...)), harness.Start(t, sharing(redis, engines[1:]...)),
		harness.Start(t, sharing(redis, engines...)), harness.Start(t, sharing(redis, engines...))}
	for _, g := range gateways {
		g.AwaitSharedState(true, 4)
	}
	key := func(n int) string { return fmt.Sprintf(`"prompt_cache_key":"session %d"`, n) }
	first, sessions := map[int]string{}, map[int]string{}
	for n := range documents {
		first[n] = askFirst(gateways[n%2], n, n+1)[n]
		sessions[n], _, _ = ask(gateways[n%2], fmt.Sprint("Hello ", n), key(n))
	}
	for _, g := range gateways[2:] {
		awaitPlacements(g, 2*documents)
	}
	for n := range documents {
		g := gateways[2+n/2%2]
		wantFollow(g, map[int]string{n: first[n]})
		at, _, _ := ask(g, fmt.Sprint("Another question, and it begins in another way ", n), key(n))
		if at != sessions[n] {
			t.Errorf("session %d left %s for %s", n, sessions[n], at)
		}
	}
}

// The process of before tells the new one what it has placed, as long as it carries something.
func TestE2E_B1_ARestartedGatewayKnowsWhatIsCached(t *testing.T) {
	t.Parallel()
	const documents = 12
	engines, redis := startEngines(t, 3), redistest.Start(t)
	g := harness.Start(t, sharing(redis, engines[1:]...))
	g.AwaitSharedState(true, 1)
	first := askFirst(g, 0, documents)
	stream, err := g.Open(context.Background(), harness.ChatPath, harness.ChatBody("m", true, 10_000, "A long story"), "x-request-id: story")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	g.Configure(sharing(redis, engines...))
	g.AwaitReplicas("m", 3)
	if out, err := g.RunCommand("restart", "-c", g.Config); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	awaitPlacements(g, documents)
	wantFollow(g, first)
}

// holder is an engine that answers at once, except prompts with the word "hold", which it holds.
func holder(t *testing.T) string {
	return harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "hold") {
			<-r.Context().Done()
			return
		}
		io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"ok"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`)
	})
}

// A gateway keeps away from a replica where much waits for another gateway, until that gateway has
// died.
func TestE2E_B1_TheWaitingTokensOfAKilledGatewayAreForgotten(t *testing.T) {
	t.Parallel()
	busy, idle, redis := holder(t), holder(t), redistest.Start(t)
	a, b := harness.Start(t, sharing(redis, busy)), harness.Start(t, sharing(redis, busy, idle))
	a.AwaitSharedState(true, 2)
	b.AwaitSharedState(true, 2)
	asked := 0
	// round returns how many of 16 new prompts go to the busy replica.
	round := func() (n int) {
		for range 16 {
			asked++
			if at, _, _ := ask(b, fmt.Sprint(asked, " is a number.")); at == id(busy) {
				n++
			}
		}
		return n
	}
	harness.Eventually(t, "the ring uses both replicas", func() error {
		if n := round(); n == 0 || n == 16 {
			return fmt.Errorf("%d of 16 prompts went to one of two idle replicas", n)
		}
		return nil
	})
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	left := make(chan struct{})
	go func() {
		defer close(left)
		a.TryPost(ctx, harness.ChatPath, harness.ChatBody("m", false, 1, "hold "+strings.Repeat("many words ", 200_000)))
	}()
	harness.Eventually(t, "no prompt goes to the busy replica", func() error {
		if n := round(); n > 0 {
			return fmt.Errorf("%d of 16", n)
		}
		return nil
	})
	a.Kill() // Envoy still holds the request, and nobody tells of it any more
	b.AwaitLogged("gateway gone", 1)
	harness.Eventually(t, "prompts go to the replica at which nothing waits any more", func() error {
		if round() == 0 {
			return errors.New("none of 16")
		}
		return nil
	})
	leave()
	harness.Receive(t, left, "the request that was held has ended")
}

// TestE2E_B1_R7_AnAgentContinuesItsResponseAtAnotherGateway: a client whose requests go to gateways
// in turn continues each response. The other gateway hears which replica has the response.
func TestE2E_B1_R7_AnAgentContinuesItsResponseAtAnotherGateway(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"native", "managed"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			config := "redis: " + redistest.URL(redistest.Start(t)) + "\n" + responseStores(t, mode, "round_robin")
			gateways := []*harness.Gateway{harness.Start(t, config), harness.Start(t, config)}
			for _, g := range gateways {
				g.AwaitReplicas("m", 4)
			}
			for _, g := range gateways {
				g.AwaitLogged("gateway heard, placements shared with it", 1)
			}
			previous := ""
			for turn := range 20 {
				body := map[string]any{"model": "m", "input": "And then?"}
				if previous != "" {
					body["previous_response_id"] = previous
				}
				b, _ := json.Marshal(body)
				headers := []string{"Accept-Encoding: identity"}
				if mode == "managed" {
					headers = append(headers, fmt.Sprint("Idempotency-Key: turn ", turn))
				}
				a := gateways[turn%2].Post("/v1/responses", string(b), headers...)
				if a.StatusCode != 200 {
					t.Fatalf("turn %d: %s", turn, a)
				}
				previous = responseID(t, a)
				awaitSession(gateways[(turn+1)%2], previous)
			}
		})
	}
}
