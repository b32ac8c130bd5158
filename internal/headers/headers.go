// Package headers is the one list of the names through which Sluice and its Envoy understand each other: headers, clusters, and
// what the access log tells. The filter that decides (extproc) writes them, the routes that Envoy is given (xds) match them, the bootstrap
// (envoy) defines the two clusters that lead back to Sluice.
package headers

import "strings"

// Headers that only Sluice may set. Envoy removes them from every client's request.
const (
	// Cluster names the Envoy cluster of the chosen model. Inference routes match nothing without it.
	Cluster = "x-sluice-cluster"
	// Endpoint is the ordered list of replicas, ip:port,ip:port, that Envoy's override_host policy follows.
	Endpoint = "x-gateway-destination-endpoint"
	// Stream is "1" on requests that ask for a streamed response.
	Stream = "x-sluice-stream"
	// ClientTimeout is "1" when it is the client's own timeout that bounds the response.
	ClientTimeout = "x-sluice-client-timeout"
	// Tenant is who calls, for Sluice's own handlers behind ext_authz.
	Tenant = "x-sluice-tenant"
	// Key is the digest of the key that the caller has shown, for handlers whose connections may outlive it.
	Key = "x-sluice-key"
	// Ticket stands for a decision that was already taken.
	Ticket = "x-sluice-ticket"
	// Patient says, of a request that another gateway has passed on, that its client may take nothing for as long as it likes: stream.Call.Patient.
	Patient = "x-sluice-patient"
	// Forwarded is on requests that another gateway has passed on. They are not passed on again.
	Forwarded = "x-sluice-forwarded"
	// Observe is "1" on requests whose first token Sluice wants to hear of at once.
	Observe = "x-sluice-observe"
	// Usage is "1" on requests whose tokens are to be counted from the response.
	Usage = "x-sluice-usage"
)

// Headers on responses.
const (
	// Source says which side answered: SourceGateway or SourceEngine.
	Source = "x-sluice-source"
	// Replica is the id of the replica that answered.
	Replica = "x-sluice-replica"
	// RequestID is Envoy's own id of a request. It is never an identity: clients cannot choose it.
	RequestID = "x-request-id"
	// OriginalPath is Envoy's own name for the path of a request before it was changed for an upstream.
	OriginalPath = "x-envoy-original-path"
)

// Values of the Source header.
const (
	SourceGateway = "gateway"
	SourceEngine  = "engine"
)

// What a tenant has left of its limits a minute, on responses of engines. ext_proc notes each under its header's name in the namespace
// Metadata, with its answer to the request's body; Envoy puts those that are noted on the response and leaves out the others.
const (
	LimitRequests     = "x-ratelimit-limit-requests"
	RemainingRequests = "x-ratelimit-remaining-requests"
	ResetRequests     = "x-ratelimit-reset-requests"
	LimitTokens       = "x-ratelimit-limit-tokens"
	RemainingTokens   = "x-ratelimit-remaining-tokens"
	ResetTokens       = "x-ratelimit-reset-tokens"
)

// RateLimits lists the headers of what a tenant has left.
func RateLimits() []string {
	return []string{LimitRequests, RemainingRequests, ResetRequests, LimitTokens, RemainingTokens, ResetTokens}
}

// How Envoy's observer is told from the ext_proc that decides, and how it names its request.
const (
	// Role is gRPC metadata of an ext_proc exchange.
	Role = "x-sluice-role"
	// RoleObserver is its value on the exchanges of the filter that tells of a first token.
	RoleObserver = "observer"
	// AttributeRequestID is Envoy's attribute that the observer's message has: the value of the RequestID header.
	AttributeRequestID = "request.id"
)

// Request options of clients.
const (
	// IdempotencyKey is the same as the body field request_id.
	IdempotencyKey = "idempotency-key"
	// Timeout is the same as the body field timeout_ms.
	Timeout = "x-sluice-timeout-ms"
	// Priority is how urgent the request is: interactive, default or batch. Behind ext_authz it is what the tenant's key allows.
	Priority = "x-sluice-priority"
	// TaskID names a task of the client's, which the request then belongs to.
	TaskID = "x-sluice-task-id"
	// Heartbeat says which form heartbeats of a managed stream have: HeartbeatChunk, or comments.
	Heartbeat = "x-sluice-heartbeat"
	// HeartbeatChunk asks for chunks without content, for clients that cannot read comments.
	HeartbeatChunk = "chunk"
)

// Clusters.
const (
	// ControlCluster is Sluice's gRPC listener: ext_proc, ext_authz, xDS, access log.
	ControlCluster = "sluice_control"
	// APICluster is Sluice's HTTP listener for what it answers itself on Envoy's listener.
	APICluster = "sluice_api"
	// RelayCluster is Sluice's HTTP listener for managed streams: the relay, /v1/realtime and /v1/streams.
	RelayCluster = "sluice_relay"
	// GRPCCluster is Sluice's gRPC listener for clients: llm.v1.Inference.
	GRPCCluster = "sluice_grpc"
	// UndecidedCluster exists nowhere: a request that no decision was taken for is routed to it and so becomes a 503.
	UndecidedCluster = "sluice_undecided"
)

// Internal lists the headers that are removed from clients' requests.
func Internal() []string {
	return []string{Cluster, Endpoint, Endpoint + "-subset", Endpoint + "-served", Stream, ClientTimeout, Tenant, Key, Ticket, Forwarded, Patient,
		Observe, Usage}
}

const modelPrefix = "model/"

// groupMark stands between a model and a group in the name of a cluster. In the name of a model it is doubled.
const groupMark = "#"

// ModelCluster is the name of a model's Envoy cluster: that of the replicas which are called plainly.
func ModelCluster(model string) string {
	return modelPrefix + strings.ReplaceAll(model, groupMark, groupMark+groupMark)
}

// GroupCluster is the name of the cluster of a model's replicas that are called in a way of their own, or ModelCluster for the group
// without a name. A group's name does not begin with a groupMark.
func GroupCluster(model, group string) string {
	if group == "" {
		return ModelCluster(model)
	}
	return ModelCluster(model) + groupMark + group
}

// ClusterModel is the model that an Envoy cluster belongs to; false for clusters that belong to none.
func ClusterModel(cluster string) (model string, ok bool) {
	name, ok := strings.CutPrefix(cluster, modelPrefix)
	if !ok || !strings.Contains(name, groupMark) {
		return name, ok
	}
	var b strings.Builder
	for {
		before, after, _ := strings.Cut(name, groupMark)
		b.WriteString(before)
		rest, doubled := strings.CutPrefix(after, groupMark)
		if !doubled {
			return b.String(), true // what follows the mark is the group
		}
		b.WriteString(groupMark)
		name = rest
	}
}
