package xds

import (
	"strings"

	xdscore "github.com/cncf/xds/go/xds/core/v3"
	match "github.com/cncf/xds/go/xds/type/matcher/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// methodIsOneOf matches the request's method.
func methodIsOneOf(methods []string) *route.HeaderMatcher {
	if len(methods) == 1 {
		return headerIs(":method", exactly(methods[0]))
	}
	return headerIs(":method", pattern(strings.Join(methods, "|")))
}

func headerIs(name string, m *matcher.StringMatcher) *route.HeaderMatcher {
	return &route.HeaderMatcher{Name: name, HeaderMatchSpecifier: &route.HeaderMatcher_StringMatch{StringMatch: m}}
}

func headerPresent(name string) *route.HeaderMatcher {
	return &route.HeaderMatcher{Name: name, HeaderMatchSpecifier: &route.HeaderMatcher_PresentMatch{PresentMatch: true}}
}

func exactly(text string) *matcher.StringMatcher {
	return &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Exact{Exact: text}}
}

func pattern(regex string) *matcher.StringMatcher {
	return &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_SafeRegex{SafeRegex: &matcher.RegexMatcher{Regex: regex}}}
}

// hashOf makes the value of a request header the key of consistent hashing.
func hashOf(header string) *route.RouteAction_HashPolicy {
	return &route.RouteAction_HashPolicy{PolicySpecifier: &route.RouteAction_HashPolicy_Header_{
		Header: &route.RouteAction_HashPolicy_Header{HeaderName: header},
	}}
}

// setHeader replaces a header, whoever set the header before.
func setHeader(name, value string) *core.HeaderValueOption {
	return &core.HeaderValueOption{
		Header:       &core.HeaderValue{Key: name, Value: value},
		AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// values says how a matcher continues, by the text of its input.
type values map[string]*match.Matcher_OnMatch

// byHeader continues by the value of a header, and with no, which may be nil, for any other
// value.
func byHeader(header string, yes values, no *match.Matcher_OnMatch) *match.Matcher {
	return byInput("envoy.matching.inputs.request_headers", &matcher.HttpRequestHeaderMatchInput{HeaderName: header}, yes, no)
}

// byInput continues by the text of an input, and with no, which may be nil, for any other text.
func byInput(name string, input validatedMessage, yes values, no *match.Matcher_OnMatch) *match.Matcher {
	return &match.Matcher{
		OnNoMatch: no,
		MatcherType: &match.Matcher_MatcherTree_{MatcherTree: &match.Matcher_MatcherTree{
			Input:    &xdscore.TypedExtensionConfig{Name: name, TypedConfig: mustPack(input)},
			TreeType: &match.Matcher_MatcherTree_ExactMatchMap{ExactMatchMap: &match.Matcher_MatcherTree_MatchMap{Map: yes}},
		}},
	}
}

// act ends a match tree with an action.
func act(name string, action validatedMessage) *match.Matcher_OnMatch {
	return &match.Matcher_OnMatch{OnMatch: &match.Matcher_OnMatch_Action{
		Action: &xdscore.TypedExtensionConfig{Name: name, TypedConfig: mustPack(action)},
	}}
}
