package xds

import (
	"regexp"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	cors "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// corsName is the filter that lets pages of other origins call the API.
const corsName = "envoy.filters.http.cors"

// preflightAge is how long a browser remembers the answer to a preflight request, in seconds.
// Chromium remembers none for longer.
const preflightAge = "7200"

// corsFilter answers preflight requests before anything asks the gateway. They have no key. The
// filter is disabled until the routes have a policy, so that a gateway without cors pays nothing.
// docs/decisions/133 has the reasons.
func corsFilter() *hcm.HttpFilter {
	f := httpFilter(corsName, &cors.Cors{})
	f.Disabled = true
	return f
}

// letOriginsCall lets the pages of the origins of c call the API and read the answers. Browsers
// send no cookies of the gateway and no certificates, because the policy does not allow them.
func letOriginsCall(h *route.VirtualHost, c Config) {
	if c.Origins == "" {
		return
	}
	policy := &cors.CorsPolicy{
		// An asterisk stands for what the browser asks for.
		AllowMethods: "*", AllowHeaders: "*", ExposeHeaders: "*", MaxAge: preflightAge,
	}
	for origin := range strings.FieldsSeq(c.Origins) {
		policy.AllowOriginStringMatch = append(policy.AllowOriginStringMatch, originMatcher(origin))
	}
	h.TypedPerFilterConfig = map[string]*anypb.Any{corsName: mustPack(policy)}
	vary := setHeader("vary", "Origin") // the answer to another origin has other headers
	vary.AppendAction = core.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD
	h.ResponseHeadersToAdd = []*core.HeaderValueOption{vary}
}

// originMatcher matches an origin as config.CORS has it. Envoy lets each origin call if the exact
// text is an asterisk.
func originMatcher(origin string) *matcher.StringMatcher {
	before, after, wild := strings.Cut(origin, "*")
	if !wild || origin == "*" {
		return exactly(origin)
	}
	return pattern(regexp.QuoteMeta(before) + "[a-z0-9._-]+" + regexp.QuoteMeta(after))
}
