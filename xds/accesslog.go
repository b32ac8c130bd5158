package xds

import (
	"time"

	accesslog "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	accesslogdata "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	cel "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	grpclog "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	tag "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
)

const (
	// logFlushInterval is how long Envoy collects the records of finished requests, and
	// rareFlushInterval is the same where the filter tells of most requests. Each worker wakes up
	// at this interval, whether there are records or not.
	logFlushInterval  = 100 * time.Millisecond
	rareFlushInterval = time.Second
	// runningLogInterval is the interval at which Envoy logs a running request, so that a restarted
	// gateway learns of it.
	runningLogInterval = 10 * time.Second
)

// requestLog configures the log of requests: of all whose end the filter has not told.
func requestLog(c Config) []*accesslog.AccessLog {
	common := logConfig(headers.LogRequests)
	flush, only := logFlushInterval, (*accesslog.AccessLogFilter)(nil)
	if c.Filter.in(c) {
		flush, only = rareFlushInterval, untold()
	}
	common.BufferFlushInterval = durationpb.New(flush)
	return []*accesslog.AccessLog{grpcLog(&grpclog.HttpGrpcAccessLogConfig{
		CommonConfig: common, AdditionalResponseHeadersToLog: []string{headers.RequestID}, // see newRequestID
	}, only)}
}

func attemptLog() []*accesslog.AccessLog {
	common := logConfig(headers.LogAttempts)
	common.BufferSizeBytes = wrapperspb.UInt32(0)
	closes := allOf(loggedAs(accesslogdata.AccessLogType_UpstreamEnd), requestIsNot(headerPresent(headers.Framing)), celFilter(closeDelimited))
	return []*accesslog.AccessLog{grpcLog(&grpclog.HttpGrpcAccessLogConfig{
		CommonConfig: common, AdditionalResponseHeadersToLog: []string{"content-length", "transfer-encoding", "retry-after"},
	}, anyOf(failedOrRetried(), answeredAtLeast(429), closes))}
}

// closeDelimited matches responses of replicas that only the end of the connection ends. Envoy
// keeps a copy of the replica's own headers for this log; elsewhere it removes transfer-encoding.
// Where Sluice's own filter finds out by itself, a header of the request says so. The log of
// attempts does not see the dynamic metadata of the request. Such a header of a client does not
// come so far, see engineProtocol. Nearly all responses have one of the two headers of the
// expression. These are first, because what is behind them is not evaluated then.
const closeDelimited = `!("content-length" in response.headers) && !("transfer-encoding" in response.headers) && response.code >= 200 && ` +
	`xds.cluster_name.startsWith("model/")`

// loggedAs matches what Envoy logs for this reason. Before an attempt has a response, an expression
// about it has no value, and Envoy evaluates all of it to find that out.
func loggedAs(reason accesslogdata.AccessLogType) *accesslog.AccessLogFilter {
	return &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_LogTypeFilter{
		LogTypeFilter: &accesslog.LogTypeFilter{Types: []accesslogdata.AccessLogType{reason}},
	}}
}

// requestIsNot matches the requests that m, which becomes a part of the filter, does not match.
func requestIsNot(m *route.HeaderMatcher) *accesslog.AccessLogFilter {
	m.InvertMatch = true
	return &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_HeaderFilter{
		HeaderFilter: &accesslog.HeaderFilter{Header: m},
	}}
}

// allOf matches what all filters match. They are evaluated in order, until one does not.
func allOf(filters ...*accesslog.AccessLogFilter) *accesslog.AccessLogFilter {
	return &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_AndFilter{AndFilter: &accesslog.AndFilter{Filters: filters}}}
}

// anyOf matches what one of the filters matches.
func anyOf(filters ...*accesslog.AccessLogFilter) *accesslog.AccessLogFilter {
	return &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_OrFilter{OrFilter: &accesslog.OrFilter{Filters: filters}}}
}

// answeredAtLeast matches answers with this status or a greater one.
func answeredAtLeast(status uint32) *accesslog.AccessLogFilter {
	return &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_StatusCodeFilter{
		StatusCodeFilter: &accesslog.StatusCodeFilter{Comparison: &accesslog.ComparisonFilter{
			Op:    accesslog.ComparisonFilter_GE,
			Value: &core.RuntimeUInt32{DefaultValue: status, RuntimeKey: "sluice.logged_status"}, // nobody sets the key
		}},
	}}
}

// failedOrRetried matches the attempts that the gateway must know of at once: those that failed and
// those that followed a failed one. Envoy logs the latter when they have a connection and again
// when they end. A request whose first attempt succeeds costs nothing here.
func failedOrRetried() *accesslog.AccessLogFilter {
	failed := &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_ResponseFlagFilter{
		// an empty list matches any flag
		ResponseFlagFilter: &accesslog.ResponseFlagFilter{},
	}}
	again := requestIsNot(headerIs("x-envoy-attempt-count", exactly("1")))
	return anyOf(failed, again)
}

// logConfig configures a log that Envoy sends to Sluice over gRPC.
func logConfig(name string) *grpclog.CommonGrpcAccessLogConfig {
	return &grpclog.CommonGrpcAccessLogConfig{
		LogName:             name,
		GrpcService:         controlService(0),
		TransportApiVersion: core.ApiVersion_V3,
		CustomTags: []*tag.CustomTag{
			valueTag(headers.TagReplica, "%UPSTREAM_METADATA("+headers.Metadata+":replica)%"),
			valueTag(headers.TagFirstByte, "%COMMON_DURATION(DS_RX_BEG:US_RX_BODY_BEG:us)%"),
		},
	}
}

// valueTag adds a formatted value to each record of a log.
func valueTag(name, format string) *tag.CustomTag {
	return &tag.CustomTag{Tag: name, Type: &tag.CustomTag_Value{Value: format}}
}

// grpcLog wraps a configuration. It logs only what the filter matches; nil matches everything.
func grpcLog(log *grpclog.HttpGrpcAccessLogConfig, only *accesslog.AccessLogFilter) *accesslog.AccessLog {
	return &accesslog.AccessLog{
		Name:       "envoy.access_loggers.http_grpc",
		Filter:     only,
		ConfigType: &accesslog.AccessLog_TypedConfig{TypedConfig: mustPack(log)},
	}
}

// celFilter matches by a CEL expression over Envoy's attributes. An expression that cannot be
// evaluated is false.
func celFilter(text string) *accesslog.AccessLogFilter {
	return &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_ExtensionFilter{
		ExtensionFilter: &accesslog.ExtensionFilter{
			Name:       "envoy.access_loggers.extension_filters.cel",
			ConfigType: &accesslog.ExtensionFilter_TypedConfig{TypedConfig: mustPack(&cel.ExpressionFilter{Expression: text})},
		},
	}}
}
