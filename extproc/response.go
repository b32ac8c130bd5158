package extproc

import (
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Answers that are the same for every request. Messages are read-only once they are made.
var (
	continueHeaders = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extproc.HeadersResponse{}}}
	continueTrailers = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &extproc.TrailersResponse{}}}
)

// stretched asks Envoy for more time.
func stretched(d time.Duration) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{OverrideMessageTimeout: durationpb.New(d)}
}

// leaving is how a request leaves for its replica: how much of its time has gone by, and the
// traceparent of its span, if it has one.
type leaving struct {
	waited      time.Duration
	traceparent string
}

// decided lets the request go: the cluster and the replicas in headers that a route is waiting for,
// the body as it is unless it held options of ours or an alias.
func decided(t *dispatch.Ticket, scan *openai.Request, body []byte, how leaving) *extproc.ProcessingResponse {
	set := make([]*core.HeaderValueOption, 0, 10)
	set = append(set, header(headers.Cluster, t.Cluster()), header(headers.Endpoint, t.Endpoints()),
		header("x-envoy-max-retries", strconv.Itoa(t.Retries())))
	if scan.Stream {
		set = append(set, header(headers.Stream, "1"))
	}
	if t.Watched() {
		set = append(set, header(headers.Observe, "1"))
	}
	if t.Measured() {
		set = append(set, header(headers.Usage, "1"))
	}
	if how.traceparent != "" {
		set = append(set, header("traceparent", how.traceparent))
	}
	set = appendTimeout(set, t.MaxDuration, scan, how.waited)
	common := &extproc.CommonResponse{ClearRouteCache: true}
	if stripped, changed := scan.Rewrite(body, t.Served); changed {
		set = append(set, header("content-length", strconv.Itoa(len(stripped))))
		common.BodyMutation = &extproc.BodyMutation{Mutation: &extproc.BodyMutation_Body{Body: stripped}}
	}
	common.HeaderMutation = &extproc.HeaderMutation{SetHeaders: set}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{
		RequestBody: &extproc.BodyResponse{Response: common}}}
}

// appendTimeout bounds the response by the shortest of the model's limit and the client's own.
// Envoy counts from now on; the client's limits count from its request.
func appendTimeout(set []*core.HeaderValueOption, model time.Duration, scan *openai.Request, waited time.Duration) []*core.HeaderValueOption {
	shortest, clients := model, false
	if d := scan.MaxDuration - waited; scan.MaxDuration > 0 && (shortest == 0 || d < shortest) {
		shortest = d
	}
	if d := scan.Timeout - waited; scan.Timeout > 0 && (shortest == 0 || d < shortest) {
		shortest, clients = d, true
	}
	if shortest == 0 {
		return set
	}
	if clients { // its end is then the client's doing: 408, not 504
		set = append(set, header(headers.ClientTimeout, "1"))
	}
	ms := max(shortest.Milliseconds(), 1)
	return append(set, header("x-envoy-upstream-rq-timeout-ms", strconv.FormatInt(ms, 10)))
}

// immediate answers the client with the error.
func immediate(e *openai.Error) *extproc.ProcessingResponse {
	set := make([]*core.HeaderValueOption, 0, 4)
	set = append(set, header("content-type", "application/json"), header(headers.Source, headers.SourceGateway))
	if s := e.RetryAfterSeconds(); s != "" {
		set = append(set, header("retry-after", s))
	}
	for name, value := range e.Header {
		set = append(set, header(name, value))
	}
	switch e.HTTPStatus() {
	case 401:
		set = append(set, header("www-authenticate", "Bearer"))
	case 405:
		set = append(set, header("allow", "POST"))
	}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extproc.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(e.HTTPStatus())},
			Headers: &extproc.HeaderMutation{SetHeaders: set},
			Body:    e.Body(),
			Details: headers.DetailsPrefix + string(e.Code),
		}}}
}

func header(key, value string) *core.HeaderValueOption {
	return &core.HeaderValueOption{
		Header:       &core.HeaderValue{Key: key, RawValue: []byte(value)},
		AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

func messageName(in *extproc.ProcessingRequest) string {
	switch in.Request.(type) {
	case *extproc.ProcessingRequest_RequestTrailers:
		return "request_trailers"
	case *extproc.ProcessingRequest_ResponseHeaders:
		return "response_headers"
	case *extproc.ProcessingRequest_ResponseBody:
		return "response_body"
	}
	return "unknown"
}
