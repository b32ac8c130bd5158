package xds

import (
	"slices"
	"time"

	match "github.com/cncf/xds/go/xds/type/matcher/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// webSocketKey is the value of sec-websocket-key for WebSockets over HTTP/2, which have no such key
// (RFC 8441, section 5.1). The handler behind Envoy speaks HTTP/1.1 and requires one. It may be any
// 16 bytes, since nobody reads the answer to it.
const webSocketKey = "c2x1aWNlLW92ZXItaHR0cA=="

// escapedPath matches the rest of a path whose percent signs are followed by two hex digits. Go's
// HTTP server would refuse any other path itself, and not in the form of Sluice's errors.
const escapedPath = "([^%]|%[0-9A-Fa-f]{2})*"

// escaped matches a whole path of that kind, with any query behind it.
const escaped = `([^%?]|%[0-9A-Fa-f]{2})*(\?.*)?`

// The metadata of routes that the replies of Envoy itself read, see replies.
const (
	// limitKey is the limit of the body as text.
	limitKey = "max_body"
	// clientTimeoutKey is true if the timeout of the route is one that the client set.
	clientTimeoutKey = "client_timeout"
)

// routeConfiguration builds the one route configuration (RDS). The header of a decided request
// names its route. For all other requests Envoy takes the first route that matches; the route for
// everything else comes last. The paths of most requests come first, because some of the others
// have regular expressions.
func routeConfiguration(c Config) *route.RouteConfiguration {
	decided := values{}
	for _, d := range routes.AllDecided() {
		if !d.Relay || c.RelaySocket != "" {
			decided[d.Key()] = takeRoutes(decidedRoute(d, c))
		}
	}
	rc := &route.RouteConfiguration{
		Name: resourceName,
		VirtualHosts: []*route.VirtualHost{{
			Name:    resourceName,
			Domains: []string{"*"},
			Matcher: byHeader(headers.Route, decided, takeRoutes(otherRoutes(c)...)),
			// The log of attempts tells retries by this header.
			IncludeRequestAttemptCount: true,
		}},
		// Clusters are added and removed with models, and UndecidedCluster never exists.
		ValidateClusters: wrapperspb.Bool(false),
	}
	letOriginsCall(rc.VirtualHosts[0], c)
	if !c.Filter.strips(c) {
		rc.ResponseHeadersToRemove = headers.StrippedFromRelay()
	}
	return rc
}

// otherRoutes builds the routes of the requests that are not decided yet or never will be.
func otherRoutes(c Config) []*route.Route {
	all := inferenceRoutes(c)
	if c.RelaySocket != "" {
		all = append(all, tableRoutes(c, routes.RelayHandlers)...)
	}
	if c.GRPCSocket != "" {
		all = append(all, tableRoutes(c, routes.GRPCService)...)
	}
	return slices.Concat(all, tableRoutes(c, routes.API), []*route.Route{connectRoute(c), undecidedRoute(c)})
}

// takeRoutes takes the first of the routes that matches a request.
func takeRoutes(all ...*route.Route) *match.Matcher_OnMatch {
	return act("routes", &route.RouteList{Routes: all})
}

// tableRoutes builds the routes of what Sluice answers itself through one backend.
func tableRoutes(c Config, b routes.Backend) []*route.Route {
	var all []*route.Route
	for _, row := range routes.Of(b) {
		more := []*route.Route{tableRoute(c, row)}
		for _, alias := range row.Aliases {
			more = append(more, aliasRoute(c, row, alias))
		}
		for _, r := range more {
			r.GetRoute().RetryPolicy = gatewayRetries(c)
		}
		all = append(all, more...)
	}
	return all
}

// aliasRoute builds the route of an alias of a row. The backend sees the row's own path.
func aliasRoute(c Config, row routes.Route, alias string) *route.Route {
	path := row.Path
	row.Path = alias
	r := tableRoute(c, row)
	if row.Match == routes.Below { // else prefix_rewrite replaces the whole path
		r.GetRoute().RegexRewrite = &matcher.RegexMatchAndSubstitute{Pattern: &matcher.RegexMatcher{Regex: "^" + alias}, Substitution: path}
		return r
	}
	r.GetRoute().PrefixRewrite = path
	return r
}

// tableRoute builds the route of one row of the table. ext_proc has no part in such a route.
func tableRoute(c Config, row routes.Route) *route.Route {
	r := &route.Route{
		Name:                 row.Name,
		Match:                tableMatch(row),
		Action:               tableAction(row),
		ResponseHeadersToAdd: []*core.HeaderValueOption{sourceHeader(row.Backend), messagesRequestID()},
	}
	off := append(deciders(c), onDemandName, customResponseName)
	if row.Auth == routes.NoAuth {
		off = append(off, extAuthzName)
	}
	if row.SmallBody {
		r.Metadata = bodyLimitMetadata(routes.MaxSmallBody)
	} else {
		// The frames of a WebSocket and the messages of a gRPC call are one endless body to this
		// filter. The handlers bound each frame and message.
		off = append(off, bodyLimitName)
	}
	r.TypedPerFilterConfig = disabled(off...)
	stripRequest(r, c)
	if row.Backend != routes.API && c.Filter.strips(c) { // it may pass on an engine's answer
		r.ResponseHeadersToRemove = headers.StrippedFromRelay()
	}
	if row.Protocol == routes.WebSocket {
		acceptWebSocket(r)
	}
	return r
}

// tableMatch returns which requests belong to the route of a row.
func tableMatch(row routes.Route) *route.RouteMatch {
	m := new(route.RouteMatch)
	switch row.Match {
	case routes.Exact:
		m.PathSpecifier = &route.RouteMatch_Path{Path: row.Path}
	case routes.Subtree:
		m.PathSpecifier = &route.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: row.Path}
	case routes.Below:
		m.PathSpecifier = &route.RouteMatch_SafeRegex{SafeRegex: &matcher.RegexMatcher{Regex: row.Path + escapedPath}}
	}
	if row.Methods != nil {
		m.Headers = []*route.HeaderMatcher{methodIsOneOf(row.Methods)}
	}
	if row.Match == routes.Subtree && row.Protocol == routes.HTTP {
		m.Headers = append(m.Headers, headerIs(":path", pattern(escaped)))
	}
	if row.Protocol == routes.OverGRPC {
		m.Grpc = &route.RouteMatch_GrpcRouteMatchOptions{}
	}
	return m
}

// tableAction leads to the cluster of the row's backend. A row without a timeout leaves all limits
// of time to the backend; a gRPC client's deadline is one of them.
func tableAction(row routes.Route) *route.Route_Route {
	action := unlimited(row.Backend.Cluster())
	if row.Backend == routes.API && row.Name != routes.Schedule {
		// A priority has its own connections, so calls of /schedule that wait keep no others off.
		action.Route.Priority = core.RoutingPriority_HIGH
	}
	if row.Timeout > 0 {
		action.Route.Timeout = durationpb.New(row.Timeout)
		action.Route.IdleTimeout = nil
	}
	return action
}

// sourceHeader marks a response as the gateway's own. The relay and the gRPC service also pass on
// the answers of engines and mark those themselves, so their mark is kept.
func sourceHeader(b routes.Backend) *core.HeaderValueOption {
	source := sourceIsGateway()
	if b != routes.API {
		source.AppendAction = core.HeaderValueOption_ADD_IF_ABSENT
	}
	return source
}

// acceptWebSocket makes a route take WebSockets as well as plain requests, which the handler
// refuses with an error that names the protocol.
func acceptWebSocket(r *route.Route) {
	r.GetRoute().UpgradeConfigs = []*route.RouteAction_UpgradeConfig{{UpgradeType: "websocket"}}
	key := setHeader("sec-websocket-key", webSocketKey)
	key.AppendAction = core.HeaderValueOption_ADD_IF_ABSENT
	r.RequestHeadersToAdd = []*core.HeaderValueOption{key}
}

// undecidedRoute matches every other request. ext_proc answers the requests that it does not know,
// and moves those that it has decided to another route. A request that is still on this route after
// ext_proc becomes a 503, because the cluster does not exist.
//
// The route must lead to a cluster. A direct response ignores the body limit, so Envoy would refuse
// bodies of more than 1 MiB before ext_proc gets them.
func undecidedRoute(c Config) *route.Route {
	return &route.Route{
		Name:  routes.Undecided,
		Match: &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"}},
		Action: &route.Route_Route{Route: &route.RouteAction{
			ClusterSpecifier: &route.RouteAction_Cluster{Cluster: headers.UndecidedCluster},
		}},
		ResponseHeadersToAdd: []*core.HeaderValueOption{sourceIsGateway()},
		// No request gets through this route, so ext_authz need not be asked.
		TypedPerFilterConfig:   disabled(append(idle(c), extAuthzName, bodyLimitName)...),
		Metadata:               bodyLimitMetadata(c.MaxBody),
		RequestBodyBufferLimit: wrapperspb.UInt64(uint64(c.MaxBody)),
	}
}

// inferenceRoutes match the paths by which most requests ask for a replica, before they are
// decided. No other route but the last would match these requests.
func inferenceRoutes(c Config) []*route.Route {
	var all []*route.Route
	for _, row := range routes.Of(routes.Replica) {
		r := undecidedRoute(c)
		r.Match = tableMatch(row)
		all = append(all, r)
	}
	return all
}

// connectRoute refuses CONNECT at once. The "body" of a CONNECT never ends, so ext_proc would wait
// for its end.
func connectRoute(c Config) *route.Route {
	return &route.Route{
		Name:                 routes.Connect,
		Match:                &route.RouteMatch{PathSpecifier: &route.RouteMatch_ConnectMatcher_{ConnectMatcher: &route.RouteMatch_ConnectMatcher{}}},
		Action:               &route.Route_DirectResponse{DirectResponse: &route.DirectResponseAction{Status: 405}},
		TypedPerFilterConfig: disabled(append(deciders(c), onDemandName, extAuthzName, bodyLimitName, customResponseName)...),
	}
}

// unlimited leads to a cluster without any limit of time.
func unlimited(cluster string) *route.Route_Route {
	return &route.Route_Route{Route: &route.RouteAction{
		ClusterSpecifier: &route.RouteAction_Cluster{Cluster: cluster},
		Timeout:          durationpb.New(time.Duration(0)),
		IdleTimeout:      durationpb.New(time.Duration(0)),
	}}
}

// disabled switches filters off for a route. Envoy does not even create a filter that is off.
func disabled(filters ...string) map[string]*anypb.Any {
	off := make(map[string]*anypb.Any, len(filters))
	for _, name := range filters {
		off[name] = mustPack(&route.FilterConfig{Disabled: true})
	}
	return off
}

// bodyLimitMetadata tells the body limit of a route to the error that Envoy sends for larger
// bodies.
func bodyLimitMetadata(limit int64) *core.Metadata {
	return sluiceMetadata(limitKey, bytesText(limit))
}
