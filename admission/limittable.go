package admission

import (
	"slices"
	"time"
)

// LimitScope is what a limit bounds.
type LimitScope string

// The scopes. ModelScope and TenantScope are also the kinds of keys in the store of changed limits.
const (
	ModelScope   LimitScope = "model"
	TenantScope  LimitScope = "tenant"
	ReplicaScope LimitScope = "replica"
	GatewayScope LimitScope = "gateway"
)

// The bounds of limits that are changed at run time. They keep sums and products of limits far
// inside an int64, and inside the whole numbers of a float64, which Lua has.
const (
	maxPatchPerMinute = 1_000_000_000_000
	maxPatchAtOnce    = 1_000_000_000
	maxPatchWeight    = 1_000_000
)

// Limit is one row of LimitTable: all that other packages know of one limit.
type Limit struct {
	// Name is the field's name in the configuration file, in PATCH, in answers of the operator's
	// API and in the store of changed limits.
	Name string
	// Scope is what the limit bounds.
	Scope LimitScope
	// Reason is why a request at the limit waits or is refused. It holds the texts and the number
	// in replies of the Redis script. Granted means that no request waits because of the limit.
	Reason Reason
	// Patchable says that the limit can be changed at run time, to a value from Min to Max. Min is
	// also the default: weight 1, and no limit for all others.
	Patchable bool
	Min, Max  int64
	// Shared says that the limit holds over all gateways: its value is part of every Claim, and the
	// Redis script enforces it.
	Shared bool

	model  *fieldOf[Limits]
	tenant *fieldOf[TenantLimits]
}

// limitTable holds the rows in the order in which a claim carries the shared limits of a scope.
//
// To add a limit: add a field to Limits or TenantLimits and a row here. TestLimitTable of this
// package, of admission/redis and of internal/limits then fail for every place that does not handle
// the row.
var limitTable = []Limit{
	{Name: "weight", Scope: ModelScope, Patchable: true, Min: 1, Max: maxPatchWeight,
		model: field(func(l *Limits) *int { return &l.Weight })},
	{Name: "max_concurrent_requests", Scope: ModelScope, Reason: ModelConcurrency, Shared: true,
		Patchable: true, Max: maxPatchAtOnce,
		model: field(func(l *Limits) *int { return &l.MaxConcurrent })},
	{Name: "max_tokens_per_minute", Scope: ModelScope, Reason: ModelTokens, Shared: true,
		Patchable: true, Max: maxPatchPerMinute,
		model: field(func(l *Limits) *int { return &l.TokensPerMinute })},
	{Name: "max_queue", Scope: ModelScope, Reason: QueueFull,
		model: field(func(l *Limits) *int { return &l.MaxQueue })},
	{Name: "queue_timeout", Scope: ModelScope, // ends the waiting with ErrTimeout
		model: field(func(l *Limits) *time.Duration { return &l.QueueTimeout })},

	{Name: "weight", Scope: TenantScope, Patchable: true, Min: 1, Max: maxPatchWeight,
		tenant: field(func(l *TenantLimits) *int { return &l.Weight })},
	{Name: "requests_per_minute", Scope: TenantScope, Reason: TenantRequests, Shared: true,
		Patchable: true, Max: maxPatchPerMinute,
		tenant: field(func(l *TenantLimits) *int { return &l.RequestsPerMinute })},
	{Name: "tokens_per_minute", Scope: TenantScope, Reason: TenantTokens, Shared: true,
		Patchable: true, Max: maxPatchPerMinute,
		tenant: field(func(l *TenantLimits) *int { return &l.TokensPerMinute })},
	{Name: "max_concurrent_streams", Scope: TenantScope, Reason: TenantStreams, Shared: true,
		Patchable: true, Max: maxPatchAtOnce,
		tenant: field(func(l *TenantLimits) *int { return &l.MaxConcurrent })},
	{Name: "max_prefill", Scope: TenantScope, Reason: TenantPrefill, Shared: true,
		Patchable: true, Max: maxPatchAtOnce,
		tenant: field(func(l *TenantLimits) *int { return &l.MaxPrefill })},
	{Name: "max_queue_bytes", Scope: TenantScope, Reason: TenantBytes,
		tenant: field(func(l *TenantLimits) *int64 { return &l.MaxQueueBytes })},

	// Limits that no struct of this package holds. Slot.Limit is the first, Config.MaxQueueBytes
	// the last; package dispatch enforces the one between in ReserveSlot.
	{Name: "max_per_replica", Scope: ReplicaScope, Reason: ReplicaFull, Shared: true},
	{Name: "max_prefill_per_replica", Scope: ReplicaScope},
	{Name: "max_queue_bytes", Scope: GatewayScope, Reason: QueueFull},
}

// LimitTable returns the limits of a scope. Their order never changes.
func LimitTable(scope LimitScope) []Limit {
	return slices.DeleteFunc(slices.Clone(limitTable), func(l Limit) bool { return l.Scope != scope })
}

// SharedLimits returns those limits of a scope that a Claim carries.
func SharedLimits(scope LimitScope) []Limit {
	return slices.DeleteFunc(LimitTable(scope), func(l Limit) bool { return !l.Shared })
}

// OfModel returns the limit's value in l. The limit must be of ModelScope. A duration is in
// nanoseconds.
func (l *Limit) OfModel(limits *Limits) int64 { return l.model.get(limits) }

// SetModel sets the limit's value in l. The limit must be of ModelScope.
func (l *Limit) SetModel(limits *Limits, value int64) { l.model.set(limits, value) }

// OfTenant returns the limit's value in l. The limit must be of TenantScope.
func (l *Limit) OfTenant(limits *TenantLimits) int64 { return l.tenant.get(limits) }

// SetTenant sets the limit's value in l. The limit must be of TenantScope.
func (l *Limit) SetTenant(limits *TenantLimits, value int64) { l.tenant.set(limits, value) }

// fieldOf reads and writes one field of a struct of limits.
type fieldOf[S any] struct {
	get func(*S) int64
	set func(*S, int64)
}

// field makes a fieldOf from a function that finds the field.
func field[S any, V int | int64 | time.Duration](of func(*S) *V) *fieldOf[S] {
	return &fieldOf[S]{
		get: func(s *S) int64 { return int64(*of(s)) },
		set: func(s *S, value int64) { *of(s) = V(value) },
	}
}
