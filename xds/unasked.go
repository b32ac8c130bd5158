package xds

import (
	match "github.com/cncf/xds/go/xds/type/matcher/v3"
	customresponse "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/custom_response/v3"
	localresponse "github.com/envoyproxy/go-control-plane/envoy/extensions/http/custom_response/local_response_policy/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// customResponseName is the filter that replaces responses of engines. Only the routes to engines
// configure it, so that WebSockets keep their 101. Sluice's own filter does this for the requests
// that it decides, with the same details.
const customResponseName = "envoy.filters.http.custom_response"

// The details of the replies that replace an unasked 101 and a redirect. See replies.
const (
	unaskedDetails  = "unasked_protocol_switch"
	redirectDetails = "unasked_redirect"
)

// refuseUnasked replaces a response with status 101, and a redirect, by a 502. No request to an
// engine asks for another protocol. Of all statuses below 200 Envoy takes only 101 for a whole
// response, and would pass it on. The client would then treat what follows on its connection as
// the other protocol. A redirect would have the client send the prompt to another server, past the
// gateway.
func refuseUnasked() *customresponse.CustomResponse {
	refused := values{"1xx": replaceBy(unaskedDetails), "3xx": replaceBy(redirectDetails)}
	return &customresponse.CustomResponse{
		CustomResponseMatcher: byInput("status", &matcher.HttpResponseStatusCodeClassMatchInput{}, refused, nil),
	}
}

// replaceBy replaces a response by a 502 with the details.
func replaceBy(details string) *match.Matcher_OnMatch {
	return act("replace", &localresponse.LocalResponsePolicy{
		StatusCode:                wrapperspb.UInt32(502),
		ResponseCodeDetailsAction: &localresponse.LocalResponsePolicy_ResponseCodeDetails{ResponseCodeDetails: details},
	})
}
