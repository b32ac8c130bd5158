package xds

import (
	"regexp"
	"slices"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hosts "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// The names of the routes, as they stand in the access log.
const (
	// StreamRoute leads to an engine whose answer is a stream.
	StreamRoute = headers.StreamRoute
	// EngineRoute leads to an engine.
	EngineRoute = "engine"
	// ModelsRoute and HealthRoute lead to Sluice's own HTTP listener.
	ModelsRoute = "models"
	HealthRoute = "health"
	// ScheduleRoute and TasksRoute lead there too: tasks that are admitted here and done elsewhere.
	ScheduleRoute = "schedule"
	TasksRoute    = "tasks"
	// RelayRoute leads to Sluice's relay of managed streams, RelayStreamRoute too for answers that are a stream.
	RelayRoute       = headers.RelayRoute
	RelayStreamRoute = headers.RelayStreamRoute
	// RealtimeRoute, StreamsRoute and GRPCRoute lead to Sluice's WebSocket, to streams that run or have run, and to its gRPC service.
	RealtimeRoute = headers.RealtimeRoute
	StreamsRoute  = headers.StreamsRoute
	GRPCRoute     = headers.GRPCRoute
	// ConnectRoute refuses CONNECT, which has no path for the other routes to match.
	ConnectRoute = "connect"
	// UndecidedRoute leads nowhere. Every inference request begins on it and leaves it when ext_proc has decided.
	UndecidedRoute = "undecided"
)

// InferencePaths are the paths that engines answer, all with POST.
func InferencePaths() []string {
	return []string{
		"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/v1/score",
		"/v1/audio/transcriptions", "/v1/audio/translations",
	}
}

const (
	// retryOn: reset, and not only reset-before-request, because an engine that closes a connection in the moment it is used again has
	// taken the request's first bytes. Envoy retries only until response headers have come.
	retryOn = "connect-failure,refused-stream,reset"
	// retries is how often a request is tried again, unless ext_proc says otherwise in x-envoy-max-retries. Every try takes the next
	// replica of the list.
	retries = 3
	// retryBackOff is short: the next try goes to another replica.
	retryBackOff    = 5 * time.Millisecond
	retryBackOffMax = 50 * time.Millisecond
	// otherHosts is how often the fallback picks again when it hits a replica that was tried before.
	otherHosts = 5
	// apiTimeout bounds what Sluice answers itself.
	apiTimeout = 10 * time.Second
	// scheduleTimeout bounds the wait for a place, which Sluice ends before.
	scheduleTimeout = 6 * time.Minute
	// taskBody is the largest body that the routes of tasks take, in bytes.
	taskBody = 64 << 10
)

// What routes tell the answers that Envoy gives by itself, in their metadata.
const (
	// limitKey is the body limit in words.
	limitKey = "max_body"
	// clientTimeoutKey says that a timeout is the client's own.
	clientTimeoutKey = "client_timeout"
)

func routesFor(c Config) *route.RouteConfiguration {
	return &route.RouteConfiguration{
		Name: resourceName,
		VirtualHosts: []*route.VirtualHost{{
			Name:    resourceName,
			Domains: []string{"*"},
			Routes:  slices.Concat(managedRoutes(c), engineRoutes(c), ownRoutes(), []*route.Route{connectRoute(), undecidedRoute(c)}),
			// The log of attempts tells retries by this header.
			IncludeRequestAttemptCount: true,
		}},
		ResponseHeadersToRemove: []string{"server"},
		// Clusters come and go with models, and UndecidedCluster never comes.
		ValidateClusters: wrapperspb.Bool(false),
	}
}

// engineRoutes lead to the cluster that ext_proc chose. They differ for streams, and for requests whose client set the timeout: the headers
// that say so are gone by the time a timeout is answered, but the route is known.
func engineRoutes(c Config) []*route.Route {
	var routes []*route.Route
	for _, clientTimeout := range []bool{true, false} {
		for _, stream := range []bool{true, false} {
			r := engineRoute(c)
			if clientTimeout {
				r.Match.Headers = append(r.Match.Headers, headerIs(headers.ClientTimeout, exactly("1")))
				r.Metadata.FilterMetadata[headers.Metadata].Fields[clientTimeoutKey] = structpb.NewBoolValue(true)
			}
			if stream {
				forStreams(r)
			}
			routes = append(routes, r)
		}
	}
	return routes
}

func engineRoute(c Config) *route.Route {
	r := &route.Route{
		Name: EngineRoute,
		Match: &route.RouteMatch{
			PathSpecifier: &route.RouteMatch_SafeRegex{SafeRegex: inferencePath()},
			Headers:       []*route.HeaderMatcher{headerIs(":method", exactly("POST")), headerPresent(headers.Cluster)},
		},
		Action: &route.Route_Route{Route: &route.RouteAction{
			ClusterSpecifier: &route.RouteAction_ClusterHeader{ClusterHeader: headers.Cluster},
			// Only endpoints of upstreams have a host name to put there.
			HostRewriteSpecifier: &route.RouteAction_AutoHostRewrite{AutoHostRewrite: wrapperspb.Bool(true)},
			Timeout:              durationpb.New(c.MaxDuration),
			IdleTimeout:          durationpb.New(0),
			RetryPolicy:          retryPolicy(),
			HashPolicy:           []*route.RouteAction_HashPolicy{hashOf(headers.Endpoint)},
		}},
		// Sluice's own headers go when the replica has been picked, see engineProtocol.
		RequestHeadersToRemove: forSluiceAlone(),
		ResponseHeadersToAdd:   []*core.HeaderValueOption{set(headers.Source, headers.SourceEngine)},
		TypedPerFilterConfig:   without(extAuthzName, taskLimitName),
		Metadata:               limitInWords(c.MaxBody),
		RequestBodyBufferLimit: wrapperspb.UInt64(uint64(c.MaxBody)),
	}
	r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd, quotas()...)
	if c.HideReplica {
		r.ResponseHeadersToRemove = []string{headers.Replica}
	} else {
		r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd,
			set(headers.Replica, "%UPSTREAM_METADATA("+headers.Metadata+":replica)%"))
	}
	return r
}

// quotas are what ext_proc has noted of a tenant's limits.
func quotas() []*core.HeaderValueOption {
	var all []*core.HeaderValueOption
	for _, name := range headers.RateLimits() {
		all = append(all, set(name, "%DYNAMIC_METADATA("+headers.Metadata+":"+name+")%"))
	}
	return all
}

// forSluiceAlone are the headers of a client that ext_proc has read and that nobody after it is to see, its key among them.
func forSluiceAlone() []string {
	return []string{"authorization", "x-api-key", "api-key", "proxy-authorization", "expect", headers.IdempotencyKey}
}

func limitInWords(limit int64) *core.Metadata {
	return ownMetadata(map[string]*structpb.Value{limitKey: structpb.NewStringValue(bytesText(limit))})
}

// forStreams makes sure that nothing on the way holds a stream back.
func forStreams(r *route.Route) {
	r.Name = StreamRoute
	r.Match.Headers = append(r.Match.Headers, headerIs(headers.Stream, exactly("1")))
	r.RequestHeadersToAdd = []*core.HeaderValueOption{set("accept-encoding", "identity")}
	r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd,
		set("cache-control", "no-cache, no-transform"), set("x-accel-buffering", "no"))
}

// retryPolicy walks the list of replicas.
func retryPolicy() *route.RetryPolicy {
	return &route.RetryPolicy{
		RetryOn:    retryOn,
		NumRetries: wrapperspb.UInt32(retries),
		RetryBackOff: &route.RetryPolicy_RetryBackOff{
			BaseInterval: durationpb.New(retryBackOff), MaxInterval: durationpb.New(retryBackOffMax),
		},
		RetryHostPredicate: []*route.RetryPolicy_RetryHostPredicate{{
			Name:       "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &route.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: mustPack(&hosts.PreviousHostsPredicate{})},
		}},
		HostSelectionRetryMaxAttempts: otherHosts,
	}
}

// ownRoutes lead to Sluice's own HTTP listener.
func ownRoutes() []*route.Route {
	reading := headerIs(":method", pattern("GET|HEAD"))
	return []*route.Route{
		apiRoute(ModelsRoute, &route.RouteMatch{
			PathSpecifier: &route.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: "/v1/models"},
			Headers:       []*route.HeaderMatcher{reading},
		}, extProcName),
		apiRoute(HealthRoute, &route.RouteMatch{
			PathSpecifier: &route.RouteMatch_Path{Path: "/health"},
			Headers:       []*route.HeaderMatcher{reading},
		}, extProcName, extAuthzName),
		taskRoute(ScheduleRoute, "/schedule", scheduleTimeout),
		taskRoute(TasksRoute, "/complete", apiTimeout),
		taskRoute(TasksRoute, "/renew", apiTimeout),
	}
}

func apiRoute(name string, match *route.RouteMatch, off ...string) *route.Route {
	return &route.Route{
		Name:  name,
		Match: match,
		Action: &route.Route_Route{Route: &route.RouteAction{
			ClusterSpecifier: &route.RouteAction_Cluster{Cluster: headers.APICluster},
			Timeout:          durationpb.New(apiTimeout),
		}},
		ResponseHeadersToAdd: []*core.HeaderValueOption{set(headers.Source, headers.SourceGateway)},
		TypedPerFilterConfig: without(append(off, onDemandName, taskLimitName)...),
	}
}

// taskRoute takes every method, so that Sluice can say which ones there are.
func taskRoute(name, path string, timeout time.Duration) *route.Route {
	r := apiRoute(name, &route.RouteMatch{PathSpecifier: &route.RouteMatch_Path{Path: path}}, extProcName)
	r.GetRoute().Timeout = durationpb.New(timeout)
	delete(r.TypedPerFilterConfig, taskLimitName)
	r.Metadata = limitInWords(taskBody)
	return r
}

// undecidedRoute takes everything else. ext_proc answers what it does not know, and moves what it has decided to an engine's route;
// what is still here after it becomes a 503. It must be a route to a cluster and not a direct response, which would ignore the
// body limit: bodies over 1 MiB would be refused before ext_proc saw them.
func undecidedRoute(c Config) *route.Route {
	return &route.Route{
		Name:  UndecidedRoute,
		Match: &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"}},
		Action: &route.Route_Route{Route: &route.RouteAction{
			ClusterSpecifier: &route.RouteAction_Cluster{Cluster: headers.UndecidedCluster},
		}},
		ResponseHeadersToAdd: []*core.HeaderValueOption{set(headers.Source, headers.SourceGateway)},
		// Nothing passes here, so nobody need be asked.
		TypedPerFilterConfig:   without(extAuthzName, taskLimitName),
		Metadata:               limitInWords(c.MaxBody),
		RequestBodyBufferLimit: wrapperspb.UInt64(uint64(c.MaxBody)),
	}
}

// connectRoute refuses CONNECT at once. Its "body" never ends, so ext_proc would wait for it.
func connectRoute() *route.Route {
	return &route.Route{
		Name:                 ConnectRoute,
		Match:                &route.RouteMatch{PathSpecifier: &route.RouteMatch_ConnectMatcher_{ConnectMatcher: &route.RouteMatch_ConnectMatcher{}}},
		Action:               &route.Route_DirectResponse{DirectResponse: &route.DirectResponseAction{Status: 405}},
		TypedPerFilterConfig: without(extProcName, onDemandName, extAuthzName, taskLimitName),
	}
}

// without switches filters off for a route: they are not even created.
func without(filters ...string) map[string]*anypb.Any {
	off := make(map[string]*anypb.Any, len(filters))
	for _, name := range filters {
		off[name] = mustPack(&route.FilterConfig{Disabled: true})
	}
	return off
}

func inferencePath() *matcher.RegexMatcher {
	paths := slices.Clone(InferencePaths())
	for i, p := range paths {
		paths[i] = regexp.QuoteMeta(strings.TrimPrefix(p, "/v1/"))
	}
	return &matcher.RegexMatcher{Regex: "/v1/(" + strings.Join(paths, "|") + ")"}
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

func hashOf(header string) *route.RouteAction_HashPolicy {
	return &route.RouteAction_HashPolicy{PolicySpecifier: &route.RouteAction_HashPolicy_Header_{
		Header: &route.RouteAction_HashPolicy_Header{HeaderName: header},
	}}
}

// set replaces a header, whoever wrote it before.
func set(name, value string) *core.HeaderValueOption {
	return &core.HeaderValueOption{
		Header:       &core.HeaderValue{Key: name, Value: value},
		AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}
