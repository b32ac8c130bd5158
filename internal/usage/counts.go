package usage

import (
	"math"
	"strconv"
)

// Subject is whose usage a row counts, and of which model.
type Subject struct {
	// Tenant is the name of the tenant. Key names one of its keys; it is empty for callers without
	// a key. Model is the model's own name.
	Tenant, Key, Model string
}

// Other is the key of the requests whose own keys do not fit into the ledger.
const Other = "other"

// Counts is what requests have used. Requests only grows. The other fields become smaller when a
// request has used less than was estimated, or when its usage is no longer an estimate.
type Counts struct {
	// Requests counts the requests that an engine has answered or worked for. EstimatedRequests
	// counts those among them whose tokens are estimated.
	Requests          int64 `json:"requests"`
	EstimatedRequests int64 `json:"estimated_requests"`
	// PromptTokens and CompletionTokens count tokens. CachedTokens are those of PromptTokens that
	// the engine had in its cache.
	PromptTokens     int64 `json:"prompt_tokens"`
	CachedTokens     int64 `json:"cached_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	// EstimatedPromptTokens and EstimatedCompletionTokens are the parts of PromptTokens and
	// CompletionTokens that come from EstimatedRequests.
	EstimatedPromptTokens     int64 `json:"estimated_prompt_tokens"`
	EstimatedCompletionTokens int64 `json:"estimated_completion_tokens"`
	// Cost is in billionths of the currency of the prices, by the prices at the time of the
	// request.
	Cost int64 `json:"-"`
}

// costUnit is the number of units of Counts.Cost in one unit of the currency.
const costUnit = 1e9

// Money returns Cost in the currency of the prices.
func (c *Counts) Money() float64 { return float64(c.Cost) / costUnit }

// Prices are what a million tokens cost.
type Prices struct {
	// Prompt is the price of prompt tokens that were not in the engine's cache, Cached that of
	// those that were.
	Prompt, Cached, Completion float64
}

// Charge sets the cost of the counts by the prices.
func (c *Counts) Charge(p Prices) {
	const million = 1e6
	whole := float64(c.PromptTokens-c.CachedTokens)*p.Prompt + float64(c.CachedTokens)*p.Cached + float64(c.CompletionTokens)*p.Completion
	c.Cost = int64(math.Round(whole / million * costUnit))
}

// fieldCount is the number of fields of Counts.
const fieldCount = 8

// values returns the fields in the order of the journal.
func (c *Counts) values() [fieldCount]int64 {
	return [fieldCount]int64{c.Requests, c.EstimatedRequests, c.PromptTokens, c.CachedTokens, c.CompletionTokens,
		c.EstimatedPromptTokens, c.EstimatedCompletionTokens, c.Cost}
}

// appendTo appends the fields, with commas between them.
func (c *Counts) appendTo(b []byte) []byte {
	for i, v := range c.values() {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return b
}

// ofValues is the inverse of Counts.values.
func ofValues(v [fieldCount]int64) Counts {
	return Counts{Requests: v[0], EstimatedRequests: v[1], PromptTokens: v[2], CachedTokens: v[3], CompletionTokens: v[4],
		EstimatedPromptTokens: v[5], EstimatedCompletionTokens: v[6], Cost: v[7]}
}

// Add adds o to c.
func (c *Counts) Add(o Counts) {
	c.Requests += o.Requests
	c.EstimatedRequests += o.EstimatedRequests
	c.PromptTokens += o.PromptTokens
	c.CachedTokens += o.CachedTokens
	c.CompletionTokens += o.CompletionTokens
	c.EstimatedPromptTokens += o.EstimatedPromptTokens
	c.EstimatedCompletionTokens += o.EstimatedCompletionTokens
	c.Cost += o.Cost
}

// Minus returns c without o.
func (c *Counts) Minus(o Counts) Counts {
	var left [fieldCount]int64
	for i, v := range c.values() {
		left[i] = v - o.values()[i]
	}
	return ofValues(left)
}

// maxCounted is more tokens than any request has. A count of an engine beyond it is a mistake.
const maxCounted = 1 << 40

// OfRequest returns the counts of one request with these tokens. known says that its engine has
// told them. A number that cannot be true, below zero or beyond maxCounted, counts as 0 and as an
// estimate.
func OfRequest(prompt, cached, completion int64, known bool) Counts {
	for _, n := range [...]*int64{&prompt, &completion} {
		if *n < 0 || *n > maxCounted {
			*n, known = 0, false
		}
	}
	c := Counts{Requests: 1, PromptTokens: prompt, CachedTokens: min(max(cached, 0), prompt), CompletionTokens: completion}
	if !known {
		c.EstimatedRequests, c.EstimatedPromptTokens, c.EstimatedCompletionTokens = 1, prompt, completion
	}
	return c
}
