package headers

import (
	"slices"
	"strings"
)

// Stripped is a header that does not cross the gateway.
type Stripped struct {
	// Name of the header, in lower case.
	Name string
	// Why says what the header does, in a phrase that begins with a verb.
	Why string
	// Late says that Sluice reads the header of a client first. No part of the gateway reads the
	// others.
	Late bool
}

// Reasons that several headers have.
const (
	otherRequest = "names another path or method than the one that was authorised"
	otherClient  = "claims an address or name that a server may trust"
	credential   = "holds a credential of the client, which is for the gateway alone"
	otherWorker  = "chooses a worker inside the engine, past the pick of the gateway"
	otherAccount = "names the account that pays, which goes with the key that the gateway sends to the upstream"
	engineField  = "sets a field of the request inside the engine, past the check of the body"
	otherHost    = "makes a proxy before the engine connect to a host that the client names"
	otherQueue   = "jumps the queue inside the engine"
	otherServer  = "makes a proxy in front of the gateway serve something else"
	ownLimits    = "tells the limits of another server than the gateway"
	otherPages   = "lets pages of other origins read the answer, which is for the field cors to say"
	browserState = "changes what a browser keeps for the gateway's own name"
)

// fromClients is the table of the headers of clients that engines never get, beside those of
// Internal, the prefix x-envoy- and names with an underscore. The headers that the configuration
// sets for an upstream are added after it.
var fromClients = []Stripped{
	{"x-original-url", otherRequest, false},
	{"x-original-uri", otherRequest, false},
	{"x-original-path", otherRequest, false},
	{"x-original-method", otherRequest, false},
	{"x-rewrite-url", otherRequest, false},
	{"x-forwarded-uri", otherRequest, false},
	{"x-forwarded-path", otherRequest, false},
	{"x-forwarded-prefix", otherRequest, false},
	{"x-forwarded-method", otherRequest, false},
	{"x-http-method-override", otherRequest, false},
	{"x-http-method", otherRequest, false},
	{"x-method-override", otherRequest, false},
	{"x-forwarded-host", otherClient, false},
	{"x-forwarded-port", otherClient, false},
	{"x-forwarded-server", otherClient, false},
	{"x-forwarded-user", otherClient, true},
	{"x-forwarded-email", otherClient, true},
	{"x-remote-user", otherClient, true},
	{"x-real-ip", otherClient, false},
	{"x-client-ip", otherClient, false},
	{"x-cluster-client-ip", otherClient, false},
	{"true-client-ip", otherClient, false},
	{"forwarded", otherClient, false},
	{"proxy", "sets the variable HTTP_PROXY of servers that use CGI", false},
	{"cookie", credential, false},
	{"cookie2", credential, false},
	{"x-auth-token", credential, false},
	{"x-access-token", credential, false},
	{"x-goog-api-key", credential, false},
	{"x-amz-security-token", credential, false},
	{"proxy-authorization", credential, true},
	{"authorization", credential, true},
	{"x-api-key", credential, true},
	{"api-key", credential, true},
	{IdempotencyKey, "is an option for the gateway", true},
	{"x-data-parallel-rank", otherWorker, false},
	{"x-smg-target-worker", otherWorker, false},
	{"openai-organization", otherAccount, false},
	{"openai-project", otherAccount, false},
	{"x-goog-user-project", otherAccount, false},
	{"x-hf-bill-to", otherAccount, false},
	{"x-vllm-priority", otherQueue, false},
	{"x-override-rid", engineField, false},
	{"x-override-priority", engineField, false},
	{"x-override-conversation-id", engineField, false},
	{"x-override-bootstrap-host", engineField, false},
	{"x-override-bootstrap-port", engineField, false},
	{"x-override-bootstrap-room", engineField, false},
	{"x-override-routed-dp-rank", engineField, false},
	{"x-override-disagg-prefill-dp-rank", engineField, false},
	{"x-prefiller-host-port", otherHost, false},
	{"x-llm-d-prefiller-host-port", otherHost, false},
	{"x-encoder-hosts-ports", otherHost, false},
	{"x-llm-d-encoder-hosts-ports", otherHost, false},
	{"x-kv-cache-source-host-port", otherHost, false},
	{"x-llm-d-kv-cache-source-host-port", otherHost, false},
	{"x-data-parallel-host-port", otherHost, false},
	{"x-worker-instance-id", otherWorker, false},
	{"x-prefill-instance-id", otherWorker, false},
	{"x-dp-rank", otherWorker, false},
	{"x-prefill-dp-rank", otherWorker, false},
	{"x-dynamo-worker-instance-id", otherWorker, false},
	{"x-dynamo-prefill-instance-id", otherWorker, false},
	{"x-dynamo-dp-rank", otherWorker, false},
	{"x-dynamo-prefill-dp-rank", otherWorker, false},
	{"x-dynamo-request-priority", otherQueue, false},
	{"x-dynamo-request-strict-priority", otherQueue, false},
	{"expect", "asks for an answer that Envoy has given already", true},
}

// fromEngines is the table of the headers of engines that clients never get, beside those that
// begin with a prefix of PrefixesFromEngines.
var fromEngines = []Stripped{
	{"server", "tells which engine serves", false},
	{"x-powered-by", "tells which engine serves", false},
	{"via", "tells what is between the gateway and the engine", false},
	{"set-cookie", browserState, false},
	{"set-cookie2", browserState, false},
	{"clear-site-data", browserState, false},
	{"strict-transport-security", browserState, false},
	{"public-key-pins", browserState, false},
	{"service-worker-allowed", browserState, false},
	{"nel", browserState, false},
	{"report-to", browserState, false},
	{"reporting-endpoints", browserState, false},
	{"access-control-allow-origin", otherPages, false},
	{"access-control-allow-credentials", otherPages, false},
	{"access-control-expose-headers", otherPages, false},
	{"alt-svc", "sends clients to another server than the gateway", false},
	{"x-accel-redirect", otherServer, false},
	{"x-sendfile", otherServer, false},
	{"x-lighttpd-send-file", otherServer, false},
	{"x-reproxy-url", otherServer, false},
	{LimitRequests, ownLimits, false},
	{RemainingRequests, ownLimits, false},
	{ResetRequests, ownLimits, false},
	{LimitTokens, ownLimits, false},
	{RemainingTokens, ownLimits, false},
	{ResetTokens, ownLimits, false},
	{Budget, ownLimits, false},
	{MessagesRequestID, "tells an id by which nobody finds the request in the gateway", false},
}

// prefixesFromClients are the beginnings of the names of headers for gateways behind an upstream.
// By such a header a client would choose the provider, its host, the model or the account there.
// Such gateways are Portkey, Helicone, Cloudflare, Bifrost and LiteLLM. LiteLLM sends a header on
// without the prefix x-pass-.
var prefixesFromClients = [...]string{"x-portkey-", "helicone-", "cf-aig-", "x-bf-", "x-litellm-", "x-pass-"}

// SteersGateways reports whether a header of a client has such a beginning. name is in lower case.
// The decision about a request removes these headers: a list of Envoy's would look through all
// headers of each request once for each beginning.
func SteersGateways(name string) bool {
	for i := range prefixesFromClients {
		if strings.HasPrefix(name, prefixesFromClients[i]) {
			return true
		}
	}
	return false
}

// FromClients returns the table of the headers of clients that engines never get.
func FromClients() []Stripped { return slices.Clone(fromClients) }

// FromEngines returns the table of the headers of engines that clients never get.
func FromEngines() []Stripped { return slices.Clone(fromEngines) }

// Early lists the headers of clients that may be removed before the gateway sees a request: those
// of Internal and Unread.
func Early() []string { return append(Internal(), Unread()...) }

// Unread lists the headers of clients that no part of the gateway reads and engines never get.
func Unread() []string { return namesOf(false) }

// Late lists the headers of clients that the gateway reads and engines never get.
func Late() []string { return namesOf(true) }

func namesOf(late bool) []string {
	var all []string
	for _, h := range fromClients {
		if h.Late == late {
			all = append(all, h.Name)
		}
	}
	return all
}

// StrippedFromEngines lists the headers of engines that clients never get.
func StrippedFromEngines() []string {
	var all []string
	for _, h := range fromEngines {
		all = append(all, h.Name)
	}
	return all
}

// StrippedFromRelay lists the headers of engines that clients never get, but for those of the
// decision.
func StrippedFromRelay() []string {
	own := OfDecision()
	return slices.DeleteFunc(StrippedFromEngines(), func(name string) bool { return slices.Contains(own, name) })
}

// PrefixesFromEngines are the beginnings of the names of headers by which engines might speak as
// the gateway, or tell an Envoy what to do. Clients never get such a header of an engine.
func PrefixesFromEngines() []string { return []string{"x-sluice-", "x-envoy-"} }

// StripsFromEngines reports whether clients never get a header of an engine. name is in lower case.
func StripsFromEngines(name string) bool {
	for _, prefix := range PrefixesFromEngines() {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.ContainsFunc(fromEngines, func(h Stripped) bool { return h.Name == name })
}

// IsStripped reports whether engines never get a header of a client. name is in lower case.
func IsStripped(name string) bool {
	return SteersGateways(name) || slices.ContainsFunc(fromClients, func(h Stripped) bool { return h.Name == name })
}

// CanNameCallers reports whether a proxy may name callers in a header of clients: Sluice reads it
// for nothing else, and Envoy lets it pass.
func CanNameCallers(name string) bool {
	switch name {
	case "x-forwarded-user", "x-forwarded-email", "x-remote-user":
		return true
	case "host", "content-type", "content-length", "content-encoding", "transfer-encoding", "connection", "te", "upgrade", "accept",
		"traceparent", "tracestate", "user-agent":
		return false
	}
	taken := slices.Concat(Early(), Late(), []string{RequestID, SessionID, Timeout, Priority, TaskID, Heartbeat})
	return !slices.Contains(taken, name) && !strings.HasPrefix(name, "x-envoy-") && !strings.HasPrefix(name, "x-forwarded-") &&
		!strings.HasPrefix(name, "x-sluice-") && !strings.HasPrefix(name, "sec-websocket-")
}
