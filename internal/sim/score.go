package sim

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"time"
)

// text is a string. In JSON it may also be an object with the string under "text" or "content".
type text string

func (t *text) UnmarshalJSON(raw []byte) error {
	if raw[0] == '"' {
		return json.Unmarshal(raw, (*string)(t))
	}
	var object struct {
		Text    string  `json:"text"`
		Content content `json:"content"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return badRequest("", "Input must be a string or an object with a text")
	}
	*t = text(object.Text) + text(object.Content)
	return nil
}

// texts is one text or several.
type texts []text

func (t *texts) UnmarshalJSON(raw []byte) error {
	if raw[0] == '[' {
		return json.Unmarshal(raw, (*[]text)(t))
	}
	*t = make(texts, 1)
	return json.Unmarshal(raw, &(*t)[0])
}

// scoreRequest is the body of POST /v1/score, with all the names that vLLM accepts for its inputs.
type scoreRequest struct {
	Model     string `json:"model"`
	Text1     texts  `json:"text_1"`
	Text2     texts  `json:"text_2"`
	Data1     texts  `json:"data_1"`
	Data2     texts  `json:"data_2"`
	Queries   texts  `json:"queries"`
	Documents texts  `json:"documents"`
	Items     texts  `json:"items"`
}

// pair returns the two lists of texts to compare.
func (r *scoreRequest) pair() (left, right []text, err error) {
	left = firstNonEmpty(r.Text1, r.Data1, r.Queries)
	right = firstNonEmpty(r.Text2, r.Data2, r.Documents, r.Items)
	switch {
	case len(left) == 0:
		return nil, nil, badRequest("text_1", "Field required: text_1")
	case len(right) == 0:
		return nil, nil, badRequest("text_2", "Field required: text_2")
	case len(left) > 1 && len(left) != len(right):
		return nil, nil, badRequest("text_1", "Input lengths must be either 1:1, 1:N or N:N")
	}
	return left, right, nil
}

func firstNonEmpty(lists ...texts) []text {
	for _, l := range lists {
		if len(l) > 0 {
			return l
		}
	}
	return nil
}

// pairs returns the inputs of a cross-encoder: each right text after its left text, or after the
// only left text.
func (h *handler) pairs(left, right []text) []prompt {
	list := make([]prompt, len(right))
	for i := range right {
		list[i] = h.newPrompt("").withText(string(left[min(i, len(left)-1)]) + "\n" + string(right[i]))
	}
	return list
}

// score answers POST /v1/score.
func (h *handler) score() error {
	var req scoreRequest
	if err := h.decodeBody(&req); err != nil {
		return err
	}
	if err := h.checkModel(req.Model); err != nil {
		return err
	}
	left, right, err := req.pair()
	if err != nil {
		return err
	}
	u, err := h.prefill(h.pairs(left, right))
	if err != nil {
		return err
	}
	data := make([]any, len(right))
	for i := range right {
		query := h.engine.embed(string(left[min(i, len(left)-1)]))
		data[i] = map[string]any{"index": i, "object": "score", "score": h.engine.relevance(query, string(right[i]))}
	}
	return h.sendJSON(map[string]any{
		"id": h.newID("score-"), "object": "list", "created": time.Now().Unix(), "model": h.modelName(), "data": data, "usage": u,
	})
}

// relevance returns the relevance of a document for a query, from 0 to 1. It follows from the angle
// between their vectors.
func (e *Engine) relevance(query []float32, document string) float64 {
	return 1 / (1 + math.Exp(-8*(dot(query, e.embed(document))-0.5)))
}

type rankedDocument struct {
	Index     int            `json:"index"`
	Document  map[string]any `json:"document"`
	Relevance float64        `json:"relevance_score"`
}

// rerankRequest is the body of POST /v1/rerank.
type rerankRequest struct {
	Model     string `json:"model"`
	Query     text   `json:"query"`
	Documents []text `json:"documents"`
	TopN      int    `json:"top_n"`
}

// rerank answers POST /v1/rerank, in the form of Jina's API, as vLLM does.
func (h *handler) rerank() error {
	var req rerankRequest
	if err := h.decodeBody(&req); err != nil {
		return err
	}
	if err := h.checkModel(req.Model); err != nil {
		return err
	}
	if len(req.Documents) == 0 {
		return badRequest("documents", "At least one document is required")
	}
	u, err := h.prefill(h.pairs([]text{req.Query}, req.Documents))
	if err != nil {
		return err
	}
	query := h.engine.embed(string(req.Query))
	ranks := make([]rankedDocument, len(req.Documents))
	for i, d := range req.Documents {
		ranks[i] = rankedDocument{Index: i, Document: map[string]any{"text": d}, Relevance: h.engine.relevance(query, string(d))}
	}
	slices.SortStableFunc(ranks, func(a, b rankedDocument) int { return cmp.Compare(b.Relevance, a.Relevance) })
	if req.TopN > 0 {
		ranks = ranks[:min(req.TopN, len(ranks))]
	}
	return h.sendJSON(map[string]any{
		"id": h.newID("rerank-"), "model": h.modelName(), "results": ranks,
		"usage": map[string]int{"prompt_tokens": u.PromptTokens, "total_tokens": u.TotalTokens},
	})
}
