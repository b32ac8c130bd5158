package admin

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/request"
)

// ModelLoad is the load of a model and its limits in force.
type ModelLoad struct {
	// InFlight counts the requests that run on replicas. Queued counts the waiting requests.
	InFlight, Queued int
	// QueuedBytes is the total length of the bodies of the waiting requests.
	QueuedBytes int64
	Limits      Limits
	// Scaled is the last change of the number of replicas that the model should have. Nil means
	// that it never changed.
	Scaled *Scaled
	// Drained says that the model takes no new requests. DrainedReplicas is how many ready replicas
	// an operator has drained.
	Drained         bool
	DrainedReplicas int
	// Usable is how many ready replicas get requests: Envoy knows them, and they are not drained.
	Usable int
	// Scale are the bounds of the number of replicas. It is nil for a model that is not launched.
	Scale *Scale
}

// Scaled is a change of the number of replicas that a model should have.
type Scaled struct {
	From int `json:"from"`
	To   int `json:"to"`
	// Reason is one of those in docs/scaling.md.
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// Limits are the limits of a model, under their names in the file. 0 means no limit. A
// MaxPerReplica of 0 means the engine's own limit.
type Limits struct {
	// Weight is the model's share in its pools.
	Weight                int `json:"weight"`
	MaxConcurrentRequests int `json:"max_concurrent_requests"`
	MaxTokensPerMinute    int `json:"max_tokens_per_minute"`
	MaxPerReplica         int `json:"max_per_replica"`
	MaxPrefillPerReplica  int `json:"max_prefill_per_replica"`
	// MaxPrefillTokensPerReplica is absent if there is no such limit.
	MaxPrefillTokensPerReplica int           `json:"max_prefill_tokens_per_replica,omitempty"`
	MaxQueue                   int           `json:"max_queue"`
	QueueTimeout               time.Duration `json:"-"`
}

// ReplicaLoad is the load of a replica.
type ReplicaLoad struct {
	// InFlight counts the requests that run on the replica.
	InFlight int
	// Served counts the requests that the replica was given since Sluice started.
	Served uint64
	// Max is the greatest number of concurrent requests of the replica. 0 means that no limit is
	// known.
	Max int
	// MaxFrom is where Max comes from: max_per_replica, slots, engine, catalogue, unknown, or empty
	// for no limit.
	MaxFrom string
	// CloseDelimited says that the replica ends responses by closing their connections, so that all
	// requests of its model are managed.
	CloseDelimited bool
	// Engine is what the replica's engine says of itself; nil: it has not been asked.
	Engine *EngineNews
	// Command is the command line of a launched replica, quoted for a shell and without secrets.
	Command string
	// Drained says that the replica takes no new requests.
	Drained bool
}

// EngineNews is what the engine of a replica says of itself. A nil number is one that it does not
// tell.
type EngineNews struct {
	// Name is the name of the engine in the catalogue. It is empty if it is not known.
	Name string `json:"name"`
	// Running and Waiting are numbers of requests, those that others have sent included.
	Running *int `json:"running"`
	Waiting *int `json:"waiting"`
	// KVUsage is the used share of the key-value cache, from 0 to 1.
	KVUsage *float64 `json:"kv_usage"`
	// CacheTokens is how many tokens the prefix cache can hold. CachedTokens counts the prompt
	// tokens that the engine has found in it since its start.
	CacheTokens  *int   `json:"cache_tokens"`
	CachedTokens *int64 `json:"cached_tokens"`
	// PrefillRate is how many prompt tokens a second the engine has lately computed.
	PrefillRate *float64 `json:"prefill_rate"`
	// Slots is how many requests the engine works on at once.
	Slots *int `json:"slots"`
	// AgeSeconds is how long ago the engine said so. It is nil if it has said nothing yet.
	AgeSeconds *float64 `json:"age_s"`
	// Fault says why the last question had no answer. It is empty if it had one.
	Fault string `json:"fault"`
}

// Tenant is the state of a tenant. It contains neither keys nor their hashes.
type Tenant struct {
	Name string `json:"name"`
	// Models are the names of the models that the tenant may use. "*" stands for all.
	Models []string `json:"models"`
	// InFlight is Running + Queued.
	InFlight int `json:"in_flight"`
	// Keys is the number of the tenant's keys.
	Keys int `json:"keys"`
	// Priority is interactive, default or batch.
	Priority string `json:"priority"`
	// Running counts the tenant's requests that run on replicas. Prefill counts those of them that
	// have no output token yet. Queued counts the tenant's waiting requests.
	Running int `json:"running"`
	Prefill int `json:"prefill"`
	Queued  int `json:"queued"`
	// Quota says of each limit that the tenant has how much of it is used, by the name of the
	// limit.
	Quota map[string]LimitUse `json:"quota"`
	// Budgets are those of the tenant and of its keys.
	Budgets []BudgetUse `json:"budgets"`
	// Limits are the limits in force.
	Limits TenantLimits `json:"-"`
}

// LimitUse is how much of a limit is used.
type LimitUse struct {
	Used      int64 `json:"used"`
	Limit     int64 `json:"limit"`
	Remaining int64 `json:"remaining"`
	// ResetsMS is the time in milliseconds until the whole limit is there again, if it is one per
	// minute; 0 otherwise.
	ResetsMS int64 `json:"resets_ms"`
}

// BudgetUse is how far a budget is used.
type BudgetUse struct {
	// Key names the key that the budget is of; it is empty for a budget of the whole tenant.
	Key string `json:"key"`
	// Per is day or month, Of is tokens or cost.
	Per string `json:"per"`
	Of  string `json:"of"`
	// Used, Soft and Hard are in tokens or in the currency of the prices. 0 is no bound.
	Used float64 `json:"used"`
	Soft float64 `json:"soft"`
	Hard float64 `json:"hard"`
	// Level is within, soft or hard: the highest bound that is reached.
	Level string `json:"level"`
	// Resets is when the budget begins anew.
	Resets time.Time `json:"resets"`
}

// TenantLimits are a tenant's limits over all models, under their names in the file. 0 means no
// limit.
type TenantLimits struct {
	// Weight is the tenant's weight among the tenants of its priority.
	Weight               int   `json:"weight"`
	RequestsPerMinute    int   `json:"requests_per_minute"`
	TokensPerMinute      int   `json:"tokens_per_minute"`
	MaxConcurrentStreams int   `json:"max_concurrent_streams"`
	MaxPrefill           int   `json:"max_prefill"`
	MaxQueueBytes        int64 `json:"max_queue_bytes"`
}

// Pool is a group of models that a client may ask for by one name.
type Pool struct {
	Name   string   `json:"name"`
	Models []string `json:"models"`
	// Queued counts the requests that wait for any model of the pool.
	Queued int `json:"queued"`
}

type modelView struct {
	Name        string     `json:"name"`
	Aliases     []string   `json:"aliases"`
	Task        string     `json:"task"`
	Launcher    string     `json:"launcher"`
	Discovered  bool       `json:"discovered"`
	State       string     `json:"state"`
	Desired     int        `json:"desired"`
	Replicas    int        `json:"replicas"`
	Ready       int        `json:"ready"`
	InFlight    int        `json:"in_flight"`
	Queued      int        `json:"queued"`
	QueuedBytes int64      `json:"queued_bytes"`
	Weight      int        `json:"weight"`
	Limits      limitsView `json:"limits"`
	// Fetching is how far the weights of a replica have been fetched. It is absent while none are.
	Fetching *fetchView `json:"fetching,omitempty"`
	// Scaled is absent until the number of replicas has changed.
	Scaled *Scaled `json:"scaled,omitempty"`
	// Drained is ModelLoad.Drained. Scale is absent for a model that is not launched.
	Drained bool   `json:"drained,omitempty"`
	Scale   *Scale `json:"scale,omitempty"`
}

type tenantView struct {
	Tenant
	Weight int              `json:"weight"`
	Limits tenantLimitsView `json:"limits"`
}

func (h *handler) viewTenant(t Tenant) tenantView {
	t.Models = orEmpty(t.Models)
	if t.Quota == nil {
		t.Quota = map[string]LimitUse{}
	}
	t.Budgets = orEmpty(t.Budgets)
	limits := h.viewTenantLimits(t)
	return tenantView{t, limits.Weight, limits}
}

// shortDuration writes a duration as people write it in the file: 1m, not 1m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if t, ok := strings.CutSuffix(s, "m0s"); ok {
		s = t + "m"
	}
	if t, ok := strings.CutSuffix(s, "h0m"); ok {
		s = t + "h"
	}
	return s
}

func (h *handler) viewModel(m *engines.ModelSnapshot) modelView {
	load := h.ModelLoad(m.Name)
	limits := h.viewLimits(m.Name, load.Limits)
	return modelView{
		Name:        m.Name,
		Aliases:     orEmpty(m.Aliases),
		Task:        string(m.Task),
		Launcher:    string(m.Launcher),
		Discovered:  m.Discovered,
		State:       modelState(m, load),
		Desired:     m.Desired,
		Replicas:    len(m.Replicas),
		Ready:       load.Usable,
		InFlight:    load.InFlight,
		Queued:      load.Queued,
		QueuedBytes: load.QueuedBytes,
		Weight:      limits.Weight,
		Limits:      limits,
		Fetching:    modelFetch(m),
		Scaled:      load.Scaled,
		Drained:     load.Drained,
		Scale:       load.Scale,
	}
}

// fetchView shows how far weights have been fetched, in bytes.
type fetchView struct {
	Done      int64 `json:"done"`
	Total     int64 `json:"total"`
	PerSecond int64 `json:"per_second"`
}

// viewFetch returns nil if nothing is fetched.
func viewFetch(f engines.Fetch) *fetchView {
	if f.Total == 0 {
		return nil
	}
	return &fetchView{f.Done, f.Total, f.Rate}
}

// modelFetch shows the fetch of the first replica that has one. The replicas of a node share it.
func modelFetch(m *engines.ModelSnapshot) *fetchView {
	for i := range m.Replicas {
		if v := viewFetch(m.Replicas[i].Fetch); v != nil {
			return v
		}
	}
	return nil
}

// modelState sums up the states of a model's replicas in one word: ready, degraded, starting,
// draining, failed or idle. A model is degraded if fewer get requests than desired, or one has
// failed. It is idle if it has no replicas and desires none. A model is starting while Envoy knows
// none of its ready replicas.
func modelState(m *engines.ModelSnapshot, load ModelLoad) string {
	count := map[engines.State]int{}
	for i := range m.Replicas {
		count[m.Replicas[i].State]++
	}
	ready, starting := count[engines.Ready], count[engines.Starting]+count[engines.Pending]
	switch {
	case load.Usable == 0 && ready > load.DrainedReplicas:
		return "starting"
	case ready > 0 && (load.Usable < max(m.Desired, 1) || count[engines.Failed] > 0):
		return "degraded"
	case ready > 0:
		return "ready"
	case starting > 0:
		return "starting"
	case count[engines.Failed] > 0:
		return "failed"
	case count[engines.Draining] > 0:
		return "draining"
	case m.Desired > 0:
		return "starting"
	}
	return "idle"
}

type replicaView struct {
	ID    string `json:"id"`
	Model string `json:"model"`
	// ServedModel is the name under which the server knows the model.
	ServedModel string     `json:"served_model"`
	State       string     `json:"state"`
	Address     string     `json:"address"`
	InFlight    int        `json:"in_flight"`
	Max         int        `json:"max"`
	MaxFrom     string     `json:"max_from"`
	Served      uint64     `json:"served"`
	Launcher    string     `json:"launcher"`
	PID         int        `json:"pid,omitempty"`
	Pod         string     `json:"pod,omitempty"`
	Node        string     `json:"node"`
	Reason      string     `json:"reason"`
	Since       *time.Time `json:"since"`
	Restarts    int        `json:"restarts"`
	GPUs        []string   `json:"gpus"`
	// Fetching is how far the weights have been fetched. It is absent while none are.
	Fetching *fetchView `json:"fetching,omitempty"`
	// FailedStarts is how many starts in a row have failed, Failure the kind of the last fault, and
	// NextStart when the replica is started again.
	FailedStarts int        `json:"failed_starts"`
	Failure      string     `json:"failure"`
	NextStart    *time.Time `json:"next_start"`
	// CloseDelimited is ReplicaLoad.CloseDelimited.
	CloseDelimited bool `json:"close_delimited"`
	// Engine is ReplicaLoad.Engine.
	Engine *EngineNews `json:"engine"`
	// Command is ReplicaLoad.Command.
	Command string `json:"command,omitempty"`
	// Drained is ReplicaLoad.Drained.
	Drained bool `json:"drained,omitempty"`
}

func viewReplica(r engines.Replica, load ReplicaLoad) replicaView {
	address := ""
	if r.Address.IsValid() {
		address = r.Address.String()
	}
	pod := ""
	if r.Launcher == engines.Kubernetes {
		pod = r.ID
	}
	return replicaView{
		ID:          r.ID,
		Model:       r.Model,
		ServedModel: r.ServedModel,
		State:       string(r.State),
		Address:     address,
		InFlight:    load.InFlight,
		Max:         load.Max,
		MaxFrom:     load.MaxFrom,
		Served:      load.Served,
		Launcher:    string(r.Launcher),
		PID:         r.PID,
		Pod:         pod,
		Node:        r.Node,
		Reason:      r.Reason,
		Since:       orNull(r.Since),
		Restarts:    r.Restarts,
		GPUs:        orEmpty(r.Devices()),

		Fetching:     viewFetch(r.Fetch),
		FailedStarts: r.FailedStarts,
		Failure:      string(r.Failure),
		NextStart:    orNull(r.NextStart),

		CloseDelimited: load.CloseDelimited,
		Engine:         load.Engine,
		Command:        load.Command,
		Drained:        load.Drained,
	}
}

// requestView shows a running or finished request.
type requestView struct {
	// RequestID is Envoy's id of the request. ClientRequestID is the client's own; it is empty if
	// the client gave none.
	RequestID       string `json:"request_id"`
	ClientRequestID string `json:"client_request_id"`
	Method          string `json:"method"`
	Path            string `json:"path"`
	Tenant          string `json:"tenant"`
	Model           string `json:"model"`
	Replica         string `json:"replica"`
	Upstream        string `json:"upstream"`
	State           string `json:"state"`
	Status          int    `json:"status"`
	Code            string `json:"code"`
	Source          string `json:"source"`
	// Route is native or managed. Cause is what ended a stream before its engine did. FinishReason
	// is the finish reason that the engine gave.
	Route        string `json:"route"`
	Cause        string `json:"cause"`
	FinishReason string `json:"finish_reason"`
	// FinishEstimated says that nobody has read the finish reason, which is what the length of the
	// answer suggests.
	FinishEstimated bool `json:"finish_estimated"`
	// TokensIn and TokensOut count the tokens of the prompt and the answer, as far as they are
	// known. TraceID is the id of the trace that the request belongs to.
	TokensIn  int64 `json:"tokens_in"`
	TokensOut int64 `json:"tokens_out"`
	// Estimated says that the engine has not counted TokensIn and TokensOut.
	Estimated   bool       `json:"estimated"`
	TraceID     string     `json:"trace_id"`
	Flags       string     `json:"flags"`
	Details     string     `json:"details"`
	Stream      bool       `json:"stream"`
	QueuedMS    float64    `json:"queued_ms"`
	FirstByteMS float64    `json:"first_byte_ms"`
	DurationMS  float64    `json:"duration_ms"`
	BytesIn     int64      `json:"bytes_in"`
	BytesOut    int64      `json:"bytes_out"`
	Attempts    int        `json:"attempts"`
	Started     *time.Time `json:"started"`
}

func viewRequest(q request.Summary) requestView {
	return requestView{
		RequestID:       q.ID,
		ClientRequestID: q.ClientID,
		Method:          q.Method,
		Path:            q.Path,
		Tenant:          q.Tenant,
		Model:           q.Model,
		Replica:         q.Replica,
		Upstream:        q.Upstream,
		State:           string(q.State),
		Status:          q.Status,
		Code:            q.Code,
		Source:          q.Source,
		Route:           q.Route,
		Cause:           q.Cause,
		FinishReason:    q.FinishReason,
		FinishEstimated: q.FinishEstimated,
		TokensIn:        q.PromptTokens,
		TokensOut:       q.CompletionTokens,
		Estimated:       q.IsEstimated(),
		TraceID:         q.TraceID(),
		Flags:           q.Flags,
		Details:         q.Details,
		Stream:          q.Stream,
		QueuedMS:        milliseconds(q.Waited),
		FirstByteMS:     milliseconds(q.FirstByte),
		DurationMS:      milliseconds(q.Duration),
		BytesIn:         q.BytesIn,
		BytesOut:        q.BytesOut,
		Attempts:        q.Attempts,
		Started:         orNull(q.Started),
	}
}

// milliseconds returns a duration in milliseconds, rounded to two decimals.
func milliseconds(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Millisecond)*100) / 100
}

// orNull returns nil, which is encoded as null, for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// orEmpty replaces a nil slice by an empty one, which is encoded as [].
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return slices.Clip(s)
}
