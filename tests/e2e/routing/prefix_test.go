package routing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// The simulated replicas of these tests count their cached tokens as vLLM does.
const (
	cacheHits = "vllm:prefix_cache_hits_total"
	// promptTokens and matchedTokens are the tokens of the prompts that have ended, and those of
	// them that were expected to be cached.
	promptTokens  = `sluice_route_prompt_tokens_total{model="chat"}`
	matchedTokens = `sluice_route_matched_tokens_total{model="chat"}`
)

// cachingSims is a configuration of replicas that prefill 20,000 tokens a second.
const cachingSims = `
models:
  - name: chat
    task: text-generation
    engine: sim
    replicas: {min: %d, max: %d}
    admission: {max_tokens_per_minute: 1000000000}
    variables: {prefill_rate: 20000, token_interval: 5ms, batch_slowdown: 0, cache_tokens: %d}
`

// prose returns a text of n tokens of the simulated engine, of four bytes each, that depends on
// what it is about.
func prose(about string, n int) string {
	seed := fnv.New64a()
	seed.Write([]byte(about))
	random := rand.New(rand.NewPCG(seed.Sum64(), 0))
	var b strings.Builder
	for range n {
		b.WriteByte(' ')
		for range 3 {
			b.WriteByte(byte('a' + random.IntN(26)))
		}
	}
	return b.String()
}

// engineTotal returns the sum of a metric over all replicas.
func engineTotal(g *harness.Gateway, name string) float64 {
	g.T.Helper()
	sum := 0.0
	for _, r := range g.Replicas() {
		sum += harness.EngineMetric(g.T, r.Address, name)
	}
	return sum
}

// beginning is a way to put a beginning that many requests share before a question of their own.
type beginning struct {
	name, path string
	body       func(beginning, question string, stream bool) map[string]any
}

// beginnings are the ways of the APIs.
func beginnings() []beginning {
	type object = map[string]any
	message := func(role, text string) object { return object{"role": role, "content": text} }
	return []beginning{
		{"user message", harness.ChatPath, func(b, q string, stream bool) object {
			return object{"stream": stream, "max_tokens": 4, "messages": []object{message("user", b+q)}}
		}},
		{"system message", harness.ChatPath, func(b, q string, stream bool) object {
			return object{"stream": stream, "max_tokens": 4, "messages": []object{message("system", b), message("user", q)}}
		}},
		{"completion", "/v1/completions", func(b, q string, stream bool) object {
			return object{"stream": stream, "max_tokens": 4, "prompt": b + q}
		}},
		{"response", "/v1/responses", func(b, q string, stream bool) object {
			return object{"stream": stream, "max_output_tokens": 4, "instructions": b, "input": q}
		}},
	}
}

// sendAll sends the requests, up to so many at once, and fails the test unless each is answered
// with 200.
func sendAll(g *harness.Gateway, path string, atOnce int, bodies []map[string]any) {
	g.T.Helper()
	var senders errgroup.Group
	senders.SetLimit(atOnce)
	for _, body := range bodies {
		senders.Go(func() error {
			_, err := send(g, path, body)
			return err
		})
	}
	if err := senders.Wait(); err != nil {
		g.T.Fatal(err)
	}
}

// send sends a request to the model chat and returns its answer, whose status is 200.
func send(g *harness.Gateway, path string, body map[string]any, headers ...string) (*harness.Answer, error) {
	body["model"] = "chat"
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	a, err := g.TryPost(context.Background(), path, string(text), headers...)
	if err == nil && a.StatusCode != 200 {
		err = errors.New(a.String())
	}
	return a, err
}

// TestE2E_B1_SharedBeginningsAreCached: 192 beginnings do not fit into the caches of two replicas.
// They fit into those of three, even if one replica gets a third more than its share. It can get
// that before the gateway has learned how fast the replicas are. After each beginning was sent
// once, at least 95 % of their tokens are cached, by the engines' own counts.
func TestE2E_B1_SharedBeginningsAreCached(t *testing.T) {
	t.Parallel()
	const many, tokens, withQuestion = 192, 512, 544
	g := harness.Start(t, fmt.Sprintf(cachingSims, 3, 3, 90*withQuestion))
	for _, way := range beginnings() {
		round := func(n int) (bodies []map[string]any) {
			for i := range many {
				bodies = append(bodies, way.body(prose(fmt.Sprint(way.name, i), tokens), prose(fmt.Sprint("q", n, "x", i), 8), i%2 == 0))
			}
			return bodies
		}
		sendAll(g, way.path, 8, round(0))
		hits := engineTotal(g, cacheHits)
		for n := 1; n <= 2; n++ {
			sendAll(g, way.path, 8, round(n))
		}
		share := (engineTotal(g, cacheHits) - hits) / (2 * many * tokens)
		t.Logf("%s: %.1f %% cached", way.name, 100*share)
		if share < 0.95 {
			t.Errorf("%s: %.1f %% of the beginnings' tokens were cached, want 95 %%", way.name, 100*share)
		}
	}
}

// talk is a conversation of chat messages.
type talk struct {
	messages []map[string]any
	// homes are the replicas that served its turns.
	homes []string
}

// turn sends a message and appends the answer.
func (c *talk) turn(g *harness.Gateway, text string) error {
	c.messages = append(c.messages, map[string]any{"role": "user", "content": text})
	a, err := send(g, harness.ChatPath, map[string]any{"messages": c.messages, "max_tokens": 16, "ignore_eos": true})
	if err != nil {
		return err
	}
	var reply struct {
		Choices []struct{ Message map[string]any }
	}
	if err := json.Unmarshal(a.Content, &reply); err != nil {
		return err
	}
	message := reply.Choices[0].Message
	c.messages = append(c.messages, map[string]any{"role": "assistant", "content": message["content"]})
	c.homes = append(c.homes, a.Header.Get("X-Sluice-Replica"))
	return nil
}

// TestE2E_B1_FollowUpsStay: at least 99 % of the follow-up turns are served where the turn before
// was, with one conversation and with four for each replica.
func TestE2E_B1_FollowUpsStay(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, fmt.Sprintf(cachingSims, 4, 4, 1<<18))
	const turns, conversations = 5, 60
	for _, load := range []struct {
		name   string
		atOnce int
	}{{"low", 4}, {"middle", 16}} {
		talks := make([]talk, conversations)
		var senders errgroup.Group
		senders.SetLimit(load.atOnce)
		for i := range talks {
			senders.Go(func() error {
				err := talks[i].turn(g, prose(fmt.Sprint(load.name, i), 1000))
				for n := 1; n < turns && err == nil; n++ {
					err = talks[i].turn(g, prose(fmt.Sprint("again", n, "x", i), 100))
				}
				return err
			})
		}
		if err := senders.Wait(); err != nil {
			t.Fatal(err)
		}
		moved, at := 0, map[string]int{}
		for _, c := range talks {
			at[c.homes[0]]++
			for n := 1; n < turns; n++ {
				if c.homes[n] != c.homes[n-1] {
					moved++
				}
			}
		}
		t.Logf("%s load: %d of %d follow-up turns moved, first turns at %v", load.name, moved, conversations*(turns-1), at)
		if 100*moved > conversations*(turns-1) || len(at) != 4 {
			t.Errorf("%s load: %d of %d follow-up turns moved, first turns at %v", load.name, moved, conversations*(turns-1), at)
		}
	}
}

// TestE2E_B1_HotSystemPromptSpreads: a system prompt that all requests share is soon cached
// everywhere, and no replica gets far more of the requests than the others.
func TestE2E_B1_HotSystemPromptSpreads(t *testing.T) {
	t.Parallel()
	const many, system, question = 240, 1000, 200
	g := harness.Start(t, fmt.Sprintf(cachingSims, 4, 4, 1<<18))
	var mu sync.Mutex
	at := map[string]int{}
	var senders errgroup.Group
	senders.SetLimit(24)
	for i := range many {
		senders.Go(func() error {
			a, err := send(g, harness.ChatPath, map[string]any{"max_tokens": 8, "ignore_eos": true, "messages": []map[string]any{
				{"role": "system", "content": prose("system", system)}, {"role": "user", "content": prose(fmt.Sprint("q", i), question)}}})
			if err != nil {
				return err
			}
			mu.Lock()
			at[a.Header.Get("X-Sluice-Replica")]++
			mu.Unlock()
			return nil
		})
	}
	if err := senders.Wait(); err != nil {
		t.Fatal(err)
	}
	for id, n := range at {
		if 4*n > many*3/2 {
			t.Errorf("%s served %d of %d requests with one system prompt", id, n, many)
		}
	}
	// Each replica computes the system prompt once, and never again.
	if share := engineTotal(g, cacheHits) / (many * system); len(at) != 4 || share < 0.9 {
		t.Errorf("%.1f %% of the system prompts were cached; requests at %v", 100*share, at)
	}
}

// TestE2E_B1_ARestartedReplicaIsForgotten: after a replica has died, nobody expects its successor
// to have the prompts of before.
func TestE2E_B1_ARestartedReplicaIsForgotten(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, fmt.Sprintf(cachingSims, 2, 2, 1<<18))
	// again sends the same prompt and returns which replica served it, and how much of it was
	// expected to be cached there.
	again := func() (replica string, matched float64) {
		before, ended := g.Metric(matchedTokens), g.Metric(promptTokens)
		a, err := send(g, "/v1/completions", map[string]any{"prompt": prose("again", 1600), "max_tokens": 2})
		if err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "the request is counted", func() error {
			if g.Metric(promptTokens) == ended {
				return errors.New("not yet")
			}
			return nil
		})
		return a.Header.Get("X-Sluice-Replica"), g.Metric(matchedTokens) - before
	}
	again()
	home, matched := again()
	if matched < 1400 {
		t.Errorf("%v tokens of a repeated prompt of 1600 are expected in the cache", matched)
	}
	old := g.Replicas()[home]
	if err := syscall.Kill(old.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the successor is ready", func() error {
		if r := g.Replicas()[home]; r.State != "ready" || r.PID == old.PID {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	if _, matched := again(); matched != 0 {
		t.Errorf("%v tokens are expected in the cache of a replica that has just started", matched)
	}
}

// TestE2E_B1_CappedPrefill: max_prefill_tokens_per_replica bounds the uncached tokens that wait at
// a replica. Further requests wait in the gateway.
func TestE2E_B1_CappedPrefill(t *testing.T) {
	t.Parallel()
	config := strings.Replace(fmt.Sprintf(cachingSims, 1, 1, 1<<18), "prefill_rate: 20000", "prefill_rate: 4000", 1)
	g := harness.Start(t, strings.Replace(config, "admission: {", "admission: {max_prefill_tokens_per_replica: 10000, ", 1))
	var senders errgroup.Group
	for i := range 4 {
		senders.Go(func() error {
			_, err := send(g, "/v1/completions", map[string]any{"prompt": prose(fmt.Sprint("long", i), 6000), "max_tokens": 1})
			return err
		})
	}
	// Two prompts of 6,000 tokens are more than 10,000.
	g.AwaitModel("chat", "one prefills, three wait here", func(m harness.Model) bool { return m.InFlight == 1 && m.Queued == 3 })
	if err := senders.Wait(); err != nil {
		t.Error(err)
	}
}
