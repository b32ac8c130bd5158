package config

import "time"

// Tenant is one caller, with its keys and limits.
type Tenant struct {
	// Name is the name of the tenant. It is unique.
	Name string `yaml:"name" required:"true" form:"name"`
	// Keys are the keys of the tenant, all valid at the same time. Each is a hash as sluice keys
	// new prints it, or a mapping {hash, name, priority, models, limits, budgets, expires}.
	Keys []Key `yaml:"keys"`
	// Models are the models that the tenant may use, by name or alias; "*" is every model and every
	// pool. A model includes its adapters, and the name of an adapter is that adapter alone. The
	// name of a pool permits the tenant to request the pool. Such a request is served by
	// those models of the pool that the tenant may use. Default ["*"].
	Models []string `yaml:"models" default:"[\"*\"]"`
	// Weight is the tenant's share of a saturated model, relative to other tenants of its priority.
	// Default 1.
	Weight int `yaml:"weight" default:"1" min:"1" max:"1000000"`
	// Priority is the priority of the tenant's waiting requests: interactive before default,
	// default before batch. Default default.
	Priority Priority `yaml:"priority" default:"default" oneof:"interactive,default,batch"`
	// EngineLog shows the tenant, in the heartbeats of a stream that waits for a starting replica,
	// the last line that the replica has logged. Secrets in it are hidden; addresses and paths are
	// not. Default false: heartbeats show only the phase.
	EngineLog bool `yaml:"engine_log"`
	// Limits are the limits of the tenant over all models.
	Limits TenantLimits `yaml:"limits"`
	// Budgets are what the tenant may use in a day or month, with all of its keys. Default: no
	// budgets.
	Budgets []Budget `yaml:"budgets"`
}

// Key is one key of a tenant. In the file it is a mapping, or the hash alone.
type Key struct {
	// Hash is the hash of the key: sha256: and 64 hex digits, as sluice keys new prints it.
	Hash string `yaml:"hash" required:"true" form:"hash"`
	// Name is what operators call the key. Default empty.
	Name string `yaml:"name"`
	// Priority is the priority of requests with this key: the tenant's or a lower one. Default: the
	// tenant's.
	Priority Priority `yaml:"priority" oneof:"interactive,default,batch"`
	// Models are the models and pools that the key may use, of those of its tenant, at least one.
	// Default: all that the tenant may use.
	Models []string `yaml:"models"`
	// Limits are the limits of the key, beside those of its tenant: both must allow a request.
	Limits KeyLimits `yaml:"limits"`
	// Budgets are what the key may use in a day or month, besides those of the tenant. Default: no
	// budgets.
	Budgets []Budget `yaml:"budgets"`
	// Expires is when the key ends: 2027-01-31T18:00:00Z, or 2027-01-31 for the beginning of that
	// day in UTC. Requests then get 401 expired_api_key. Default: the key does not end.
	Expires time.Time `yaml:"expires"`
}

// KeyLimits are the limits of one key over all models. 0 is no limit.
type KeyLimits struct {
	// RequestsPerMinute is the largest number of requests per minute. A request above it gets 429.
	// Default 0: no limit.
	RequestsPerMinute int `yaml:"requests_per_minute" min:"0" max:"1000000000000"`
	// TokensPerMinute is the largest number of tokens per minute, of prompts and answers together.
	// A request above it gets 429. Default 0: no limit.
	TokensPerMinute int `yaml:"tokens_per_minute" min:"0" max:"1000000000000"`
	// MaxConcurrentStreams is the largest number of requests that run or wait. A request above it
	// gets 429. Default 0: no limit.
	MaxConcurrentStreams int `yaml:"max_concurrent_streams" min:"0" max:"1000000000"`
}

// Budget is what a tenant or a key may use in a day or month of the calendar in UTC. It has at
// least one of soft and hard.
type Budget struct {
	// Per is the time after which the budget begins anew: day or month.
	Per string `yaml:"per" required:"true" oneof:"day,month"`
	// Of is what the budget counts: tokens of prompts and answers together, or their cost by the
	// prices of the models. Default tokens.
	Of string `yaml:"of" default:"tokens" oneof:"tokens,cost"`
	// Soft is from how much on the gateway warns: by a condition, a line in the log, and a header
	// of each response. In tokens, or in the currency of the prices. Default 0: it does not warn.
	Soft float64 `yaml:"soft" min:"0"`
	// Hard is from how much on requests get 429 insufficient_quota until the budget begins anew. In
	// tokens, or in the currency of the prices. Default 0: no request is refused.
	Hard float64 `yaml:"hard" min:"0"`
}

// Priority says which waiting requests are admitted before others.
type Priority string

// The priorities, highest first.
const (
	// Interactive is the highest priority.
	Interactive Priority = "interactive"
	// DefaultPriority is the priority of a tenant that names none.
	DefaultPriority Priority = "default"
	// Batch is the lowest priority, for requests that can wait.
	Batch Priority = "batch"
)

// TenantLimits are the limits of one tenant over all models. 0 is no limit.
type TenantLimits struct {
	// RequestsPerMinute is the largest number of requests per minute. A request above it gets 429.
	// Default 0: no limit.
	RequestsPerMinute int `yaml:"requests_per_minute" min:"0" max:"1000000000000"`
	// TokensPerMinute is the largest number of tokens per minute, of prompts and answers together.
	// A request above it gets 429. Default 0: no limit.
	TokensPerMinute int `yaml:"tokens_per_minute" min:"0" max:"1000000000000"`
	// MaxConcurrentStreams is the largest number of requests that run or wait. A request above it
	// gets 429. Default 0: no limit.
	MaxConcurrentStreams int `yaml:"max_concurrent_streams" min:"0" max:"1000000000"`
	// MaxPrefill is the largest number of requests that a replica works on without having sent a
	// token. A request above it waits. Default 0: no limit.
	MaxPrefill int `yaml:"max_prefill" min:"0" max:"1000000000"`
	// MaxQueueBytes is the largest sum of the bodies of the tenant's waiting requests. A request
	// above it gets 429. Default 0: only the limit of all tenants together applies.
	MaxQueueBytes Size `yaml:"max_queue_bytes"`
}
