package sim

import (
	"cmp"
	"time"
)

// Defaults of the fields of Config whose zero value is replaced.
const (
	DefaultModel        = "sim"
	DefaultMaxNumSeqs   = 256
	DefaultCacheTokens  = 131072
	DefaultBatchTokens  = 8192
	DefaultBlockSize    = 16
	DefaultEmbeddingDim = 384
	DefaultKeepAlive    = 5 * time.Second
	DefaultKeepRequests = 256
)

// tokensPerSequence is the GPU memory for each sequence of a batch that is larger than the default.
const tokensPerSequence = 512

// Config is the configuration of an Engine. The zero value is an engine that serves the model "sim"
// as fast as possible.
type Config struct {
	// Models are the names of the models that the engine serves. Responses contain the first.
	// Empty: DefaultModel.
	Models []string
	// Name is the name of the engine in its answers. Empty: a name made of its first model and its
	// port.
	Name string
	// APIKey is the bearer token that every path for clients requires. Empty: no key is required.
	APIKey string

	// MaxNumSeqs is the number of sequences that run at the same time; more wait. A request with n
	// choices is n sequences. 0: DefaultMaxNumSeqs.
	MaxNumSeqs int
	// PrefillRate is the number of uncached prompt tokens per second that the engine prefills, over
	// all requests. 0: no limit.
	PrefillRate float64
	// TokenInterval is the time between two tokens of a request that decodes alone. 0: none.
	TokenInterval time.Duration
	// BatchSlowdown is the share of TokenInterval by which each further decoding request lengthens
	// a step. 0: none.
	BatchSlowdown float64
	// PrefillSlowdown is the share by which each decoding request lengthens a prefill. 0: none.
	PrefillSlowdown float64
	// MaxBatchedTokens is the number of uncached tokens in the prefill queue at which further
	// requests wait without a slot, as in vLLM's scheduler. 0: DefaultBatchTokens.
	MaxBatchedTokens int
	// BlockSize is the number of tokens in a block of memory. 0: DefaultBlockSize.
	BlockSize int
	// CacheTokens is the capacity of the GPU memory in tokens, in whole blocks. Running requests
	// hold blocks; the others are the prefix cache. A request waits until there is memory for its
	// prompt. 0: DefaultCacheTokens, or 512 for each of MaxNumSeqs if that is more; negative: no
	// limit and no prefix cache.
	CacheTokens int
	// LoadTime is the time after New during which the engine answers 503 to every request,
	// including /health.
	LoadTime time.Duration

	// EmbeddingDim is the largest length of embedding vectors, and their length if the request
	// names none. 0: DefaultEmbeddingDim.
	EmbeddingDim int
	// Seed varies the sentences of the answers and the embeddings.
	Seed uint64
	// Fault applies to every request without a header x-sim-fault, until POST /sim/fault changes
	// it.
	Fault Fault
	// Exit ends the process for the fault exit; usually os.Exit. nil: the fault exit is answered
	// with 400.
	Exit func(code int)

	// KeepAlive is how long the server of Run keeps an idle connection. 0: DefaultKeepAlive, the
	// value of vLLM (uvicorn).
	KeepAlive time.Duration
	// KeepRequests is the number of requests that GET /sim/requests remembers. 0:
	// DefaultKeepRequests; negative: none.
	KeepRequests int
}

// withDefaults returns the configuration with zero values replaced by defaults.
func (c Config) withDefaults() Config {
	if len(c.Models) == 0 {
		c.Models = []string{DefaultModel}
	}
	c.MaxNumSeqs = cmp.Or(c.MaxNumSeqs, DefaultMaxNumSeqs)
	c.BlockSize = cmp.Or(c.BlockSize, DefaultBlockSize)
	c.MaxBatchedTokens = cmp.Or(c.MaxBatchedTokens, DefaultBatchTokens)
	c.CacheTokens = cmp.Or(c.CacheTokens, max(DefaultCacheTokens, c.MaxNumSeqs*tokensPerSequence))
	c.EmbeddingDim = cmp.Or(c.EmbeddingDim, DefaultEmbeddingDim)
	c.KeepAlive = cmp.Or(c.KeepAlive, DefaultKeepAlive)
	c.KeepRequests = cmp.Or(c.KeepRequests, DefaultKeepRequests)
	return c
}
