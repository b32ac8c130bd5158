package xds

import (
	"time"

	mutation "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	bodylimit "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/body_size_limit/v3"
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

// The names under which the routes switch filters off.
const (
	extProcName  = "envoy.filters.http.ext_proc"
	onDemandName = "envoy.filters.http.composite"
	extAuthzName = "envoy.filters.http.ext_authz"
	// bodyLimitName bounds the bodies of tasks. Bodies for engines are bounded by their routes, since ext_proc has them buffered.
	bodyLimitName = "envoy.filters.http.body_size_limit"
)

// controlTimeout is how long Sluice may take to answer ext_proc or ext_authz. It is what a client waits for its 503 when Sluice
// hangs; ext_proc asks for more before it holds a request.
const controlTimeout = 2 * time.Second

// httpFilters is the chain. ext_proc comes first: by the time a later filter looks at the request or its route, ext_proc has had its say.
// But Envoy makes the chain when the request arrives, which is on the undecided route: a filter that is switched off there does not come
// back with another route.
func httpFilters(c Config) []*hcm.HttpFilter {
	return []*hcm.HttpFilter{
		filter(extProcName, processor(c)),
		filter(onDemandName, onDemand()),
		filter(extAuthzName, authorizer()),
		filter(bodyLimitName, &bodylimit.BodySizeLimit{MaxRequestBytes: wrapperspb.UInt64(routes.MaxSmallBody)}),
		filter("envoy.filters.http.router", &router.Router{
			SuppressEnvoyHeaders: true,
			UpstreamLog:          attemptLog(),
			UpstreamLogOptions:   &router.Router_UpstreamAccessLogOptions{FlushUpstreamLogOnUpstreamStream: true},
		}),
	}
}

// processor is ext_proc. It sees the request's headers and body, then nothing until the response's trailers: their message keeps the
// exchange open to the true end of the response and carries no byte of it. Of a request that goes to the relay Sluice ends the exchange before, by
// which Envoy knows that nothing of the response is wanted.
//
// It fails open, so that the death of Sluice cuts no running stream. A request that it did not decide has no header to be
// routed by and ends as a 503.
func processor(c Config) *extproc.ExternalProcessor {
	return &extproc.ExternalProcessor{
		GrpcService:      control(0),
		FailureModeAllow: true,
		ProcessingMode: &extproc.ProcessingMode{
			RequestHeaderMode:   extproc.ProcessingMode_SEND,
			RequestBodyMode:     extproc.ProcessingMode_BUFFERED,
			RequestTrailerMode:  extproc.ProcessingMode_SKIP,
			ResponseHeaderMode:  extproc.ProcessingMode_SKIP,
			ResponseBodyMode:    extproc.ProcessingMode_NONE,
			ResponseTrailerMode: extproc.ProcessingMode_SEND,
		},
		MessageTimeout:    durationpb.New(controlTimeout),
		MaxMessageTimeout: durationpb.New(c.HoldTimeout),
		MutationRules: &mutation.HeaderMutationRules{
			// x-envoy-upstream-rq-timeout-ms and x-envoy-max-retries are how a request gets its own limits.
			AllowEnvoy: wrapperspb.Bool(true),
			// The path decides which policy holds; nobody changes it on the way.
			DisallowSystem: wrapperspb.Bool(true),
		},
		// What ext_proc says about a request is in the access log, which tells it again to a gateway that has restarted.
		MetadataOptions: &extproc.MetadataOptions{
			ReceivingNamespaces: &extproc.MetadataOptions_MetadataNamespaces{Untyped: []string{headers.Metadata}},
		},
	}
}

// authorizer is ext_authz, for the routes that ext_proc does not decide. It fails closed. What it answers with is set on the request, the
// tenant among it.
func authorizer() *extauthz.ExtAuthz {
	return &extauthz.ExtAuthz{
		Services:            &extauthz.ExtAuthz_GrpcService{GrpcService: control(controlTimeout)},
		TransportApiVersion: core.ApiVersion_V3,
		StatusOnError:       &httpstatus.HttpStatus{Code: httpstatus.StatusCode_ServiceUnavailable},
		ValidateMutations:   true,
	}
}

// control is Sluice's own gRPC listener. A timeout of 0 is none.
func control(timeout time.Duration) *core.GrpcService {
	service := &core.GrpcService{TargetSpecifier: &core.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &core.GrpcService_EnvoyGrpc{ClusterName: headers.ControlCluster},
	}}
	if timeout > 0 {
		service.Timeout = durationpb.New(timeout)
	}
	return service
}
