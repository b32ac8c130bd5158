package xds

import (
	"slices"
	"time"

	mutation "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	bodylimit "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/body_size_limit/v3"
	customresponse "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/custom_response/v3"
	extauthz "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	router "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	httpstatus "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// The names of the HTTP filters. Routes use them to disable a filter.
const (
	extProcName  = "envoy.filters.http.ext_proc"
	onDemandName = "envoy.filters.http.composite"
	extAuthzName = "envoy.filters.http.ext_authz"
	// bodyLimitName is the filter that bounds the bodies of small requests, see
	// routes.Route.SmallBody. Bodies for engines are bounded by their routes, since Envoy buffers
	// them for ext_proc.
	bodyLimitName = "envoy.filters.http.body_size_limit"
)

// controlTimeout bounds the time for Sluice's first answer to ext_proc or ext_authz. If Sluice
// hangs, clients get a 503 after this time. To hold a request longer, ext_proc asks Envoy for more
// time.
const controlTimeout = 2 * time.Second

// httpFilterChain lists the HTTP filters. Behind corsFilter comes the one that has the request
// decided, so that is done before a later filter looks at the request or its route. But Envoy
// creates the filters when the request arrives, on the undecided route. A filter that is disabled
// on that route stays disabled on every other route.
func httpFilterChain(c Config) []*hcm.HttpFilter {
	return slices.Concat([]*hcm.HttpFilter{corsFilter()}, ownFilter(c), []*hcm.HttpFilter{
		httpFilter(extProcName, extProcFilter(c)),
		httpFilter(onDemandName, onDemandFilter()),
		httpFilter(extAuthzName, extAuthzFilter(c)),
		httpFilter(bodyLimitName, &bodylimit.BodySizeLimit{MaxRequestBytes: wrapperspb.UInt64(routes.MaxSmallBody)}),
		httpFilter(customResponseName, &customresponse.CustomResponse{}),
		httpFilter("envoy.filters.http.router", &router.Router{
			SuppressEnvoyHeaders: true,
			UpstreamLog:          attemptLog(),
			UpstreamLogOptions:   &router.Router_UpstreamAccessLogOptions{FlushUpstreamLogOnUpstreamStream: true},
		}),
	})
}

// extProcFilter sends the request's headers and body to ext_proc, and then nothing until the
// trailers of the response. Envoy sends no body of a request that has none but has trailers, so it
// sends the trailers too. Waiting for the trailers keeps the exchange open until the true end of
// the response, without sending any byte of it. For a request that goes to the relay, Sluice ends
// the exchange earlier; Envoy then sends nothing of the response.
//
// The filter fails open, so that the death of Sluice cuts no running stream. A request that
// ext_proc did not decide lacks the header for routing and becomes a 503.
func extProcFilter(c Config) *extproc.ExternalProcessor {
	return &extproc.ExternalProcessor{
		GrpcService:      decisionService(c, 0),
		FailureModeAllow: true,
		ProcessingMode: &extproc.ProcessingMode{
			RequestHeaderMode:   extproc.ProcessingMode_SEND,
			RequestBodyMode:     extproc.ProcessingMode_BUFFERED,
			RequestTrailerMode:  extproc.ProcessingMode_SEND,
			ResponseHeaderMode:  extproc.ProcessingMode_SKIP,
			ResponseBodyMode:    extproc.ProcessingMode_NONE,
			ResponseTrailerMode: extproc.ProcessingMode_SEND,
		},
		MessageTimeout:    durationpb.New(controlTimeout),
		MaxMessageTimeout: durationpb.New(routes.HoldTimeout),
		MutationRules: &mutation.HeaderMutationRules{
			// x-envoy-upstream-rq-timeout-ms and x-envoy-max-retries set the limits of a request.
			// ext_proc also replaces an alias of a path by the path that engines know. By default
			// it may change no other header that routes depend on.
			AllowEnvoy: wrapperspb.Bool(true),
		},
		// The access log contains the dynamic metadata that ext_proc sets. A restarted gateway
		// reads it there.
		MetadataOptions: &extproc.MetadataOptions{
			ReceivingNamespaces: &extproc.MetadataOptions_MetadataNamespaces{Untyped: []string{headers.Metadata}},
		},
	}
}

// extAuthzFilter authenticates requests on the routes that ext_proc does not decide. It fails
// closed. The headers of the answer, such as the tenant, are set on the request.
func extAuthzFilter(c Config) *extauthz.ExtAuthz {
	return &extauthz.ExtAuthz{
		Services:            &extauthz.ExtAuthz_GrpcService{GrpcService: decisionService(c, controlTimeout)},
		TransportApiVersion: core.ApiVersion_V3,
		StatusOnError:       &httpstatus.HttpStatus{Code: httpstatus.StatusCode_ServiceUnavailable},
		ValidateMutations:   true,
	}
}

// controlService is Sluice's own gRPC listener. A timeout of 0 means none.
func controlService(timeout time.Duration) *core.GrpcService {
	service := &core.GrpcService{TargetSpecifier: &core.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &core.GrpcService_EnvoyGrpc{ClusterName: headers.ControlCluster},
	}}
	if timeout > 0 {
		service.Timeout = durationpb.New(timeout)
	}
	return service
}
