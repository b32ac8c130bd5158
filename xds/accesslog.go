package xds

import (
	"time"

	accesslog "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	cel "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	grpclog "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	tag "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
)

const (
	// logInterval is how long entries of finished requests are gathered.
	logInterval = 100 * time.Millisecond
	// runningInterval is how often a request that still runs is logged, so that a gateway that restarted learns of it.
	runningInterval = 10 * time.Second
)

func requestLog() []*accesslog.AccessLog {
	common := logTo(headers.LogRequests)
	common.BufferFlushInterval = durationpb.New(logInterval)
	return []*accesslog.AccessLog{grpcLog(common, nil)}
}

func attemptLog() []*accesslog.AccessLog {
	common := logTo(headers.LogAttempts)
	common.BufferSizeBytes = wrapperspb.UInt32(0)
	return []*accesslog.AccessLog{grpcLog(common, noteworthy())}
}

// noteworthy are the attempts that the gateway must hear of at once: those that failed, and those after a failed one, told when they have
// a connection and again when they end. A request that succeeds at the first try costs nothing here.
func noteworthy() *accesslog.AccessLogFilter {
	failed := &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_ResponseFlagFilter{
		ResponseFlagFilter: &accesslog.ResponseFlagFilter{}, // any flag
	}}
	first := headerIs("x-envoy-attempt-count", exactly("1"))
	first.InvertMatch = true
	again := &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_HeaderFilter{
		HeaderFilter: &accesslog.HeaderFilter{Header: first},
	}}
	return &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_OrFilter{
		OrFilter: &accesslog.OrFilter{Filters: []*accesslog.AccessLogFilter{failed, again}},
	}}
}

func logTo(name string) *grpclog.CommonGrpcAccessLogConfig {
	return &grpclog.CommonGrpcAccessLogConfig{
		LogName:             name,
		GrpcService:         control(0),
		TransportApiVersion: core.ApiVersion_V3,
		CustomTags: []*tag.CustomTag{
			formatted(headers.TagReplica, "%UPSTREAM_METADATA("+headers.Metadata+":replica)%"),
			formatted(headers.TagFirstByte, "%COMMON_DURATION(DS_RX_BEG:US_RX_BODY_BEG:us)%"),
		},
	}
}

func formatted(name, format string) *tag.CustomTag {
	return &tag.CustomTag{Tag: name, Type: &tag.CustomTag_Value{Value: format}}
}

func grpcLog(common *grpclog.CommonGrpcAccessLogConfig, only *accesslog.AccessLogFilter) *accesslog.AccessLog {
	return &accesslog.AccessLog{
		Name:       "envoy.access_loggers.http_grpc",
		Filter:     only,
		ConfigType: &accesslog.AccessLog_TypedConfig{TypedConfig: mustPack(&grpclog.HttpGrpcAccessLogConfig{CommonConfig: common})},
	}
}

// expression filters by a CEL expression over Envoy's attributes. One that fails to evaluate is false.
func expression(text string) *accesslog.AccessLogFilter {
	return &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_ExtensionFilter{
		ExtensionFilter: &accesslog.ExtensionFilter{
			Name:       "envoy.access_loggers.extension_filters.cel",
			ConfigType: &accesslog.ExtensionFilter_TypedConfig{TypedConfig: mustPack(&cel.ExpressionFilter{Expression: text})},
		},
	}}
}
