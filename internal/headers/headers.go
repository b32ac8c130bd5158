// Package headers is the one list of the names that Sluice and its Envoy share: headers, clusters,
// metadata and the access log. Package extproc uses it to set headers, xds to match them in routes,
// envoy to define clusters, and telemetry to read the access log.
package headers

import (
	"fmt"
	"strings"
)

// The headers that only Sluice may set. Envoy removes them from every request of a client.
const (
	// Cluster is the name of the Envoy cluster of the chosen model. No route to a replica matches a
	// request without it.
	Cluster = "x-sluice-cluster"
	// Endpoint is the ordered list of replicas, "ip:port,ip:port", that Envoy's override_host
	// policy follows.
	Endpoint = "x-gateway-destination-endpoint"
	// Route names the route of a decided request, see routes.Decided.
	Route = "x-sluice-route"
	// Tenant is the name of the tenant, for Sluice's own handlers behind ext_authz.
	Tenant = "x-sluice-tenant"
	// Key is the digest of the caller's API key. For WebSockets it is what
	// authz.Authenticator.Proof returns, by which their handler notices a key that was revoked or a
	// token that has ended.
	Key = "x-sluice-key"
	// Handoff is the token of a request that ext_proc has handed to the relay. The relay claims the
	// request with it, once.
	Handoff = "x-sluice-ticket"
	// Patient is on requests that another gateway has forwarded. It means that the client may read
	// nothing for any length of time, see relay.Call.Patient.
	Patient = "x-sluice-patient"
	// Messages is on chats that another process of the gateway has translated from requests to the
	// Messages API. Its value has the options of the translation, see relay.Call.
	Messages = "x-sluice-messages"
	// Resumed is on responses to another gateway whose client resumes a stream. It is the path of
	// the request that has started the stream, which tells the form of its errors.
	Resumed = "x-sluice-resumed"
	// TimeLeft is on requests that another gateway or process has forwarded. It is what is left of
	// the field max_duration_ms of the body, in milliseconds.
	TimeLeft = "x-sluice-time-left-ms"
	// Forwarded is on requests that another gateway has forwarded. A gateway does not forward them
	// again.
	Forwarded = "x-sluice-forwarded"
	// ForwardedByProcess is the value of Forwarded on a request that another process of the same
	// gateway has forwarded, during a restart.
	ForwardedByProcess = "process"
	// Observe is "1" on requests whose first token Envoy reports to Sluice at once. Sluice also
	// reads the ids of responses there.
	Observe = "x-sluice-observe"
	// Framing is on requests whose responses have come, if the filter inside Envoy has found out
	// whether those have a length. Only the log of attempts sees it.
	Framing = "x-sluice-framing"
	// Usage is UsageOfOpenAI or UsageOfMessages on requests whose token usage Envoy reads from the
	// response: the two APIs tell it differently. With UsageAndStream after the value, Envoy also
	// reads the events of the response.
	Usage = "x-sluice-usage"
)

// The values of Usage.
const (
	UsageOfOpenAI   = "1"
	UsageOfMessages = "messages"
	UsageAndStream  = "+stream"
)

// Headers of responses.
const (
	// Source says which side answered: SourceGateway or SourceEngine.
	Source = "x-sluice-source"
	// Replica is the id of the replica that answered.
	Replica = "x-sluice-replica"
	// RequestID is Envoy's own id of a request. Sluice never takes it for the client's id of a
	// request, since clients cannot choose it.
	RequestID = "x-request-id"
	// MessagesRequestID is where clients of the Messages API look for RequestID. Answers of engines
	// to others do not have it.
	MessagesRequestID = "request-id"
	// ShouldRetry is "false" on an error after which some clients would repeat the request by
	// themselves although they should not.
	ShouldRetry = "x-should-retry"
	// OriginalPath is Envoy's own header with the path of a request before Envoy changed the path
	// for an upstream.
	OriginalPath = "x-envoy-original-path"
)

// The values of the header Source.
const (
	SourceGateway = "gateway"
	SourceEngine  = "engine"
)

// What remains of a tenant's limits per minute, on responses of engines. ext_proc sets each value
// in the dynamic metadata of the request, under the name of the header in the namespace Metadata.
// Envoy puts the headers that have a value on the response and leaves out the others.
const (
	LimitRequests     = "x-ratelimit-limit-requests"
	RemainingRequests = "x-ratelimit-remaining-requests"
	ResetRequests     = "x-ratelimit-reset-requests"
	LimitTokens       = "x-ratelimit-limit-tokens"
	RemainingTokens   = "x-ratelimit-remaining-tokens"
	ResetTokens       = "x-ratelimit-reset-tokens"
)

// Budget is on every response to a caller of whose budgets a soft or hard bound is reached. It says
// which, in the same way as the headers above.
const Budget = "x-sluice-budget"

// OfDecision lists the headers of responses whose values come from the decision about the request:
// what remains of a tenant's limits and budgets, and MessagesRequestID. The filter inside Envoy
// looks for these names in the responses of engines.
func OfDecision() []string {
	return []string{LimitRequests, RemainingRequests, ResetRequests, LimitTokens, RemainingTokens, ResetTokens, Budget, MessagesRequestID}
}

// The names by which Sluice recognises the ext_proc exchanges of the filter that observes first
// tokens.
const (
	// Role is the gRPC metadata key of an ext_proc exchange that names the filter's role.
	Role = "x-sluice-role"
	// RoleObserver is the value of Role for the filter that observes first tokens. The filter that
	// decides sends no Role.
	RoleObserver = "observer"
	// RolePassed is the value of Role for an exchange that another process of the gateway passes
	// on.
	RolePassed = "passed"
	// AttributeRequestID is the Envoy attribute in the observer's message whose value is that of
	// the header RequestID.
	AttributeRequestID = "request.id"
)

// The headers by which clients set options of a request.
const (
	// IdempotencyKey means the same as the field request_id of the body.
	IdempotencyKey = "idempotency-key"
	// SessionID names the session that the request belongs to. Engines get it, too.
	SessionID = "x-session-id"
	// Timeout means the same as the field timeout_ms of the body.
	Timeout = "x-sluice-timeout-ms"
	// Priority is the priority that the client asks for: interactive, default or batch. Behind
	// ext_authz it is the priority that the key allows.
	Priority = "x-sluice-priority"
	// TaskID is the id of a task of the batch API that the request belongs to.
	TaskID = "x-sluice-task-id"
	// Heartbeat is the form of the heartbeats of a managed stream: HeartbeatChunk, or
	// HeartbeatComment, which is the default. A request with another form is refused.
	Heartbeat = "x-sluice-heartbeat"
	// HeartbeatChunk asks for chunks without content, for clients that cannot read comments.
	HeartbeatChunk = "chunk"
	// HeartbeatComment asks for comments.
	HeartbeatComment = "comment"
)

// The Envoy clusters that lead to Sluice itself, and one that leads nowhere.
const (
	// ControlCluster is Sluice's gRPC listener for Envoy: ext_proc, ext_authz, xDS and the access
	// log.
	ControlCluster = "sluice_control"
	// APICluster is Sluice's HTTP listener for the routes that package internal/api answers.
	APICluster = "sluice_api"
	// RelayCluster is Sluice's HTTP listener for managed streams: the relay, /v1/realtime and
	// /v1/streams.
	RelayCluster = "sluice_relay"
	// GRPCCluster is Sluice's gRPC listener for clients: llm.v1.Inference.
	GRPCCluster = "sluice_grpc"
	// UndecidedCluster does not exist in Envoy. A request that ext_proc has not decided is routed
	// to it and becomes a 503.
	UndecidedCluster = "sluice_undecided"
	// GatewaysCluster leads an Envoy of another host to any gateway, for xDS. The gateway that
	// answers then gives it the other clusters.
	GatewaysCluster = "sluice_gateways"
)

// The application protocols (ALPN) by which an Envoy of another host names the service that it
// wants on the port of control.listen.
const (
	// ALPNControl is what ControlCluster leads to.
	ALPNControl = "h2"
	// ALPNAPI is what APICluster leads to.
	ALPNAPI = "sluice-api"
	// ALPNRelay is what RelayCluster leads to.
	ALPNRelay = "sluice-relay"
	// ALPNGRPC is what GRPCCluster leads to.
	ALPNGRPC = "sluice-grpc"
)

// The fields of the metadata of a node by which an Envoy of another host says how it is set up, in
// the namespace Metadata.
const (
	// NodeCertificate and NodeAuthority are the paths of the files of SDS with its certificate and
	// with the authorities that it trusts.
	NodeCertificate = "certificate"
	NodeAuthority   = "authority"
	// NodeListen is the address on which it serves clients. Absent: the gateway's listen.
	NodeListen = "listen"
)

// Limits bound the headers of a client's request.
type Limits struct {
	// Count is the greatest number of headers, and Bytes that of the bytes of all names and values.
	// 0 means no limit.
	Count, Bytes int
}

// EnvoyHeaders is how many headers Envoy adds to a request before Sluice sees it: the pseudo
// headers of HTTP/2, x-request-id and some that begin with x-forwarded- and x-envoy-. They do not
// count as the client's.
const EnvoyHeaders = 10

// Exceeded returns the message for a client whose request has too many headers, or "".
func (l Limits) Exceeded(count, bytes int) string {
	switch {
	case l.Count > 0 && count > l.Count+EnvoyHeaders:
		return fmt.Sprintf("The request has more than %d headers.", l.Count)
	case l.Bytes > 0 && bytes > l.Bytes:
		return fmt.Sprintf("The headers of the request have more than %d bytes.", l.Bytes)
	}
	return ""
}

// SourceKey is the key under which Envoy names the address of a client when it asks Sluice about a
// new connection.
const SourceKey = "source"

// Internal lists the headers that only Sluice may set. Envoy removes them from the requests of
// clients, with those of FromClients.
func Internal() []string {
	return []string{Cluster, Endpoint, Endpoint + "-subset", Endpoint + "-served", Route, Tenant, Key, Handoff, Forwarded, Patient,
		Messages, TimeLeft, Observe, Usage}
}

const modelPrefix = "model/"

// groupMark separates the model from the group in the name of a cluster. In the name of a model the
// mark is doubled.
const groupMark = "#"

// ModelCluster returns the name of the Envoy cluster of a model's replicas that have no transport
// settings of their own.
func ModelCluster(model string) string {
	return modelPrefix + strings.ReplaceAll(model, groupMark, groupMark+groupMark)
}

// GroupCluster returns the name of the cluster of a group: replicas of a model that share transport
// settings of their own. The group "" is ModelCluster. The name of a group does not begin with
// groupMark.
func GroupCluster(model, group string) string {
	if group == "" {
		return ModelCluster(model)
	}
	return ModelCluster(model) + groupMark + group
}

// ClusterModel returns the model that an Envoy cluster belongs to. It returns false for clusters
// that belong to no model.
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
			// What follows a single mark is the group.
			return b.String(), true
		}
		b.WriteString(groupMark)
		name = rest
	}
}
