package sim

import (
	"strings"
	"sync"
)

// vocabulary gives tokens their ids, in the order in which they appear. The zero value is empty. It
// grows with every new token, which is good enough for tests.
type vocabulary struct {
	mu     sync.Mutex
	ids    map[string]int
	tokens []string
}

func (v *vocabulary) idsOf(tokens []string) []int {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ids == nil {
		v.ids = map[string]int{}
	}
	ids := make([]int, len(tokens))
	for i, token := range tokens {
		id, known := v.ids[token]
		if !known {
			id = len(v.tokens)
			v.ids[token], v.tokens = id, append(v.tokens, token)
		}
		ids[i] = id
	}
	return ids
}

// text returns the text of ids. ok is false if one of them was never given.
func (v *vocabulary) text(ids []int) (text string, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var b strings.Builder
	for _, id := range ids {
		if id < 0 || id >= len(v.tokens) {
			return "", false
		}
		b.WriteString(v.tokens[id])
	}
	return b.String(), true
}

// tokenizeRequest is the body of POST /tokenize, in the form of vLLM's.
type tokenizeRequest struct {
	Model    string    `json:"model"`
	Prompt   string    `json:"prompt"`
	Messages []message `json:"messages"`
}

// tokenize answers POST /tokenize.
func (h *handler) tokenize() error {
	var req tokenizeRequest
	if err := h.decodeBody(&req); err != nil {
		return err
	}
	if err := h.checkModel(req.Model); err != nil {
		return err
	}
	text := req.Prompt
	for _, m := range req.Messages {
		text += string(m.Content)
	}
	ids := h.engine.vocabulary.idsOf(tokenize(text))
	return h.sendJSON(map[string]any{"count": len(ids), "max_model_len": h.engine.config.CacheTokens, "tokens": ids})
}

// detokenize answers POST /detokenize.
func (h *handler) detokenize() error {
	var req struct {
		Model  string `json:"model"`
		Tokens []int  `json:"tokens"`
	}
	if err := h.decodeBody(&req); err != nil {
		return err
	}
	if err := h.checkModel(req.Model); err != nil {
		return err
	}
	text, ok := h.engine.vocabulary.text(req.Tokens)
	if !ok {
		return badRequest("tokens", "There is no such token")
	}
	return h.sendJSON(map[string]any{"prompt": text})
}
