package xds

import (
	xdscore "github.com/cncf/xds/go/xds/core/v3"
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

// unaskedDetails are the details of the reply that replaces an unasked 101. See replies.
const unaskedDetails = "unasked_protocol_switch"

// refuseUnasked replaces a response with status 101 by a 502. No request to an engine asks for
// another protocol. Envoy takes such a 101 for a whole response and would pass it on. The client
// would then treat what follows on its connection as the other protocol.
func refuseUnasked() *customresponse.CustomResponse {
	policy := &localresponse.LocalResponsePolicy{
		StatusCode:                wrapperspb.UInt32(502),
		ResponseCodeDetailsAction: &localresponse.LocalResponsePolicy_ResponseCodeDetails{ResponseCodeDetails: unaskedDetails},
	}
	replace := &match.Matcher_OnMatch{OnMatch: &match.Matcher_OnMatch_Action{
		Action: &xdscore.TypedExtensionConfig{Name: "replace", TypedConfig: mustPack(policy)},
	}}
	return &customresponse.CustomResponse{CustomResponseMatcher: &match.Matcher{
		MatcherType: &match.Matcher_MatcherTree_{MatcherTree: &match.Matcher_MatcherTree{
			Input: &xdscore.TypedExtensionConfig{Name: "status", TypedConfig: mustPack(&matcher.HttpResponseStatusCodeMatchInput{})},
			TreeType: &match.Matcher_MatcherTree_ExactMatchMap{ExactMatchMap: &match.Matcher_MatcherTree_MatchMap{
				Map: map[string]*match.Matcher_OnMatch{"101": replace},
			}},
		}},
	}}
}
