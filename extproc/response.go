package extproc

import (
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/failover"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// plainEncoding takes a client's wish for compression off a request whose usage Envoy is to read,
// or the id of whose response. Neither can be read in a compressed response, and its bytes would be
// too cheap. plainEncoding must not be changed.
var plainEncoding = &core.HeaderValueOption{
	Header:       &core.HeaderValue{Key: "accept-encoding", RawValue: []byte("identity")},
	AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS,
}

// These answers are the same for every request. They must not be changed.
var (
	continueHeaders = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extproc.HeadersResponse{}}}
	continueTrailers = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &extproc.TrailersResponse{}}}
)

// continueWithout returns the answer with which Envoy goes on with a request, without the header of
// that name. An empty name is no header.
func continueWithout(name string) *extproc.ProcessingResponse {
	if name == "" {
		return continueHeaders
	}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extproc.HeadersResponse{Response: &extproc.CommonResponse{
			HeaderMutation: &extproc.HeaderMutation{RemoveHeaders: []string{name}},
		}},
	}}
}

// overrideTimeout returns the message that sets Envoy's timeout for the pending answer to d.
func overrideTimeout(d time.Duration) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{OverrideMessageTimeout: durationpb.New(d)}
}

// departure says how a request leaves for its replica: how long it has waited, and the traceparent
// header for the engine. An empty traceparent means that the request is not traced.
type departure struct {
	waited      time.Duration
	traceparent string
	// path has the header with the path for the engine, if the client has used another path.
	path []*core.HeaderValueOption
}

// nativeAnswer returns the answer with which Envoy sends the request to a replica. Headers name the
// cluster and the replicas; Envoy's route matches on them. The body is changed only if it has
// options of Sluice or an alias for the model.
func nativeAnswer(t *dispatch.Ticket, scan *openai.Request, body []byte, from departure) *extproc.ProcessingResponse {
	set := append(make([]*core.HeaderValueOption, 0, 14), from.path...)
	set = append(set, header(headers.Cluster, t.Cluster()), header(headers.Endpoint, t.Endpoints()),
		header("x-envoy-max-retries", strconv.Itoa(t.Retries())))
	if t.HasFallback() {
		set = append(set, retryHeaders[t.FailOver&failover.EveryBit]...)
	}
	if scan.Stream {
		set = append(set, header(headers.Stream, "1"))
	}
	set = appendReaders(set, t, scan)
	if from.traceparent != "" {
		set = append(set, header("traceparent", from.traceparent))
	}
	set = appendTimeout(set, t.MaxDuration, scan, from.waited)
	common := &extproc.CommonResponse{ClearRouteCache: true}
	if rewritten, changed := scan.Rewrite(body, t.Served); changed {
		set = append(set, header("content-length", strconv.Itoa(len(rewritten))))
		common.BodyMutation = &extproc.BodyMutation{Mutation: &extproc.BodyMutation_Body{Body: rewritten}}
	}
	common.HeaderMutation = &extproc.HeaderMutation{SetHeaders: set}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{
		RequestBody: &extproc.BodyResponse{Response: common}}}
}

// appendReaders appends the headers that make Envoy read the response.
func appendReaders(set []*core.HeaderValueOption, t *dispatch.Ticket, scan *openai.Request) []*core.HeaderValueOption {
	if t.Watched() || t.WantsResponseID() {
		set = append(set, header(headers.Observe, "1"))
	}
	sampled := scan.Endpoint.Generates() && t.AcquireSample(scan.Stream)
	if sampled {
		set = append(set, header(headers.Usage, usageProtocol(scan.Endpoint)+headers.UsageAndStream))
	} else if t.Measured() {
		set = append(set, header(headers.Usage, usageProtocol(scan.Endpoint)))
	}
	if sampled || t.Measured() || t.WantsResponseID() {
		set = append(set, plainEncoding)
	}
	return set
}

// usageProtocol returns the value of headers.Usage, which says how a response tells its usage.
func usageProtocol(e openai.Endpoint) string {
	if e.OfMessages() {
		return headers.UsageOfMessages
	}
	return headers.UsageOfOpenAI
}

// retryHeaders has, for each set of statuses, the headers that make Envoy try the next replica
// after one of them. The headers are shared by all answers and never changed.
var retryHeaders = func() (all [failover.EveryBit + 1][]*core.HeaderValueOption) {
	for set := range all {
		retryOn, codes := failover.Statuses(set).Envoy()
		if retryOn != "" {
			all[set] = append(all[set], header("x-envoy-retry-on", retryOn))
		}
		if codes != "" {
			all[set] = append(all[set], header("x-envoy-retriable-status-codes", codes))
		}
	}
	return all
}()

// appendTimeout appends the timeout of the response: the shortest of the model's limit, the
// client's MaxDuration and the client's Timeout. Envoy counts the timeout from now. The client's
// limits count from the arrival of its request, so waited is subtracted from them.
func appendTimeout(set []*core.HeaderValueOption, model time.Duration, scan *openai.Request, waited time.Duration) []*core.HeaderValueOption {
	shortest, isClients := model, false
	if d := scan.MaxDuration - waited; scan.MaxDuration > 0 && (shortest == 0 || d < shortest) {
		shortest, isClients = d, true
	}
	if d := scan.Timeout - waited; scan.Timeout > 0 && (shortest == 0 || d < shortest) {
		shortest, isClients = d, true
	}
	if shortest == 0 {
		return set
	}
	if isClients { // when the client's own timeout expires, the status is 408, not 504
		set = append(set, header(headers.ClientTimeout, "1"))
	}
	ms := max(shortest.Milliseconds(), 1)
	return append(set, header("x-envoy-upstream-rq-timeout-ms", strconv.FormatInt(ms, 10)))
}

// immediate returns the answer with which Envoy sends the error e to the client without calling an
// upstream, in the form of the API that the client speaks.
func immediate(e *openai.Error, ofMessages bool) *extproc.ProcessingResponse {
	body := e.Body()
	if ofMessages {
		body = e.MessagesBody()
	}
	set := make([]*core.HeaderValueOption, 0, 4)
	set = append(set, header("content-type", "application/json"), header(headers.Source, headers.SourceGateway))
	if s := e.RetryAfterSeconds(); s != "" {
		set = append(set, header("retry-after", s))
	}
	if e.MustNotRepeat() {
		set = append(set, header(headers.ShouldRetry, "false"))
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
			Body:    body,
			Details: headers.DetailsPrefix + string(e.Code),
		}}}
}

// header returns a header that replaces any header of the same name.
func header(key, value string) *core.HeaderValueOption {
	return &core.HeaderValueOption{
		Header:       &core.HeaderValue{Key: key, RawValue: []byte(value)},
		AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// messageName returns the protocol's name of a message that Envoy is not configured to send.
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
