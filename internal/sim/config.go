package sim

import (
	"cmp"
	"time"
)

// Defaults of the fields of Config whose zero value stands for something else.
const (
	DefaultModel        = "sim"
	DefaultMaxNumSeqs   = 256
	DefaultCacheTokens  = 131072
	DefaultEmbeddingDim = 384
	DefaultKeepAlive    = 5 * time.Second
	DefaultKeepRequests = 256
)

// Config is what an Engine is made of. The zero value is an engine that answers for the model "sim" as fast as it can.
type Config struct {
	// Models are the names the engine answers to; the first is the one it gives as its own. Empty: DefaultModel.
	Models []string
	// Name is how the engine calls itself in its answers. Empty: after its first model and its port.
	Name string
	// APIKey is asked for as a bearer token on every path below /v1. Empty: no key needed.
	APIKey string

	// MaxNumSeqs is how many sequences are worked on at once; more wait. A request with n choices is n sequences.
	// 0: DefaultMaxNumSeqs.
	MaxNumSeqs int
	// PrefillRate is how many uncached prompt tokens a second the engine takes in, over all requests. 0: no limit.
	PrefillRate float64
	// TokenInterval is the time between two tokens of a request that decodes alone. 0: none.
	TokenInterval time.Duration
	// BatchSlowdown is by which share of TokenInterval each further decoding request slows the step. 0: not at all.
	BatchSlowdown float64
	// CacheTokens bounds the prefix cache, and is what vllm:kv_cache_usage_perc is a share of. 0: DefaultCacheTokens;
	// negative: no prefix cache.
	CacheTokens int
	// LoadTime is how long after New the engine answers 503 to everything, /health included.
	LoadTime time.Duration

	// EmbeddingDim is the length of embedding vectors when the request names none, and the longest. 0: DefaultEmbeddingDim.
	EmbeddingDim int
	// Seed varies the sentences of the answers and the embedding space.
	Seed uint64
	// Fault applies to every request that brings no x-sim-fault header of its own, until POST /sim/fault changes it.
	Fault Fault
	// Exit ends the process for the fault "exit"; os.Exit is what to put here. nil: such a fault is answered with 400.
	Exit func(code int)

	// KeepAlive is how long Run's server keeps an idle connection. 0: DefaultKeepAlive, which is vLLM's (uvicorn's).
	KeepAlive time.Duration
	// KeepRequests is how many requests GET /sim/requests remembers. 0: DefaultKeepRequests; negative: none.
	KeepRequests int
}

// withDefaults returns the configuration with its zero values replaced.
func (c Config) withDefaults() Config {
	if len(c.Models) == 0 {
		c.Models = []string{DefaultModel}
	}
	c.MaxNumSeqs = cmp.Or(c.MaxNumSeqs, DefaultMaxNumSeqs)
	c.CacheTokens = cmp.Or(c.CacheTokens, DefaultCacheTokens)
	c.EmbeddingDim = cmp.Or(c.EmbeddingDim, DefaultEmbeddingDim)
	c.KeepAlive = cmp.Or(c.KeepAlive, DefaultKeepAlive)
	c.KeepRequests = cmp.Or(c.KeepRequests, DefaultKeepRequests)
	return c
}
