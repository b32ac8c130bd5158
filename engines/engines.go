// Package engines is the vocabulary of Sluice: engines and their versions, models, replicas, nodes,
// and the fleet. Nearly every other package uses it.
//
// An Engine is data: how an inference server is started, which tasks it serves, and how its
// readiness is probed. A Model is what a client asks for by name. It names its engine and how its
// replicas come to be. A Replica is one running server of one model. A launcher (engines/local,
// engines/kubernetes, engines/upstream) makes replicas and reports them to the Fleet. All other
// parts read the Fleet's immutable Snapshot and never call a launcher.
package engines

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"
)

// Task is a kind of work that a model does.
type Task string

// The tasks a model may have.
const (
	TextGeneration Task = "text-generation"
	Embedding      Task = "embedding"
	Rerank         Task = "rerank"
	Transcription  Task = "transcription"
	// Speech is text to speech.
	Speech          Task = "speech"
	ImageGeneration Task = "image-generation"
)

// Launcher names how the replicas of a model come to be.
type Launcher string

// The launchers.
const (
	// Local replicas are processes on a node.
	Local Launcher = "local"
	// Kubernetes replicas are pods of Deployments.
	Kubernetes Launcher = "kubernetes"
	// Ray replicas are jobs of a Ray cluster.
	Ray Launcher = "ray"
	// Upstream replicas are servers that Sluice does not start.
	Upstream Launcher = "upstream"
	// None is for a model without replicas. Sluice only admits its requests; they are served
	// elsewhere.
	None Launcher = "none"
)

// Model is what clients ask for by name.
type Model struct {
	// Name identifies the model. Aliases are further names that clients may use.
	Name    string
	Aliases []string
	// Adapters are those aliases that the engine itself knows and must be asked for by: LoRA
	// adapters on the model.
	Adapters []string
	// Task is empty if it is not known, as for a discovered model.
	Task Task
	// ContextLength is how many tokens prompt and answer may have together; 0: not known.
	ContextLength int
	// ServedModel is the name under which those replicas know the model that have no ServedModel of
	// their own. Empty means Name.
	ServedModel string `json:",omitempty"`
	// Launcher is how the model's replicas come to be.
	Launcher Launcher
	// Discovered models were found on an upstream and are not in the configuration.
	Discovered bool
	// Desired is the number of replicas that there should be. It is 0 for upstreams, which are not
	// scaled.
	Desired int
	// MaxReplicas is the greatest number of replicas that scaling out may reach. Its JSON name is
	// part of the protocol of joined nodes.
	MaxReplicas int `json:"Most"`
}

// PermittedAs returns the name that a caller must be allowed to use to ask for the model by this
// name. It is the name of the adapter if asked is one, else that of the model.
func (m *Model) PermittedAs(asked string) string {
	if slices.Contains(m.Adapters, asked) {
		return asked
	}
	return m.Name
}

// NameAt returns the name under which a replica knows the model.
func (m Model) NameAt(r *Replica) string { return cmp.Or(r.ServedModel, m.ServedModel, m.Name) }

// State is a phase in the life of a replica.
type State string

// The states of a replica. Only a Ready one is in Envoy's endpoints and gets requests.
const (
	Pending  State = "pending"  // desired, not started yet
	Starting State = "starting" // the process runs, the readiness probe has not passed
	Ready    State = "ready"
	Draining State = "draining" // gets no new requests, finishes those it has
	Failed   State = "failed"   // ended or unhealthy; may wait for its next start
	Stopped  State = "stopped"
)

// Replica is one server of one model. It is a value: a change of the replica is a new value in the
// next Snapshot.
type Replica struct {
	// ID is stable over restarts. It is "<model>-<n>" for local replicas and the name of the pod on
	// Kubernetes. For upstreams it is host:port, with the path if there is one. The second server
	// of a URL has a # and a further name behind that.
	ID      string
	Model   string
	State   State
	Address netip.AddrPort
	// Host is the Host header of requests to an upstream. Empty leaves the client's.
	Host string
	// ServedModel is the name under which the server knows the model, and under which it is asked
	// for it. Empty means the ServedModel of the model.
	ServedModel string `json:",omitempty"`
	// Transport is nil if the replica is called by plain HTTP and nothing is added to requests.
	Transport *Transport
	// Launcher is what made the replica.
	Launcher Launcher
	// Node is the name of the node that the replica runs on. It is empty if it is not known, as for
	// an upstream.
	Node string
	// PID is the process of a local replica, otherwise 0.
	PID int
	// Reason says why the replica is not ready, with the last log line if there is one. The
	// launcher has hidden the secrets in it (package redact), because operators and custom
	// resources show it.
	Reason string
	// Fetch is how far the weights have been fetched. It is zero if Sluice does not fetch any now.
	Fetch Fetch `json:",omitzero"`
	// FailedStarts is how many starts in a row have ended before the replica was ready.
	FailedStarts int `json:",omitempty"`
	// Failure is the class of the last failure. It is empty once the replica has been ready again.
	Failure FailureClass `json:",omitempty"`
	// NextStart is when a failed replica is started again. It is zero if that is not known.
	NextStart time.Time `json:",omitzero"`
	// LoadTime is how long the replica took from its last start until it was ready. 0 means that it
	// is not known.
	LoadTime time.Duration `json:",omitempty"`
	// CloseDelimited says that the launcher has seen the replica end a response by closing its
	// connection, as HTTP/1.0 does: see IsCloseDelimited.
	CloseDelimited bool `json:",omitempty"`
	// Slots is the number of requests that the engine works on at once. 0 means unknown.
	Slots int
	// Since is when the replica entered State.
	Since time.Time
	// Restarts counts the starts after the first one.
	Restarts int
	// Resources are what a local replica uses of its node, as far as its model says.
	Resources Resources
	// GPUs are the UUIDs of its devices, separated by commas as in CUDA_VISIBLE_DEVICES. It is
	// empty if the replica was given none.
	GPUs string
}

// Fetch says how far the weights of a replica have been fetched, in bytes.
type Fetch struct {
	Done, Total int64
	// Rate is what arrives in a second.
	Rate int64
}

// IsCloseDelimited reports whether only the end of the connection ends the body of a response (RFC
// 9112, section 6.3), so that a cut looks like an end. The request was not a HEAD.
func IsCloseDelimited(r *http.Response) bool {
	return r.ContentLength < 0 && len(r.TransferEncoding) == 0 && r.ProtoMajor == 1 && !r.Uncompressed
}

// Group returns the name of the replicas of a model that are called in the same way. It is the name
// of the Transport and, after an equals sign, the ServedModel. It is "" for plain HTTP and the
// model's own name. Envoy retries a request inside its group only, because the body has one name.
func (r Replica) Group() string {
	group := ""
	if r.Transport != nil {
		group = r.Transport.Group
	}
	if r.ServedModel != "" {
		group += "=" + url.PathEscape(r.ServedModel)
	}
	return group
}

// Transport says how servers are called for which plain HTTP is not enough. Replicas with different
// Transports share nothing in Envoy, so that the secrets of one never reach another. A Transport is
// immutable, holds secrets, and prints only its group.
type Transport struct {
	// Group is a name for all replicas with the same Transport. It reveals no secret, contains no
	// =, and does not begin with #.
	Group string
	// TLS is nil for servers without TLS.
	TLS *TLS
	// Prefix precedes the path of every request. It begins with a slash and does not end with one,
	// or is empty.
	Prefix string
	// API stands in the place of /v1 in the path of every request, for servers that have OpenAI's
	// API elsewhere. It begins with a slash and does not end with one, but for / alone, which
	// removes /v1. Empty means /v1.
	API string
	// Headers are set on every request and replace those of the client. Authorization may be among
	// them.
	Headers []Header
}

// TLS says how a server proves its identity.
type TLS struct {
	// ServerName is the host name or IP address that the server's certificate must be for.
	ServerName string
	// CA holds PEM certificates, one of which must have signed the server's. Empty means those that
	// the system trusts.
	CA string
	// Unchecked accepts any certificate.
	Unchecked bool
}

// Header is one header of a request.
type Header struct{ Name, Value string }

// String returns the group, without the secrets.
func (t *Transport) String() string {
	if t == nil {
		return "plain"
	}
	return t.Group
}

// GoString is String.
func (t *Transport) GoString() string { return t.String() }

// MarshalJSON encodes String, so that no dump of a replica holds a secret.
func (t *Transport) MarshalJSON() ([]byte, error) { return json.Marshal(t.String()) }
