package xds

import (
	"fmt"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// reply is one of the answers that Envoy gives by itself, in the form that clients know errors in.
type reply struct {
	// when is a CEL expression; the first reply that matches is given.
	when string
	// status replaces Envoy's own; 0 keeps it.
	status uint32
	// code and kind are the error's code and type, message is for people and may hold Envoy's format commands.
	code, kind, message string
	// retry adds Retry-After.
	retry bool
	// plain leaves everything but the message out of the body. Of gRPC requests Envoy makes the body the message of a status.
	plain bool
}

// retryAfter is what clients are told to wait, in seconds.
const retryAfter = "1"

const (
	// details is where Envoy says why it answered, in the words of its documentation of response code details.
	details = "response.code_details"
	// toSluice is true of requests to Sluice's own HTTP listeners.
	toSluice = `xds.cluster_name in ["` + headers.APICluster + `", "` + headers.RelayCluster + `"]`
	overGRPC = `xds.route_name == "` + routes.GRPC + `"`
	// clientsOwn is true on the routes for requests whose client set the timeout.
	clientsOwn = `xds.route_metadata.filter_metadata["` + headers.Metadata + `"]["` + clientTimeoutKey + `"] == true`
)

// ours matches the answers that Sluice itself sent through ext_proc and ext_authz. It comes first and changes nothing: those answers
// are right as they are, which is why nothing below may look at a status alone before it.
func ours() string {
	return fmt.Sprintf("%s || %s || %s", is(""), begins(headers.DetailsPrefix), is("ext_authz_denied"))
}

// replies lists what Envoy may answer by itself. A test sees each of them on the real Envoy.
func replies() []reply {
	return []reply{
		forGRPC(unavailable(overGRPC+" && response.code >= 500", "the gateway does not answer at the moment")),
		unavailable(is("cluster_not_found"), "the gateway cannot decide about requests at the moment"),
		unavailable(is("ext_authz_error"), "the gateway cannot check keys at the moment"),
		unavailable(toSluice+" && "+noAnswer(), "the gateway does not answer at the moment"),
		{
			when: is("request_payload_too_large"), status: 413, code: "request_too_large", kind: "invalid_request_error",
			message: "the request body is larger than the limit of %METADATA(ROUTE:" + headers.Metadata + ":" + limitKey + ")%",
		},
		{
			when: is("no_healthy_upstream"), status: 503, code: "no_replica", kind: "server_error", retry: true,
			message: "no replica of the model is ready",
		},
		{
			when: begins("upstream_reset_before_response_started"), status: 502, code: "upstream_error", kind: "server_error", retry: true,
			message: "the engine could not be reached or closed the connection, and no other replica could answer",
		},
		{
			when: is("response_timeout") + " && " + clientsOwn, status: 408, code: "request_timeout", kind: "invalid_request_error", retry: true,
			message: "the response took longer than the request's own timeout",
		},
		{
			when: is("response_timeout", "upstream_per_try_timeout"), status: 504, code: "upstream_timeout", kind: "server_error", retry: true,
			message: "the engine did not answer in time",
		},
		{
			when:   is("request_overall_timeout", "request_header_timeout", "stream_idle_timeout") + " && response.code == 408",
			status: 408, code: "request_timeout", kind: "invalid_request_error", retry: true,
			message: "the request did not arrive in time",
		},
		{
			when: is("stream_idle_timeout"), status: 504, code: "upstream_timeout", kind: "server_error", retry: true,
			message: "nothing happened for too long",
		},
		// Envoy calls some malformed requests "not implemented".
		malformed("response.code >= 500 && ("+begins("http1.")+" || "+begins("http2.")+")", 400),
		malformed("response.code < 500", 0),
		unavailable("true", "the gateway could not handle the request"),
	}
}

// noAnswer matches every way in which a cluster did not answer.
func noAnswer() string {
	return "(" + is("no_healthy_upstream", "response_timeout") + " || " + begins("upstream_reset_before_response_started") + ")"
}

func malformed(when string, status uint32) reply {
	return reply{
		when: when, status: status, code: "invalid_request", kind: "invalid_request_error",
		message: "the request is not valid (%RESPONSE_CODE_DETAILS%)",
	}
}

func unavailable(when, message string) reply {
	return reply{when: when, status: 503, code: "gateway_unavailable", kind: "server_error", message: message, retry: true}
}

func forGRPC(r reply) reply {
	r.plain = true
	return r
}

// is matches details that are one of the names.
func is(names ...string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = fmt.Sprintf("%s == %q", details, n)
	}
	return "(" + strings.Join(quoted, " || ") + ")"
}

// begins matches details that Envoy continues with a cause of its own, in braces.
func begins(name string) string { return fmt.Sprintf("%s.startsWith(%q)", details, name) }

func localReplies() *hcm.LocalReplyConfig {
	config := &hcm.LocalReplyConfig{Mappers: []*hcm.ResponseMapper{{Filter: expression(ours())}}}
	for _, r := range replies() {
		config.Mappers = append(config.Mappers, r.mapper())
	}
	return config
}

func (r reply) mapper() *hcm.ResponseMapper {
	m := &hcm.ResponseMapper{
		Filter:             expression(r.when),
		BodyFormatOverride: r.format(),
		HeadersToAdd:       []*core.HeaderValueOption{setHeader(headers.Source, headers.SourceGateway)},
	}
	if r.status != 0 {
		m.StatusCode = wrapperspb.UInt32(r.status)
	}
	if r.retry {
		m.HeadersToAdd = append(m.HeadersToAdd, setHeader("retry-after", retryAfter))
	}
	return m
}

func (r reply) format() *core.SubstitutionFormatString {
	if r.plain {
		text := &core.DataSource{Specifier: &core.DataSource_InlineString{InlineString: r.message}}
		return &core.SubstitutionFormatString{Format: &core.SubstitutionFormatString_TextFormatSource{TextFormatSource: text}}
	}
	return &core.SubstitutionFormatString{Format: &core.SubstitutionFormatString_JsonFormat{JsonFormat: r.body()}}
}

func (r reply) body() *structpb.Struct {
	inner := &structpb.Struct{Fields: map[string]*structpb.Value{
		"message": structpb.NewStringValue(r.message),
		"type":    structpb.NewStringValue(r.kind),
		"code":    structpb.NewStringValue(r.code),
		"param":   structpb.NewNullValue(),
	}}
	return &structpb.Struct{Fields: map[string]*structpb.Value{"error": structpb.NewStructValue(inner)}}
}
