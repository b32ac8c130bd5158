package dispatch

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// TestB1_ExplainsAPrompt: what is told of each replica agrees with the pick that follows.
func TestB1_ExplainsAPrompt(t *testing.T) {
	s := newStage(Policy{LoadFloor: 8, UserMessages: 2})
	s.put("m", replicas("a", "b", "c")...)
	text := strings.Repeat("a long document ", 500)
	first := s.must(t, ask(t, nil, text))
	first.FirstToken()
	first.Release()
	told, _ := s.Explain("m", Question{Request: ask(t, nil, text, "Yes?", "Why?")})
	again := s.must(t, ask(t, nil, text, "Yes?", "Why?"))
	defer again.Release()
	if told.Picked != first.Replica() || again.Replica() != told.Picked {
		t.Fatalf("told %q, the document is at %q, the next request went to %q", told.Picked, first.Replica(), again.Replica())
	}
	for _, c := range told.Order {
		cached := c.ID == first.Replica()
		if cached != (c.MatchedTokens > 1000) || c.MatchedTokens+c.UncachedTokens < told.PromptTokens-1 || c.Rate <= 0 || c.TTFT <= 0 {
			t.Errorf("of %d tokens: %+v", told.PromptTokens, c)
		}
	}
	if p := again.Prediction(); p.Reason != told.Reason || !p.Known || p.MatchedTokens < 1000 || p.TTFT <= 0 || p.Moved != "" {
		t.Errorf("told %q, predicted %+v", told.Reason, p)
	}
}

// TestB1_WholeAnswersTeachNoFirstToken: an answer that is no stream begins when its last token is
// there. So the time until then is not taken for that of a first token, except that an answer
// without tokens, such as embeddings, takes no longer.
func TestB1_WholeAnswersTeachNoFirstToken(t *testing.T) {
	ask := map[string]func() *Request{
		"whole chat": func() *Request { return ask(t, nil, "hello") },
		"stream":     func() *Request { return ask(t, func(b map[string]any) { b["stream"] = true }, "hello") },
		"embedding": func() *Request {
			return scanned(t, openai.Embeddings, map[string]any{"model": "m", "input": "hello"})
		},
	}
	for name, request := range ask {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(Policy{MaxPrefillPerReplica: 4})
				s.put("m", replicas("a")...)
				predicted := func() time.Duration {
					told, _ := s.Explain("m", Question{Request: request()})
					return told.Order[0].TTFT
				}
				before := predicted()
				for range 10 {
					ticket := s.must(t, request())
					time.Sleep(5 * time.Second)
					ticket.FirstToken()
					if ticket.prefill {
						t.Error("the request is in prefill after its first byte")
					}
					ticket.Correct(Response{Known: true, Prompt: 10, Completion: 250})
					ticket.Release()
				}
				if after := predicted(); (after > time.Second) != (name != "whole chat") {
					t.Errorf("the first token is expected after %v, and was after %v", after, before)
				}
			})
		})
	}
}

func TestB1_ExplainsALength(t *testing.T) {
	s := newStage(Policy{})
	s.put("m", replicas("a", "b")...)
	told, _ := s.Explain("m", Question{PromptTokens: 1000})
	for _, c := range told.Order {
		if told.PromptTokens != 1000 || c.MatchedTokens != 0 || c.UncachedTokens != 1000 || c.TTFT <= 0 {
			t.Errorf("of %d tokens: %+v", told.PromptTokens, c)
		}
	}
}
