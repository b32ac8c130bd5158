package dispatch

import (
	"strings"
	"testing"
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
