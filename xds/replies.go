package xds

import (
	"fmt"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// reply is an answer that Envoy gives by itself, in the form of Sluice's errors.
type reply struct {
	// when is a CEL expression. Envoy gives the first reply whose expression is true.
	when string
	// status replaces Envoy's status. 0 keeps it.
	status uint32
	// code and kind are the code and the type of the error. message is for people and may contain
	// Envoy's format commands.
	code, kind, message string
	// retry adds the header Retry-After.
	retry bool
	// plain makes the message the whole body. Envoy turns the body of a reply to a gRPC request
	// into the message of a gRPC status.
	plain bool
	// ofMessages gives the error the form of the Messages API.
	ofMessages bool
}

// retryAfter is the value of Retry-After in seconds.
const retryAfter = "1"

const (
	// details is the attribute that says why Envoy answered, in the words of Envoy's documentation
	// of response code details.
	details = "response.code_details"
	// toSluice is true for requests to Sluice's own HTTP listeners, and toGRPC for those to its
	// gRPC service.
	toSluice = `xds.cluster_name in ["` + headers.APICluster + `", "` + headers.RelayCluster + `"]`
	toGRPC   = `xds.route_name == "` + routes.GRPC + `"`
	// onUndecided is true for requests that Sluice has not decided.
	onUndecided = `xds.route_name == "` + routes.Undecided + `"`
	// responsesPath is true for requests to /v1/responses itself, with and without /v1.
	responsesPath = `(request.url_path == "/v1/responses" || request.url_path == "/responses")`
	// messagesPath is true for requests to the Messages API, with and without /v1.
	messagesPath = `(request.path.startsWith("/v1/messages") || request.path.startsWith("/messages"))`
	// hasClientTimeout is true on the routes of requests whose client set the timeout.
	hasClientTimeout = `xds.route_metadata.filter_metadata["` + headers.Metadata + `"]["` + clientTimeoutKey + `"] == true`
)

// sentBySluice matches the answers that Sluice itself sent through its filter, ext_proc and
// ext_authz. It comes first and changes one header, since those answers have the right form. The
// expressions after it may therefore test a status alone.
func sentBySluice() string {
	return fmt.Sprintf("%s || %s || %s", detailsAre(""), detailsBegin(headers.DetailsPrefix), detailsAre("ext_authz_denied"))
}

// replies lists the answers that Envoy may give by itself. A test provokes each of them on a real
// Envoy.
func replies() []reply {
	return []reply{
		forGRPC(unavailable(toGRPC+" && response.code >= 500", "The gateway does not answer at the moment.")),
		unavailable(detailsAre("cluster_not_found")+" && "+onUndecided, "The gateway cannot decide about requests at the moment."),
		// This Envoy refuses the cluster, or gets it later than the others.
		unavailable(detailsAre("cluster_not_found"), "The Envoy that has this request has not taken over the model's replicas, or not yet."),
		unavailable(detailsAre("ext_authz_error"), "The gateway cannot check keys at the moment."),
		unavailable(toSluice+" && "+noAnswer(), "The gateway does not answer at the moment."),
		{
			when: detailsAre("request_payload_too_large"), status: 413, code: "request_too_large", kind: "invalid_request_error",
			message: "The request body is larger than the limit of %METADATA(ROUTE:" + headers.Metadata + ":" + limitKey + ")%.",
		},
		{
			when: detailsAre("no_healthy_upstream"), status: 503, code: "no_replica", kind: "server_error", retry: true,
			message: "No replica of the model is ready.",
		},
		{
			when: detailsAre(unaskedDetails), status: 502, code: "upstream_error", kind: "server_error", retry: true,
			message: "The engine has switched to another protocol, which the request did not ask for.",
		},
		{
			when: detailsAre(redirectDetails), status: 502, code: "upstream_error", kind: "server_error", retry: true,
			message: "The engine has answered with a redirect, which is not passed on.",
		},
		{
			// An engine may send interim responses (1xx) and then close the connection.
			when:   detailsBegin("upstream_reset_before_response_started") + " || " + detailsBegin("upstream_reset_after_response_started"),
			status: 502, code: "upstream_error", kind: "server_error", retry: true,
			message: "The engine could not be reached or closed the connection, and no other replica could answer.",
		},
		{
			when: detailsAre("response_timeout") + " && " + hasClientTimeout, status: 408, code: "request_timeout", kind: "invalid_request_error", retry: true,
			message: "The response took longer than the request's own timeout.",
		},
		{
			when: detailsAre("response_timeout", "upstream_per_try_timeout"), status: 504, code: "upstream_timeout", kind: "server_error", retry: true,
			message: "The engine did not answer in time.",
		},
		{
			when:   detailsAre("request_overall_timeout", "request_header_timeout", "stream_idle_timeout") + " && response.code == 408",
			status: 408, code: "request_timeout", kind: "invalid_request_error", retry: true,
			message: "The request did not arrive in time.",
		},
		{
			when: detailsAre("stream_idle_timeout"), status: 504, code: "upstream_timeout", kind: "server_error", retry: true,
			message: "Nothing happened for too long.",
		},
		{
			when: detailsAre("low_version"), code: "invalid_request", kind: "invalid_request_error",
			message: "HTTP/1.0 is not served, because there a broken stream looks like a complete one: use HTTP/1.1 or HTTP/2.",
		},
		{
			// Clients of the WebSocket mode of OpenAI's Responses API send the request by HTTP
			// after a 426. After other errors some of them first try the WebSocket again.
			when: detailsAre("upgrade_failed") + " && " + responsesPath, status: 426, code: "invalid_request", kind: "invalid_request_error",
			message: "The WebSocket mode of the Responses API is not served: send the request by POST.",
		},
		{
			when: detailsAre("upgrade_failed"), code: "invalid_request", kind: "invalid_request_error",
			message: "Nothing at this URL changes the protocol: a WebSocket is at /v1/realtime.",
		},
		{
			when: "response.code == 431", code: "headers_too_large", kind: "invalid_request_error",
			message: "The request has too many headers, or they are too large.",
		},
		// Envoy answers some malformed requests with "not implemented".
		malformed("response.code >= 500 && ("+detailsBegin("http1.")+" || "+detailsBegin("http2.")+")", 400),
		malformed("response.code < 500", 0),
		unavailable("true", "The gateway could not handle the request."),
	}
}

// noAnswer matches all cases in which a cluster did not answer.
func noAnswer() string {
	return "(" + detailsAre("no_healthy_upstream", "response_timeout") + " || " + detailsBegin("upstream_reset_before_response_started") +
		" || " + detailsBegin("upstream_reset_after_response_started") + ")"
}

func malformed(when string, status uint32) reply {
	return reply{
		when: when, status: status, code: "invalid_request", kind: "invalid_request_error",
		message: "The request is not valid (%RESPONSE_CODE_DETAILS%).",
	}
}

// unavailable is the reply when Sluice cannot handle the request now.
func unavailable(when, message string) reply {
	return reply{when: when, status: 503, code: "gateway_unavailable", kind: "server_error", message: message, retry: true}
}

// forGRPC turns r into a reply to gRPC requests.
func forGRPC(r reply) reply {
	r.plain = true
	return r
}

// forMessages returns the same reply to clients of the Messages API.
func (r reply) forMessages() reply {
	r.when = "(" + r.when + ") && " + messagesPath
	status := int(r.status)
	if status == 0 {
		status = 400 // the replies that keep Envoy's status are about malformed requests
	}
	r.kind, r.ofMessages = openai.MessagesType(status), true
	return r
}

// detailsAre matches details that are one of the names.
func detailsAre(names ...string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = fmt.Sprintf("%s == %q", details, n)
	}
	return "(" + strings.Join(quoted, " || ") + ")"
}

// detailsBegin matches details to which Envoy appends a cause in braces.
func detailsBegin(name string) string { return fmt.Sprintf("%s.startsWith(%q)", details, name) }

// localReplies is Envoy's configuration of all replies.
func localReplies() *hcm.LocalReplyConfig {
	config := &hcm.LocalReplyConfig{Mappers: []*hcm.ResponseMapper{{
		Filter: celFilter(sentBySluice()),
		// The route has added its source, and Envoy has added that of the answer of Sluice's filter
		// to it. This replaces both.
		HeadersToAdd: []*core.HeaderValueOption{sourceIsGateway(), messagesRequestID()},
	}}}
	for _, r := range replies() {
		if !r.plain {
			config.Mappers = append(config.Mappers, r.forMessages().mapper())
		}
		config.Mappers = append(config.Mappers, r.mapper())
	}
	return config
}

// sourceIsGateway is the header that tells the client that no engine has answered.
func sourceIsGateway() *core.HeaderValueOption {
	return setHeader(headers.Source, headers.SourceGateway)
}

// newRequestID is the id of a request that Envoy could not read far enough to give it one. The log
// of requests has this header, so the id finds the request there.
func newRequestID() *core.HeaderValueOption {
	h := setHeader(headers.RequestID, "%UNIQUE_ID%")
	h.AppendAction = core.HeaderValueOption_ADD_IF_ABSENT
	return h
}

// messagesRequestID tells clients of the Messages API the id of the request. Envoy leaves it out if
// the request has none.
func messagesRequestID() *core.HeaderValueOption {
	return setHeader(headers.MessagesRequestID, "%REQ("+headers.RequestID+")%")
}

// mapper returns the reply in the form of Envoy's configuration.
func (r reply) mapper() *hcm.ResponseMapper {
	m := &hcm.ResponseMapper{
		Filter:             celFilter(r.when),
		BodyFormatOverride: r.format(),
		HeadersToAdd:       []*core.HeaderValueOption{sourceIsGateway(), newRequestID()},
	}
	if r.ofMessages {
		m.HeadersToAdd = append(m.HeadersToAdd, messagesRequestID())
	}
	if r.status != 0 {
		m.StatusCode = wrapperspb.UInt32(r.status)
	}
	if r.retry {
		m.HeadersToAdd = append(m.HeadersToAdd, setHeader("retry-after", retryAfter))
	}
	if r.status == 408 { // OpenAI's clients would repeat the request
		m.HeadersToAdd = append(m.HeadersToAdd, setHeader(headers.ShouldRetry, "false"))
	}
	return m
}

func (r reply) format() *core.SubstitutionFormatString {
	if r.plain {
		return &core.SubstitutionFormatString{Format: &core.SubstitutionFormatString_TextFormatSource{TextFormatSource: inline(r.message)}}
	}
	return &core.SubstitutionFormatString{Format: &core.SubstitutionFormatString_JsonFormat{JsonFormat: r.body()}}
}

// body returns the error in the form of OpenAI's API, or of the Messages API, which has one member
// more.
func (r reply) body() *structpb.Struct {
	inner := &structpb.Struct{Fields: map[string]*structpb.Value{
		"message": structpb.NewStringValue(r.message),
		"type":    structpb.NewStringValue(r.kind),
		"code":    structpb.NewStringValue(r.code),
		"param":   structpb.NewNullValue(),
	}}
	fields := map[string]*structpb.Value{"error": structpb.NewStructValue(inner)}
	if r.ofMessages {
		fields["type"] = structpb.NewStringValue("error")
	}
	return &structpb.Struct{Fields: fields}
}
