// Package carry connects a process that a restart has replaced (the predecessor) with the one that
// has replaced it (the successor). Package internal/gateway runs both sides.
//
// The predecessor carries the streams that it has to their end. It tells its successor over a unix
// socket which requests it holds, so that limits and the loads of replicas hold over the restart
// (Link). The successor counts them, frees them when their predecessor says so or is gone, and
// tells its predecessors to drain (Server). When the successor is replaced in its turn, its
// predecessors connect to the new process: the newest process always listens at the same path.
//
// The two may be different versions of the program. So messages are JSON, one a line, and a field
// or a message that a process does not know means nothing to it.
package carry

import (
	"encoding/json"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
)

// Process describes one process of a gateway to the others.
type Process struct {
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Instance is random, so that no two processes share it.
	Instance string `json:"instance"`
	// Socket is the unix socket on which the process answers for the streams that it carries.
	Socket string `json:"socket"`
}

// message is a line from a predecessor to its successor. One field is set.
type message struct {
	Hello   *Process    `json:"hello,omitempty"`
	Hold    *hold       `json:"hold,omitempty"`
	Correct *correction `json:"correct,omitempty"`
	// Learned says which replica has responses that the predecessor has learned.
	Learned *dispatch.ReplicaResponses `json:"learned,omitempty"`
	// Ended is the request.Summary of a request that has ended at the predecessor. It is not read
	// with the message: its fields are those of the predecessor's release.
	Ended json.RawMessage `json:"ended,omitempty"`
	// Counts says that only the predecessor has counted the request of Ended, and just now.
	Counts bool `json:"counts,omitempty"`
	// Used is the request.Summary of a request whose tokens the predecessor has counted apart from
	// its end, and just now. It is read as Ended is.
	Used json.RawMessage `json:"used,omitempty"`
	// Retried tells of an attempt that the predecessor has seen repeated at another replica.
	Retried *retry `json:"retried,omitempty"`
	// Release is the number of a request that the predecessor holds no more.
	Release uint64 `json:"release,omitempty"`
	// Synced says that all requests that are held have been told.
	Synced bool `json:"synced,omitempty"`
}

// hold says that the predecessor holds a request, or that its slot is on another replica now.
type hold struct {
	Ref      uint64 `json:"ref"`
	Model    string `json:"model"`
	Replica  string `json:"replica"`
	Tenant   string `json:"tenant"`
	SlotOnly bool   `json:"slot_only,omitempty"`
	Task     string `json:"task,omitempty"`
	APIKey   string `json:"api_key,omitempty"`
}

// retry is an attempt for a tenant that was repeated at another replica of a model.
type retry struct {
	Model  string `json:"model"`
	Tenant string `json:"tenant"`
	Reason string `json:"reason"`
}

// correction says what a held request has really cost, in tokens.
type correction struct {
	Ref    uint64 `json:"ref"`
	Tokens int    `json:"tokens"`
}

// order is a line from a successor to its predecessor.
type order struct {
	// Drain is how long the predecessor may carry its streams on, because the gateway stops.
	Drain *time.Duration `json:"drain_ns,omitempty"`
	// Begun says that the response of a request has begun which the predecessor may hold.
	Begun *begun `json:"begun,omitempty"`
}

// begun has the first bytes of a response, which Envoy's observer filter tells the successor.
type begun struct {
	ID    string `json:"id"`
	Bytes []byte `json:"bytes"`
}

func newHold(ref uint64, r dispatch.HeldRequest) *hold {
	return &hold{Ref: ref, Model: r.Model, Replica: r.Replica, Tenant: r.Tenant, APIKey: r.APIKey, SlotOnly: r.SlotOnly, Task: r.Task}
}

func (h *hold) request() dispatch.HeldRequest {
	return dispatch.HeldRequest{Model: h.Model, Replica: h.Replica, Tenant: h.Tenant, APIKey: h.APIKey, SlotOnly: h.SlotOnly, Task: h.Task}
}
