package xds

import (
	"strconv"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/failover"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

const (
	// retryBackOff and retryBackOffMax are short because a retry goes to another replica.
	retryBackOff    = 5 * time.Millisecond
	retryBackOffMax = 50 * time.Millisecond
	// hostSelectionRetries is how often the fallback policy picks again when it hits a replica that
	// has been tried before.
	hostSelectionRetries = 5
)

// decidedRoute builds the route of a kind of decided requests. When Envoy reports a timeout, the
// headers that distinguish the kinds are gone, but the route is known.
func decidedRoute(d routes.Decided, c Config) *route.Route {
	if d.Relay {
		return relayRoute(d.Stream, c)
	}
	r := engineRoute(c)
	if d.ClientTimeout {
		r.Metadata.FilterMetadata[headers.Metadata].Fields[clientTimeoutKey] = structpb.NewBoolValue(true)
	}
	if d.Stream {
		makeStreamRoute(r, c)
	}
	if !d.OwnRetries {
		retryStatuses(r.GetRoute().GetRetryPolicy())
	}
	return r
}

// engineRoute builds the route of requests that have no streamed response and no timeout of the
// client.
func engineRoute(c Config) *route.Route {
	r := &route.Route{
		Name:  routes.Engine,
		Match: decidedMatch(headers.Cluster),
		Action: &route.Route_Route{Route: &route.RouteAction{
			ClusterSpecifier: &route.RouteAction_ClusterHeader{ClusterHeader: headers.Cluster},
			// Only the endpoints of upstreams have a host name, which then replaces the client's.
			HostRewriteSpecifier: &route.RouteAction_AutoHostRewrite{AutoHostRewrite: wrapperspb.Bool(true)},
			Timeout:              durationpb.New(c.MaxDuration),
			IdleTimeout:          durationpb.New(0),
			RetryPolicy:          retryPolicy(),
			HashPolicy:           []*route.RouteAction_HashPolicy{hashOf(headers.Endpoint)},
		}},
		// Sluice's own headers are removed after the pick, see engineProtocol.
		TypedPerFilterConfig:   disabled(extAuthzName, bodyLimitName),
		Metadata:               bodyLimitMetadata(c.MaxBody),
		RequestBodyBufferLimit: wrapperspb.UInt64(uint64(c.MaxBody)),
	}
	r.TypedPerFilterConfig[customResponseName] = mustPack(refuseUnasked())
	stripDecided(r, c)
	if !c.Filter.strips(c) {
		setResponse(r, c)
	}
	return r
}

// setResponse has a route to engines say in the response who has answered, and remove what only the
// gateway may say.
func setResponse(r *route.Route, c Config) {
	r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd, setHeader(headers.Source, headers.SourceEngine), engineRetryAfter())
	// The list of all routes is applied after this route has added its own.
	r.ResponseHeadersToRemove = headers.OfDecision()
	if c.HideReplica {
		r.ResponseHeadersToRemove = append(r.ResponseHeadersToRemove, headers.Replica)
	} else {
		r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd,
			setHeader(headers.Replica, "%UPSTREAM_METADATA("+headers.Metadata+":replica)%"))
	}
}

// engineRetryAfter says when a client may repeat a request whose engine has answered with an error
// that may be repeated, but does not say when. Envoy leaves the header out if its value is empty.
func engineRetryAfter() *core.HeaderValueOption {
	h := setHeader("retry-after", `%CEL(response.code in [429, 502, 503, 504] ? "`+retryAfter+`" : "")%`)
	h.AppendAction = core.HeaderValueOption_ADD_IF_ABSENT
	return h
}

// makeStreamRoute makes sure that no proxy on the way buffers or compresses the stream.
func makeStreamRoute(r *route.Route, c Config) {
	r.Name = routes.Stream
	r.RequestHeadersToAdd = []*core.HeaderValueOption{setHeader("accept-encoding", "identity")}
	if !c.Filter.strips(c) {
		r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd,
			setHeader("cache-control", "no-cache, no-transform"), setHeader("x-accel-buffering", "no"))
	}
}

// relayRoute builds a route of requests that ext_proc has handed to the relay. It has no retries,
// not even for a connection that could not be made: a handoff can be claimed once. The relay itself
// writes the headers that say who has answered.
func relayRoute(stream bool, c Config) *route.Route {
	name := routes.Relay
	if stream {
		name = routes.RelayStream
	}
	r := &route.Route{
		Name:                   name,
		Match:                  decidedMatch(headers.Handoff),
		Action:                 unlimited(headers.RelayCluster),
		TypedPerFilterConfig:   disabled(extAuthzName, bodyLimitName),
		Metadata:               bodyLimitMetadata(c.MaxBody),
		RequestBodyBufferLimit: wrapperspb.UInt64(uint64(c.MaxBody)),
	}
	stripDecided(r, c)
	return r
}

// stripDecided has a route of decided requests remove what does not cross the gateway and set the
// rate limit headers, as far as Sluice's own filter does not. The credentials of clients are
// removed here in any case: a connection that is older than these routes has the filter of its
// time. Sluice's own headers are removed after the pick, see engineProtocol.
func stripDecided(r *route.Route, c Config) {
	if !c.Filter.strips(c) {
		stripRequest(r, c)
		r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd, decisionHeaders()...)
	}
	r.RequestHeadersToRemove = append(r.RequestHeadersToRemove, headers.Late()...)
}

// stripRequest has a route remove the headers of clients that nobody reads, unless the listener
// does so.
func stripRequest(r *route.Route, c Config) {
	if c.Filter.in(c) {
		r.RequestHeadersToRemove = headers.Unread()
	}
}

// decidedMatch matches requests with a header that only the decision sets.
func decidedMatch(header string) *route.RouteMatch {
	return &route.RouteMatch{
		PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"}, Headers: []*route.HeaderMatcher{headerPresent(header)},
	}
}

// decisionHeaders are response headers whose values ext_proc has put into the dynamic metadata of
// the request. Envoy leaves out the headers that have no value there.
func decisionHeaders() []*core.HeaderValueOption {
	var all []*core.HeaderValueOption
	for _, name := range headers.OfDecision() {
		all = append(all, setHeader(name, "%DYNAMIC_METADATA("+headers.Metadata+":"+name+")%"))
	}
	return all
}

// retryPolicy makes Envoy follow the list of replicas that ext_proc has written. failover.RetryOn
// lists the failures after which Envoy tries the next replica, as long as no response headers have
// come. It has reset and not only reset-before-request, because an engine that closes a connection
// at the moment of its reuse has read the request's first bytes. retryStatuses adds statuses, or
// the headers of a request do.
func retryPolicy() *route.RetryPolicy {
	return &route.RetryPolicy{
		RetryOn:    failover.RetryOn(),
		NumRetries: wrapperspb.UInt32(failover.RouteRetries),
		RetryBackOff: &route.RetryPolicy_RetryBackOff{
			BaseInterval: durationpb.New(retryBackOff), MaxInterval: durationpb.New(retryBackOffMax),
		},
		RetryHostPredicate:            skipTriedHosts(),
		HostSelectionRetryMaxAttempts: hostSelectionRetries,
	}
}

// retryStatuses adds the statuses after which most requests go to the next replica. To read them
// from headers of each request would take Envoy longer.
func retryStatuses(p *route.RetryPolicy) {
	retryOn, codes := failover.AllStatuses.Envoy()
	p.RetryOn += "," + retryOn
	for code := range strings.SplitSeq(codes, ",") {
		n, err := strconv.ParseUint(code, 10, 32)
		if err != nil {
			panic(err) // AllStatuses is a constant
		}
		p.RetriableStatusCodes = append(p.RetriableStatusCodes, uint32(n))
	}
}
