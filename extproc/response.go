package extproc

import (
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gateway/sluice/internal/decide"
)

// These answers are the same for every request. They must not be changed.
var (
	continueHeaders = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extproc.HeadersResponse{}}}
	continueTrailers = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &extproc.TrailersResponse{}}}
)

// response returns an answer in the words of ext_proc. It is nil for nil.
func (e *exchange) response(a *decide.Answer) *extproc.ProcessingResponse {
	switch {
	case a == nil:
		return nil
	case a.Kind == decide.Reply:
		return immediate(a)
	case a.Kind == decide.Continue && a.Remove == nil:
		return continueHeaders
	case a.Kind == decide.Continue:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{
			RequestHeaders: &extproc.HeadersResponse{Response: &extproc.CommonResponse{
				HeaderMutation: &extproc.HeaderMutation{RemoveHeaders: a.Remove},
			}},
		}}
	}
	common := &extproc.CommonResponse{ClearRouteCache: true, HeaderMutation: &extproc.HeaderMutation{SetHeaders: options(a.Set)}}
	if a.Body != nil {
		common.BodyMutation = &extproc.BodyMutation{Mutation: &extproc.BodyMutation_Body{Body: a.Body}}
	}
	return &extproc.ProcessingResponse{
		DynamicMetadata: e.server.metadata.of(&a.Metadata),
		Response:        &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{Response: common}},
	}
}

// overrideTimeout returns the message that sets Envoy's timeout for the pending answer to d.
func overrideTimeout(d time.Duration) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{OverrideMessageTimeout: durationpb.New(d)}
}

// immediate returns the answer with which Envoy replies to the client without calling an upstream.
func immediate(a *decide.Answer) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extproc.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(a.Status)},
			Headers: &extproc.HeaderMutation{SetHeaders: options(a.Set)},
			Body:    a.Body,
			Details: a.Details,
		}}}
}

// options returns headers that replace any headers of the same names. Three allocations serve all
// of them.
func options(set []decide.Header) []*core.HeaderValueOption {
	size := 0
	for _, h := range set {
		size += len(h.Value)
	}
	all := make([]struct {
		option core.HeaderValueOption
		value  core.HeaderValue
	}, len(set))
	pointers, values := make([]*core.HeaderValueOption, len(set)), make([]byte, 0, size)
	for i, h := range set {
		begin := len(values)
		values = append(values, h.Value...)
		one := &all[i]
		one.value.Key, one.value.RawValue = h.Name, values[begin:len(values):len(values)]
		one.option.Header, one.option.AppendAction = &one.value, core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
		pointers[i] = &one.option
	}
	return pointers
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
