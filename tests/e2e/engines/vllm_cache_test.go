//go:build vllm

package engines

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// twinBlocks is the size of the caches of the engines that are compared, in blocks. vLLM keeps one
// more block for itself. twinBlock is the size of a block in tokens: on a CPU, vLLM needs 32.
const twinBlocks, twinBlock = 63, 32

// startTwins starts a vLLM and a simulated engine with the same cache behind one gateway. The
// simulated engine has a token each interval. It returns the gateway and their addresses.
func startTwins(t *testing.T, interval string) (g *harness.Gateway, vllm, sim string) {
	t.Helper()
	g = harness.Prepare(t, registry(vllmModels(t))+"models:"+
		vllmModel("tiny", "text-generation", "llama", "min: 1, max: 1",
			fmt.Sprintf(", max_model_len: 1024, block_size: %d, num_gpu_blocks_override: %d, enable_prompt_tokens_details: true", twinBlock, twinBlocks+1))+fmt.Sprintf(`
  - name: twin
    task: text-generation
    engine: sim
    variables: {prefill_rate: 0, token_interval: %s, max_num_seqs: 8, block_size: %d, cache_tokens: %d}
`, interval, twinBlock, twinBlocks*twinBlock))
	t.Cleanup(g.Stop)
	g.Launch()
	awaitReplicas(g, "tiny", 1)
	awaitReplicas(g, "twin", 1)
	return g, g.Replicas()["tiny-0"].Address, g.Replicas()["twin-0"].Address
}

// awaitReplicas waits until so many replicas of the model are ready, for as long as vLLM may take.
func awaitReplicas(g *harness.Gateway, model string, n int) {
	g.T.Helper()
	eventuallyFor(g.T, fmt.Sprint(n, " replicas of ", model), func() error {
		var list struct{ Models []harness.Model }
		if err := g.TryGet("/api/v1/models", &list); err != nil {
			return err
		}
		i := slices.IndexFunc(list.Models, func(m harness.Model) bool { return m.Name == model })
		if i < 0 || list.Models[i].Ready != n {
			return fmt.Errorf("%+v", list)
		}
		return nil
	})
}

// TestE2E_B1_VLLM_TheSimulatedCacheIsVLLMs sends the same prompts to vLLM and to a simulated
// engine, whose caches are too small for all of them. Both must find the same tokens of each.
func TestE2E_B1_VLLM_TheSimulatedCacheIsVLLMs(t *testing.T) {
	g, vllm, sim := startTwins(t, "0s")
	random := rand.New(rand.NewPCG(14, 3))
	var talks []*twinTalk
	cached := 0
	for step := range 300 {
		i := random.IntN(len(talks) + 1)
		if i == len(talks) || len(talks[i].prompts[0]) > 600 {
			// A new conversation, some with a beginning that others have.
			talk := &twinTalk{salt: []string{"", "", "", "salt"}[random.IntN(4)]}
			talk.say(letters(1+random.IntN(3), 40+random.IntN(120)) + letters(100+step, random.IntN(80)))
			talks = append(talks, talk)
			i = len(talks) - 1
		}
		talk := talks[i]
		limit := 1 + random.IntN(20)
		v, s := talk.ask(g, "tiny", 0, limit), talk.ask(g, "twin", 1, limit)
		if v != s {
			t.Fatalf("step %d, conversation %d (%+v): vLLM %+v, simulated %+v", step, i, talk, v, s)
		}
		cached += v.Cached
		if random.IntN(3) > 0 { // else the next request repeats the prompt, without the answer
			talk.goOn(letters(200+step, random.IntN(60)))
		}
	}
	for _, name := range []string{"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"} {
		if v, s := harness.EngineMetric(t, vllm, name), harness.EngineMetric(t, sim, name); v != s {
			t.Errorf("%s: vLLM %v, simulated %v", name, v, s)
		}
	}
	if hits := harness.EngineMetric(t, vllm, "vllm:prefix_cache_hits_total"); int(hits) != cached || cached == 0 {
		t.Errorf("%v hits and %d cached tokens in the answers", hits, cached)
	}
	t.Logf("%d of %v tokens were cached", cached, harness.EngineMetric(t, vllm, "vllm:prefix_cache_queries_total"))
}

// letters returns a text of 2n tokens that depends on a seed. Each byte is a token of both engines.
func letters(seed, n int) string {
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	var b strings.Builder
	for range n {
		b.WriteByte(byte('a' + random.IntN(26)))
		b.WriteByte('\n')
	}
	return b.String()
}

// twinTalk is a conversation with two engines, which answer differently.
type twinTalk struct {
	salt string
	// prompts and answers are those of each engine.
	prompts, answers [2]string
}

// say appends a text to the prompts.
func (c *twinTalk) say(text string) {
	for i := range c.prompts {
		c.prompts[i] += text
	}
}

// goOn appends the answers to the prompts, and a text to both.
func (c *twinTalk) goOn(text string) {
	for i := range c.prompts {
		c.prompts[i] += c.answers[i]
		c.answers[i] = ""
	}
	c.say("\n" + text)
}

// twinUsage is what an engine tells of a prompt, in tokens.
type twinUsage struct{ Prompt, Cached, Answer int }

// ask sends the prompt of engine i to a model.
func (c *twinTalk) ask(g *harness.Gateway, model string, i, limit int) twinUsage {
	g.T.Helper()
	request := map[string]any{"model": model, "prompt": c.prompts[i], "max_tokens": limit, "ignore_eos": true, "temperature": 0}
	if c.salt != "" {
		request["cache_salt"] = c.salt
	}
	body, err := json.Marshal(request)
	if err != nil {
		g.T.Fatal(err)
	}
	var reply struct {
		Choices []struct{ Text string }
		Usage   cacheUsage
	}
	if err := ask(g, "/v1/completions", string(body), &reply); err != nil {
		g.T.Fatal(err)
	}
	c.answers[i] = reply.Choices[0].Text
	return twinUsage{reply.Usage.Prompt, reply.Usage.Details.Cached, reply.Usage.Completion}
}

// cacheUsage is the usage with what was cached. vLLM leaves out details without a cached token.
type cacheUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// TestE2E_B1_VLLM_HeadersComeBeforeTheFirstToken: both engines answer a stream with its headers
// while the request still waits for a slot, and send the first event with the first token.
func TestE2E_B1_VLLM_HeadersComeBeforeTheFirstToken(t *testing.T) {
	_, vllm, sim := startTwins(t, "10ms")
	for address, model := range map[string]string{vllm: "tiny", sim: "twin"} {
		var running []*http.Response
		for range 8 {
			running = append(running, openStream(t, address, model, 900))
		}
		waiting := openStream(t, address, model, 1) // its headers are here
		defer waiting.Body.Close()
		harness.Eventually(t, "the ninth waits, after its headers", func() error {
			if n := harness.EngineMetric(t, address, "vllm:num_requests_waiting"); n != 1 {
				return fmt.Errorf("%s: %v requests wait", model, n)
			}
			return nil
		})
		first := bufio.NewReader(waiting.Body)
		for _, r := range running {
			r.Body.Close()
		}
		if line, err := first.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
			t.Errorf("%s: the first line is %q: %v", model, line, err)
		}
	}
}

// openStream opens a stream of tokens, straight to an engine.
func openStream(t *testing.T, address, model string, tokens int) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+harness.ChatPath, strings.NewReader(chatOf(model, true, tokens, "hello")))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	r, err := harness.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != http.StatusOK {
		t.Fatal(r.Status)
	}
	return r
}

// TestE2E_B1_VLLM_TwoReplicasCacheAsPredicted: conversations before two vLLMs stay where their
// turns were, and vLLM's own counter of cached tokens rises by what the gateway has predicted.
func TestE2E_B1_VLLM_TwoReplicasCacheAsPredicted(t *testing.T) {
	g := harness.Prepare(t, registry(vllmModels(t))+"models:"+
		vllmModel("tiny", "text-generation", "llama", "min: 2, max: 2", ", max_model_len: 4096, enable_prompt_tokens_details: true")+
		"    admission: {max_tokens_per_minute: 1000000000}\n")
	t.Cleanup(g.Stop)
	g.Launch()
	awaitReplicas(g, "tiny", 2)
	total := func(name string) (sum float64) {
		for _, r := range g.Replicas() {
			sum += harness.EngineMetric(t, r.Address, name)
		}
		return sum
	}
	share, moved := hitRate(g, "m")
	harness.Eventually(t, "all requests are counted", func() error {
		n, asked := g.Metric(`sluice_tokens_total{kind="prompt",model="tiny",tenant="anyone"}`), total("vllm:prefix_cache_queries_total")
		if n != asked {
			return fmt.Errorf("%v of %v tokens", n, asked)
		}
		return nil
	})
	predicted, real := g.Metric(`sluice_route_matched_tokens_total{model="tiny"}`), total("vllm:prefix_cache_hits_total")
	t.Logf("%.2f of the tokens were cached; %v were predicted, %v found; %d conversations moved", share, predicted, real, moved)
	if moved > 0 || predicted < 0.9*real || predicted > 1.1*real || share < 0.5 {
		t.Errorf("%.2f of the tokens were cached; %v were predicted, %v found; %d conversations moved", share, predicted, real, moved)
	}
}
