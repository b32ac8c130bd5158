package relay

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// Dialect is an API for reranking other than POST /v1/rerank.
type Dialect string

// RerankTEI is the dialect of text-embeddings-inference: POST /rerank with {"query","texts"},
// answered with a list of indexes and scores.
const RerankTEI Dialect = "tei"

const teiRerankPath = "/rerank"

// rerankRequest is a request to /v1/rerank.
type rerankRequest struct {
	Query           string                       `json:"query"`
	Documents       openai.List[json.RawMessage] `json:"documents"`
	TopN            *int                         `json:"top_n"`
	ReturnDocuments *bool                        `json:"return_documents"`
	Truncate        *bool                        `json:"truncate"`
	Direction       string                       `json:"truncation_direction"`
	RawScores       bool                         `json:"raw_scores"`

	// texts are the texts of Documents.
	texts []string
}

type teiRequest struct {
	Query     string   `json:"query"`
	Texts     []string `json:"texts"`
	Truncate  *bool    `json:"truncate,omitempty"`
	Direction string   `json:"truncation_direction,omitempty"`
	RawScores bool     `json:"raw_scores,omitempty"`
}

type teiScore struct {
	Index int     `json:"index"`
	Score float64 `json:"score"`
}

type rerankResult struct {
	Index    int             `json:"index"`
	Score    float64         `json:"relevance_score"`
	Document *rerankDocument `json:"document,omitempty"`
}

type rerankDocument struct {
	Text string `json:"text"`
}

// rerankAnswer is an answer to a request to /v1/rerank.
type rerankAnswer struct {
	Model   string         `json:"model"`
	Object  string         `json:"object"`
	Results []rerankResult `json:"results"`
	Usage   *rerankUsage   `json:"usage,omitempty"`
}

type rerankUsage struct {
	Prompt int64 `json:"prompt_tokens"`
	Total  int64 `json:"total_tokens"`
}

// teiUsage returns the usage that text-embeddings-inference tells in a header of its answer. nil:
// there is none.
func teiUsage(h http.Header) *rerankUsage {
	tokens, err := strconv.ParseUint(h.Get("x-compute-tokens"), 10, 32)
	if err != nil || tokens == 0 {
		return nil
	}
	return &rerankUsage{Prompt: int64(tokens), Total: int64(tokens)}
}

// readRerank reads the body of a request to /v1/rerank.
func readRerank(body []byte) (*rerankRequest, *openai.Error) {
	r := new(rerankRequest)
	if json.Unmarshal(body, r) != nil {
		return nil, openai.Errorf(openai.CodeInvalidRequest, "The body is no request to rerank: it needs a query and a list of documents.")
	}
	if r.Query == "" {
		return nil, openai.Invalid("query", "is missing")
	}
	if len(r.Documents) == 0 {
		return nil, openai.Invalid("documents", "is missing or empty")
	}
	for _, raw := range r.Documents {
		var text string
		var document rerankDocument
		if json.Unmarshal(raw, &text) != nil {
			if json.Unmarshal(raw, &document) != nil || document.Text == "" {
				return nil, openai.Invalid("documents", "must be texts, or objects with a text")
			}
			text = document.Text
		}
		r.texts = append(r.texts, text)
	}
	return r, nil
}

// tei returns the body of the request in the dialect of text-embeddings-inference.
func (r *rerankRequest) tei() []byte {
	b, err := json.Marshal(teiRequest{Query: r.Query, Texts: r.texts, Truncate: r.Truncate, Direction: r.Direction, RawScores: r.RawScores})
	if err != nil { // texts and numbers always marshal
		panic(err)
	}
	return b
}

// fromTEI translates an answer of text-embeddings-inference into an answer to /v1/rerank, with the
// best document first. ok is false when the answer cannot be read.
func (r *rerankRequest) fromTEI(model string, answer *Answer) (body []byte, ok bool) {
	var scores []teiScore
	if json.Unmarshal(answer.Body, &scores) != nil {
		return nil, false
	}
	slices.SortStableFunc(scores, func(a, b teiScore) int { return cmp.Compare(b.Score, a.Score) })
	if n := r.TopN; n != nil && *n >= 0 && *n < len(scores) {
		scores = scores[:*n]
	}
	results := make([]rerankResult, 0, len(scores))
	for _, s := range scores {
		if s.Index < 0 || s.Index >= len(r.texts) {
			return nil, false
		}
		result := rerankResult{Index: s.Index, Score: s.Score}
		if r.ReturnDocuments == nil || *r.ReturnDocuments {
			result.Document = &rerankDocument{r.texts[s.Index]}
		}
		results = append(results, result)
	}
	b, err := json.Marshal(rerankAnswer{model, "list", results, teiUsage(answer.Header)})
	return b, err == nil
}
