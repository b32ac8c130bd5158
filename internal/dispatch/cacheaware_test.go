package dispatch

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// words is a text of about n tokens that no other name has.
func words(name string, n int) string { return strings.Repeat(name+" ", n) }

// ask is a chat of these messages, alternately of the user and of the model; change may change the
// body.
func ask(t testing.TB, change func(body map[string]any), messages ...string) *Request {
	t.Helper()
	list := []map[string]string{}
	for i, text := range messages {
		list = append(list, map[string]string{"role": []string{"user", "assistant"}[i%2], "content": text})
	}
	body := map[string]any{"model": "m", "messages": list}
	if change != nil {
		change(body)
	}
	return scanned(t, openai.Chat, body)
}

func scanned(t testing.TB, e openai.Endpoint, body map[string]any) *Request {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	scan, fault := openai.Scan(e, "application/json", raw)
	if fault != nil {
		t.Fatal(fault)
	}
	return NewRequest(Caller{Tenant: &authz.Tenant{Name: "t", Models: []string{"*"}}}, &scan, raw)
}

// answer dispatches a request that ends at once, and returns its replica.
func (s stage) answer(t *testing.T, r *Request) string {
	t.Helper()
	ticket := s.must(t, r)
	ticket.Release()
	return ticket.Replica()
}

// TestB1_SharedBeginnings: prompts that share a long beginning inside one message of the user, with
// own questions behind it, come to the replica that has the beginning.
func TestB1_SharedBeginnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{LoadFloor: 8, UserMessages: 2})
		s.put("m", replicas("a", "b", "c", "d")...)
		home, used := map[int]string{}, map[string]bool{}
		for round := range 4 {
			for n := range 24 {
				time.Sleep(time.Second)
				text := words(fmt.Sprint("document", n), 500) + fmt.Sprintf("question %d of %d", round, n)
				at := s.answer(t, ask(t, nil, text))
				if round == 0 {
					home[n], used[at] = at, true
				} else if at != home[n] {
					t.Errorf("question %d about document %d went to %s, not to %s", round, n, at, home[n])
				}
			}
		}
		if len(used) != 4 {
			t.Errorf("24 documents went to %v", used)
		}
	})
}

// TestB1_ALongQueueIsLeft: a replica that has the beginning but computes for long is left.
func TestB1_ALongQueueIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{LoadFloor: 8, PrefillRate: 5000})
		s.put("m", replicas("a", "b")...)
		first := s.must(t, ask(t, nil, words("shared", 1000)))
		first.FirstToken()
		home := first.Replica()
		busy := s.must(t, ask(t, nil, words("shared", 1000)+words("more", 40_000)))
		if busy.Replica() != home {
			t.Fatalf("the long prompt went to %s, not to %s", busy.Replica(), home)
		}
		ticket := s.must(t, ask(t, nil, words("shared", 1000)+"?"))
		if ticket.Replica() == home {
			t.Error("a short prompt waits behind a long one, although the other replica is idle")
		}
		if p := ticket.Prediction(); p.Moved != moveLoad {
			t.Errorf("the move is explained by %q", p.Moved)
		}
		time.Sleep(time.Minute) // as predicted, the long prompt is computed
		if ticket = s.must(t, ask(t, nil, words("shared", 1000)+words("more", 30_000))); ticket.Replica() != home {
			t.Errorf("a prompt went to %s, not to %s, which has nearly all of it", ticket.Replica(), home)
		}
	})
}

// TestB1_AReplicaThatRestartedIsForgotten: a new process has an empty cache.
func TestB1_AReplicaThatRestartedIsForgotten(t *testing.T) {
	s := newStage(Policy{LoadFloor: 8})
	s.put("m", replicas("a", "b")...)
	r := ask(t, nil, words("shared", 2000))
	home := s.answer(t, r)
	matched := func() (all int) {
		told, _ := s.Explain("m", Question{Request: r})
		for _, c := range told.Order {
			all += c.MatchedTokens
		}
		return all
	}
	if matched() == 0 {
		t.Fatal("no replica has the prompt")
	}
	list := replicas("a", "b")
	for i := range list {
		if list[i].ID == home {
			list[i].Restarts = 1
		}
	}
	s.put("m", list...)
	s.rebuild()
	if n := matched(); n != 0 {
		t.Errorf("after the restart %d tokens are believed to be cached", n)
	}
}

// TestB1_EnginesOfOthersCount: requests that somebody else has sent to an engine keep requests of
// the gateway away from it.
func TestB1_EnginesOfOthersCount(t *testing.T) {
	s := newStage(Policy{LoadFloor: 8})
	s.put("m", replicas("a", "b")...)
	r := ask(t, nil, words("shared", 200))
	home := s.answer(t, r)
	s.SetEngineNews(home, EngineNews{Running: 20, Waiting: 20})
	if at := s.answer(t, r); at == home {
		t.Errorf("the request went to %s, where 20 of somebody else wait", at)
	}
	s.SetEngineNews(home, EngineNews{})
	if told, _ := s.Explain("m", Question{Request: r}); told.Order[0].WaitingTokens+told.Order[1].WaitingTokens != 0 {
		t.Errorf("the waiting tokens stay: %+v", told.Order)
	}
	s.SetEngineNews("unknown", EngineNews{Running: 1})
}

// TestB1_WhatOtherGatewaysTell is taken into account: placements and waiting tokens.
func TestB1_WhatOtherGatewaysTell(t *testing.T) {
	var told []Placement
	fleet := newStage(Policy{LoadFloor: 8})
	fleet.config.OnPlaced = func(p Placement) { told = append(told, p) }
	fleet.put("m", replicas("a", "b", "c", "d")...)
	other := newStage(Policy{LoadFloor: 8})
	other.put("m", replicas("a", "b", "c", "d")...)
	for n := range 20 {
		r := ask(t, func(b map[string]any) { b["prompt_cache_key"] = fmt.Sprint("key ", n) }, words(fmt.Sprint("text", n), 300))
		at := fleet.answer(t, r)
		if len(told) != 1 || told[0].Model != "m" || told[0].Replica != at {
			t.Fatalf("told: %+v, want one placement at %s", told, at)
		}
		other.Place(told[0])
		told = nil
		if got := other.answer(t, ask(t, nil, words(fmt.Sprint("text", n), 300)+"?")); got != at {
			t.Errorf("text %d is on %s, and the other gateway chose %s", n, at, got)
		}
		onlySession := ask(t, func(b map[string]any) { b["prompt_cache_key"] = fmt.Sprint("key ", n) }, "hi")
		if got := other.answer(t, onlySession); got != at {
			t.Errorf("session %d is on %s, and the other gateway chose %s", n, at, got)
		}
	}
	r := ask(t, nil, words("text0", 300))
	at := other.answer(t, r)
	other.SetRemoteWaiting("g2", map[string]int64{at: 100_000, "unknown": 5})
	if got := other.answer(t, r); got == at {
		t.Errorf("the request went to %s, where 100,000 tokens of another gateway wait", got)
	}
	other.SetRemoteWaiting("g2", nil)
	again, _ := other.Explain("m", Question{Request: r})
	for _, c := range again.Order {
		if c.WaitingTokens > 0 {
			t.Errorf("%d tokens wait at %s although the other gateway is gone", c.WaitingTokens, c.ID)
		}
	}
	if n := len(other.WaitingTokens()); n != 0 {
		t.Errorf("%d replicas have waiting tokens of this gateway", n)
	}
	ticket := other.must(t, ask(t, nil, words("long", 50_000)))
	if n := other.WaitingTokens()[ticket.Replica()]; n < 10_000 {
		t.Errorf("%d tokens wait", n)
	}
}

// TestB2_Sessions: a session stays on its replica, whichever way it is named, as long as the
// replica is not much slower.
func TestB2_Sessions(t *testing.T) {
	for name, mark := range map[string]func(b map[string]any, r *Request){
		"prompt_cache_key": func(b map[string]any, _ *Request) { b["prompt_cache_key"] = "s" },
		"header":           func(_ map[string]any, r *Request) { r.Session = "header:s" },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(Policy{LoadFloor: 8})
			s.put("m", eight()...)
			make := func(text string) *Request {
				body := map[string]any{"model": "m", "messages": []map[string]string{{"role": "user", "content": text}}}
				mark(body, &Request{})
				r := scanned(t, openai.Chat, body)
				mark(map[string]any{}, r)
				return r
			}
			home := s.answer(t, make("turn 0"))
			for n := range 10 {
				if at := s.answer(t, make(fmt.Sprint("a text that shares nothing ", n))); at != home {
					t.Errorf("turn %d went to %s, not to %s", n, at, home)
				}
			}
			stranger := make("turn 0")
			stranger.Tenant = "other"
			told, _ := s.Explain("m", Question{Request: stranger})
			if told.Reason == "session" {
				t.Error("another tenant has the session")
			}
			s.SetRemoteWaiting("g2", map[string]int64{home: 100_000})
			if at := s.answer(t, make("turn 11")); at == home {
				t.Error("the session waits for 100,000 tokens of others")
			}
		})
	}
}

// TestB2_PreviousResponse: a request that continues a response goes to its replica, however long
// that replica has to compute before, and waits for a slot there.
func TestB2_PreviousResponse(t *testing.T) {
	s := newStage(Policy{LoadFloor: 8, PrefillRate: 5000})
	s.put("m", eight()...)
	first := s.must(t, scanned(t, openai.Responses, map[string]any{"model": "m", "input": words("long", 20_000)}))
	home := first.Replica()
	if !first.WantsResponseID() {
		t.Error("the id of the response is not wanted")
	}
	first.LearnResponse("resp_1")
	first.FirstToken()
	first.Correct(Response{Known: true, Prompt: 25_000, Completion: 100})
	first.Release()
	s.SetRemoteWaiting("g2", map[string]int64{home: 500_000})
	next := func(id string) *Request {
		return scanned(t, openai.Responses, map[string]any{"model": "m", "input": "and now?", "previous_response_id": id})
	}
	if at := s.answer(t, next("resp_1")); at != home {
		t.Errorf("the next request went to %s, not to %s", at, home)
	}
	if told, _ := s.Explain("m", Question{Request: next("resp_2")}); told.Reason == "session" {
		t.Error("an unknown response has a replica")
	}
	s.SetRules(Rules{Default: Policy{LoadFloor: 8, MaxPerReplica: 1}})
	busy := s.must(t, next("resp_1"))
	waits := make(chan *Ticket)
	go func() {
		ticket, _ := s.Dispatch(t.Context(), next("resp_1"))
		waits <- ticket
	}()
	for {
		if v, _ := s.View("m"); v.Queued == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if at := s.answer(t, ask(t, nil, "hi")); at == home {
		t.Errorf("another request went to %s, which is full", at)
	}
	busy.Release()
	if ticket := <-waits; ticket.Replica() != home {
		t.Errorf("the request that waited went to %s", ticket.Replica())
	}
}

// TestB1_CappedPrefill: a replica has at most so many tokens to compute. A prompt that is longer
// than that goes to a replica that has nothing to compute.
func TestB1_CappedPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{LoadFloor: 8, MaxPrefillTokensPerReplica: 5000})
		s.put("m", replicas("a", "b")...)
		var long []*Ticket
		for n := range 2 {
			long = append(long, s.must(t, ask(t, nil, words(fmt.Sprint("long", n), 20_000))))
		}
		waits := make(chan *Ticket)
		go func() {
			ticket, fault := s.Dispatch(t.Context(), ask(t, nil, "hi"))
			if fault != nil {
				t.Error(fault)
			}
			waits <- ticket
		}()
		time.Sleep(30 * time.Second) // long after the predicted first tokens
		select {
		case <-waits:
			t.Fatal("a prompt was sent although both replicas have more than enough to compute")
		default:
		}
		if !long[0].Watched() {
			t.Error("the first token is not reported")
		}
		long[0].FirstToken()
		if ticket := <-waits; ticket.Replica() != long[0].Replica() {
			t.Errorf("the prompt went to %s", ticket.Replica())
		}
	})
}

// TestB1_AdaptersShareNothing: the same prompt for a LoRA adapter has keys and values of its own.
func TestB1_AdaptersShareNothing(t *testing.T) {
	s := newStage(Policy{LoadFloor: 8})
	list := replicas("a", "b", "c", "d")
	s.put("m", list...)
	m := engines.Model{Name: "m", Aliases: []string{"lora"}, Adapters: []string{"lora"}, Launcher: engines.Local, Desired: 4}
	s.fleet.Set("test-m", engines.Part{Models: []engines.Model{m}, Replicas: list})
	s.rebuild()
	s.answer(t, ask(t, nil, words("shared", 1000)))
	told, _ := s.Explain("m", Question{Request: ask(t, func(b map[string]any) { b["model"] = "lora" }, words("shared", 1000))})
	for _, c := range told.Order {
		if c.MatchedTokens > 0 {
			t.Errorf("%s is believed to have %d tokens of the adapter's prompt", c.ID, c.MatchedTokens)
		}
	}
}

// TestB1_DiscoveredModels are routed by least connections until their engine is known (T2).
func TestB1_DiscoveredModels(t *testing.T) {
	s := newStage(Policy{})
	list := replicas("a", "b")
	s.put("m", list...)
	m := engines.Model{Name: "m", Launcher: engines.Upstream, Discovered: true}
	s.fleet.Set("test-m", engines.Part{Models: []engines.Model{m}, Replicas: list})
	s.rebuild()
	strategy := func() Strategy { v, _ := s.View("m"); return v.Policy.Strategy }
	if got := strategy(); got != LeastConnections {
		t.Errorf("before the engine is known: %q", got)
	}
	s.SetEngineNews("b", EngineNews{Engine: "vllm", PrefillRate: 900, CacheTokens: 5000})
	if got := strategy(); got != "" {
		t.Errorf("when the engine is known: %q", got)
	}
	told, _ := s.Explain("m", Question{Request: ask(t, nil, "hi")})
	if told.Order[0].Rate < 899 || told.Order[0].Rate > 901 {
		t.Errorf("the rate is %v, and the engine told 900", told.Order[0].Rate)
	}
}

// TestB1_DiscoveredModelsOfKnownEngines are routed by prefixes from the start if their engine has
// told of itself before Envoy knows them.
func TestB1_DiscoveredModelsOfKnownEngines(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	list := replicas("a", "b")
	for _, name := range []string{"m", "n"} { // each server has both models
		m := engines.Model{Name: name, Launcher: engines.Upstream, Discovered: true}
		at := slices.Clone(list)
		for i := range at {
			at[i].Model, at[i].State, at[i].Launcher = name, engines.Ready, engines.Upstream
		}
		s.fleet.Set("test-"+name, engines.Part{Models: []engines.Model{m}, Replicas: at})
	}
	s.rebuild()
	s.SetEngineNews("a", EngineNews{Engine: "vllm", PrefillRate: 900})
	s.acknowledge("m", list...)
	s.acknowledge("n", list...)
	for _, name := range []string{"m", "n"} {
		if v, _ := s.View(name); v.Policy.Strategy != "" {
			t.Errorf("%s: strategy %q", name, v.Policy.Strategy)
		}
		told, _ := s.Explain(name, Question{Request: ask(t, nil, "hi")})
		if told.Order[0].Rate < 899 || told.Order[0].Rate > 901 {
			t.Errorf("%s: the rate is %v, and the engine told 900", name, told.Order[0].Rate)
		}
	}
}

// TestU17_AStrategyOfTheFileHolds for discovered models whose engine is not known.
func TestU17_AStrategyOfTheFileHolds(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{Strategy: Prefix, KeepStrategy: true})
	m := engines.Model{Name: "m", Launcher: engines.Upstream, Discovered: true}
	s.fleet.Set("test-m", engines.Part{Models: []engines.Model{m}, Replicas: replicas("a")})
	s.rebuild()
	if v, _ := s.View("m"); v.Policy.Strategy != Prefix {
		t.Errorf("strategy %q", v.Policy.Strategy)
	}
}
