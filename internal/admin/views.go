package admin

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/request"
)

// ModelLoad is what a model is doing and may do.
type ModelLoad struct {
	// InFlight counts the requests that are at replicas, Queued those that wait.
	InFlight, Queued int
	// QueuedBytes are the bodies that are held for the waiting ones.
	QueuedBytes int64
	Limits      Limits
}

// Limits of a model, under the names they have in the file. 0 means no limit; for MaxPerReplica, that it is the engine's own.
type Limits struct {
	// Weight is the model's share in its pools.
	Weight                int           `json:"weight"`
	MaxConcurrentRequests int           `json:"max_concurrent_requests"`
	MaxTokensPerMinute    int           `json:"max_tokens_per_minute"`
	MaxPerReplica         int           `json:"max_per_replica"`
	MaxQueue              int           `json:"max_queue"`
	QueueTimeout          time.Duration `json:"-"`
}

// ReplicaLoad is what a replica is doing.
type ReplicaLoad struct {
	// InFlight counts the requests that are on it.
	InFlight int
	// Served counts the requests it was given since Sluice started.
	Served uint64
	// Max is the most requests it is given at once; 0: no bound is known.
	Max int
}

// Tenant is a caller. Keys and their hashes are not in it.
type Tenant struct {
	Name string `json:"name"`
	// Models it may use; "*" stands for all.
	Models []string `json:"models"`
	// InFlight counts its requests that are held or at replicas.
	InFlight int `json:"in_flight"`
	// Keys is the number of its keys.
	Keys int `json:"keys"`
	// Priority is interactive, default or batch.
	Priority string `json:"priority"`
	// Running counts its requests at replicas, Prefill those of them that have no token yet, Queued those that wait.
	Running int `json:"running"`
	Prefill int `json:"prefill"`
	Queued  int `json:"queued"`
	// Limits that hold.
	Limits TenantLimits `json:"-"`
}

// TenantLimits are a tenant's limits over all models, under the names they have in the file. 0 means no limit.
type TenantLimits struct {
	// Weight is the tenant's share beside others of its priority.
	Weight               int   `json:"weight"`
	RequestsPerMinute    int   `json:"requests_per_minute"`
	TokensPerMinute      int   `json:"tokens_per_minute"`
	MaxConcurrentStreams int   `json:"max_concurrent_streams"`
	MaxPrefill           int   `json:"max_prefill"`
	MaxQueueBytes        int64 `json:"max_queue_bytes"`
}

// Pool is a group of models that a caller may ask for by one name.
type Pool struct {
	Name   string   `json:"name"`
	Models []string `json:"models"`
	// Queued counts the requests that wait for any of them.
	Queued int `json:"queued"`
}

// Pick is where a request with a certain cache key would go.
type Pick struct {
	// Position of the key on the ring.
	Position uint64
	// First is the replica that owns the position, before loads are looked at.
	First string
	// Picked is the replica that would be taken now; empty when none could be.
	Picked string
	// Order is every replica on the ring, in the order in which they are tried.
	Order []PickReplica
}

// PickReplica is one replica in the order of a Pick.
type PickReplica struct {
	ID   string `json:"id"`
	Load int    `json:"load"`
	// Candidate is false for a replica that may not be picked at all: full, or not known to Envoy yet.
	Candidate bool `json:"candidate"`
}

// Status is how Sluice itself and its Envoy are.
type Status struct {
	// Version of Sluice.
	Version string
	// Started is when this process started.
	Started time.Time
	// Listen is where clients reach the API, host:port.
	Listen string
	Envoy  EnvoyStatus
	XDS    XDSStatus
	Config ConfigStatus
	Shared SharedStatus
	// Problems are further things that the operator should know, a sentence each.
	Problems []string
}

// EnvoyStatus is how Envoy is. State is external for an Envoy that someone else runs.
type EnvoyStatus struct {
	State    string `json:"state"`
	PID      int    `json:"pid"`
	Version  string `json:"version"`
	Adopted  bool   `json:"adopted"`
	Restarts int    `json:"restarts"`
	// Reason says why it is not live, with its last log line where there is one.
	Reason string `json:"reason"`
}

// XDSStatus is what Envoy has accepted.
type XDSStatus struct {
	Connected bool   `json:"connected"`
	Nacks     uint64 `json:"nacks"`
	// LastNack is the last refusal, which may be mended since; nil when there was none.
	LastNack *Nack `json:"last_nack"`
	// Refused is what Envoy does not take as it is now; the page asks for attention while there is any.
	Refused []Nack `json:"refused"`
}

// Nack is Envoy's refusal of a resource.
type Nack struct {
	Type     string    `json:"type"`
	Resource string    `json:"resource"`
	Message  string    `json:"message"`
	Time     time.Time `json:"time"`
}

// ConfigStatus is the configuration in force.
type ConfigStatus struct {
	// Path of the file; empty when there is none.
	Path string
	// LoadedAt is when the configuration in force was read.
	LoadedAt time.Time
	// Faults of a newer file that was refused, one sentence each.
	Faults []string
}

// SharedStatus is how the state is that several gateways share.
type SharedStatus struct {
	// Configured is false for a gateway that shares with nobody; then nothing else matters.
	Configured bool `json:"configured"`
	// Up says whether it answers.
	Up bool `json:"up"`
	// Mode is shared, or alone while this gateway goes by its last known share of the limits.
	Mode string `json:"mode"`
	// Gateways that are known to live, this one included.
	Gateways int `json:"gateways"`
	// Since is when it went up or down.
	Since time.Time `json:"-"`
	// LastError says why it did not answer; it may be mended since.
	LastError string `json:"last_error"`
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
}

type tenantView struct {
	Tenant
	Weight int              `json:"weight"`
	Limits tenantLimitsView `json:"limits"`
}

func (h *handler) viewTenant(t Tenant) tenantView {
	t.Models = orEmpty(t.Models)
	limits := h.viewTenantLimits(t)
	return tenantView{t, limits.Weight, limits}
}

// shortDuration is a duration as the file would say it: 1m, not 1m0s.
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
	load := h.modelLoad(m.Name)
	limits := h.viewLimits(m.Name, load.Limits)
	return modelView{
		Name:        m.Name,
		Aliases:     orEmpty(m.Aliases),
		Task:        string(m.Task),
		Launcher:    string(m.Launcher),
		Discovered:  m.Discovered,
		State:       modelState(m),
		Desired:     m.Desired,
		Replicas:    len(m.Replicas),
		Ready:       len(m.Ready()),
		InFlight:    load.InFlight,
		Queued:      load.Queued,
		QueuedBytes: load.QueuedBytes,
		Weight:      limits.Weight,
		Limits:      limits,
	}
}

// modelState puts the states of a model's replicas into one word: ready, degraded (some are missing), starting, draining,
// failed, or idle (there are none, and none on the way).
func modelState(m *engines.ModelSnapshot) string {
	count := map[engines.State]int{}
	for i := range m.Replicas {
		count[m.Replicas[i].State]++
	}
	ready, coming := count[engines.Ready], count[engines.Starting]+count[engines.Pending]
	switch {
	case ready > 0 && (ready < m.Desired || count[engines.Failed] > 0):
		return "degraded"
	case ready > 0:
		return "ready"
	case coming > 0:
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
	ID       string     `json:"id"`
	Model    string     `json:"model"`
	State    string     `json:"state"`
	Address  string     `json:"address"`
	InFlight int        `json:"in_flight"`
	Max      int        `json:"max"`
	Served   uint64     `json:"served"`
	Launcher string     `json:"launcher"`
	PID      int        `json:"pid,omitempty"`
	Pod      string     `json:"pod,omitempty"`
	Node     string     `json:"node"`
	Reason   string     `json:"reason"`
	Since    *time.Time `json:"since"`
	Restarts int        `json:"restarts"`
	GPUs     []string   `json:"gpus"`
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
		ID:       r.ID,
		Model:    r.Model,
		State:    string(r.State),
		Address:  address,
		InFlight: load.InFlight,
		Max:      load.Max,
		Served:   load.Served,
		Launcher: string(r.Launcher),
		PID:      r.PID,
		Pod:      pod,
		Node:     r.Node,
		Reason:   r.Reason,
		Since:    orNull(r.Since),
		Restarts: r.Restarts,
		GPUs:     orEmpty(r.Devices()),
	}
}

type requestView struct {
	RequestID string `json:"request_id"`
	Method    string `json:"method"`
	Path      string `json:"path"`
	Tenant    string `json:"tenant"`
	Model     string `json:"model"`
	Replica   string `json:"replica"`
	Upstream  string `json:"upstream"`
	State     string `json:"state"`
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Source    string `json:"source"`
	// Route is native or managed; Cause is who ended a stream before its end, FinishReason why its engine did.
	Route        string `json:"route"`
	Cause        string `json:"cause"`
	FinishReason string `json:"finish_reason"`
	// TokensOut is what the response has cost as far as that is known, TraceID the trace that it belongs to.
	TokensOut   int64      `json:"tokens_out"`
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
		RequestID:    q.ID,
		Method:       q.Method,
		Path:         q.Path,
		Tenant:       q.Tenant,
		Model:        q.Model,
		Replica:      q.Replica,
		Upstream:     q.Upstream,
		State:        string(q.State),
		Status:       q.Status,
		Code:         q.Code,
		Source:       q.Source,
		Route:        q.Route,
		Cause:        q.Cause,
		FinishReason: q.FinishReason,
		TokensOut:    q.CompletionTokens,
		TraceID:      q.TraceID(),
		Flags:        q.Flags,
		Details:      q.Details,
		Stream:       q.Stream,
		QueuedMS:     milliseconds(q.Waited),
		FirstByteMS:  milliseconds(q.FirstByte),
		DurationMS:   milliseconds(q.Duration),
		BytesIn:      q.BytesIn,
		BytesOut:     q.BytesOut,
		Attempts:     q.Attempts,
		Started:      orNull(q.Started),
	}
}

// milliseconds with two decimals.
func milliseconds(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Millisecond)*100) / 100
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// orEmpty makes a nil slice render as [].
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return slices.Clip(s)
}
