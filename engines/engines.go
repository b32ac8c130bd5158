// Package engines holds the nouns of Sluice: engines, models, replicas, and the fleet they make up.
//
// An Engine is data: how some inference server is launched, which tasks it serves, what tells that it is ready. A Model
// is what a client asks for by name; it names its engine and how its replicas come to be. A Replica is one running
// server of one model. A launcher (engines/local, engines/upstream) makes replicas out of models and reports them to the
// Fleet; everybody else reads the Fleet's immutable Snapshot and never talks to a launcher.
package engines

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Task is what a model can be asked to do.
type Task string

// The tasks a model may have.
const (
	TextGeneration Task = "text-generation"
	Embedding      Task = "embedding"
	Rerank         Task = "rerank"
	Transcription  Task = "transcription"
)

// Launcher names how a model's replicas come to be.
type Launcher string

// The launchers.
const (
	// Local replicas are processes on this host.
	Local Launcher = "local"
	// Kubernetes replicas are pods of Deployments.
	Kubernetes Launcher = "kubernetes"
	// Upstream replicas are servers that someone else runs.
	Upstream Launcher = "upstream"
	// None is for a model without replicas, which is only admitted: its work is done elsewhere.
	None Launcher = "none"
)

// Model is what clients ask for by name.
type Model struct {
	Name    string
	Aliases []string
	// Adapters are those of the aliases that the engine itself knows, and is to be asked for by: LoRA adapters on the model.
	Adapters []string
	// Task is empty when it is not known, as for a discovered model.
	Task     Task
	Launcher Launcher
	// Discovered models were found on an upstream and are not in the file.
	Discovered bool
	// Desired is how many replicas there should be; 0 for upstreams, which are what they are.
	Desired int
	// Most is how many there may be: more than Desired come when requests wait for them.
	Most int
}

// State is where a replica is in its life.
type State string

// The states of a replica. Only a Ready one is in Envoy's endpoints and gets requests.
const (
	Pending  State = "pending"  // wanted, not started yet
	Starting State = "starting" // process runs, readiness probe has not passed
	Ready    State = "ready"
	Draining State = "draining" // gets no new requests, finishes what it has
	Failed   State = "failed"   // ended or unhealthy, perhaps waiting for its next start; Reason says why
	Stopped  State = "stopped"
)

// Replica is one server of one model. It is a value: a changed replica is a new value in the next Snapshot.
type Replica struct {
	// ID is stable over restarts: "<model>-<n>" for local replicas, the name of the pod, or host:port for upstreams, with the path where
	// there is one.
	ID      string
	Model   string
	State   State
	Address netip.AddrPort
	// Host is what requests to an upstream say in their Host header; empty leaves them as they are.
	Host string
	// Transport is nil for a replica that is called by plain HTTP, and with nothing added.
	Transport *Transport
	// Launcher is where the replica came from.
	Launcher Launcher
	// Node is the host that it is on; empty where that is not known, as for an upstream.
	Node string
	// PID is the process of a local replica, 0 otherwise.
	PID int
	// Reason says in words why the replica is not ready, with the last log line where there is one.
	Reason string
	// Slots is how many requests the engine works on at once, as far as it is known; 0 means unknown.
	Slots int
	// Since is when the replica entered State.
	Since time.Time
	// Restarts counts the starts after the first.
	Restarts int
	// Resources are what a local replica takes of its host, as far as its model says.
	Resources Resources
	// GPUs are the UUIDs of its devices, separated by commas as CUDA_VISIBLE_DEVICES has them; empty where it was given none.
	GPUs string
}

// Group is the name of the replica's Transport, empty for a plain one.
func (r Replica) Group() string {
	if r.Transport == nil {
		return ""
	}
	return r.Transport.Group
}

// Transport is how servers are called for which plain HTTP is not enough. Replicas with different ones share nothing in Envoy, so that
// the secrets of one never reach another. It is immutable, holds secrets, and prints as its group.
type Transport struct {
	// Group is a name for all replicas with the same content here. It tells nothing of the secrets, and has no #.
	Group string
	// TLS is nil where there is none.
	TLS *TLS
	// Prefix goes before the path of every request: a slash and more, without one at the end; or empty.
	Prefix string
	// Headers are set on every request, by name, whatever the client wrote; Authorization among them.
	Headers []Header
}

// TLS is how a server proves who it is.
type TLS struct {
	// ServerName is the host name or IP address that its certificate must be for.
	ServerName string
	// CA holds the certificates, as PEM, one of which must have signed it; empty means those that the system trusts.
	CA string
	// Unchecked takes any certificate.
	Unchecked bool
}

// Header is one header of a request.
type Header struct{ Name, Value string }

// String names the transport without its secrets.
func (t *Transport) String() string {
	if t == nil {
		return "plain"
	}
	return t.Group
}

// GoString is String.
func (t *Transport) GoString() string { return t.String() }

// MarshalJSON is String as JSON, so that no dump of a replica holds a secret.
func (t *Transport) MarshalJSON() ([]byte, error) { return json.Marshal(t.String()) }
