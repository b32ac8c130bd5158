package xds

import (
	"slices"
	"time"

	match "github.com/cncf/xds/go/xds/type/matcher/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	aimanager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ai_protocol_manager/v3"
	composite "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/composite/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	ai "github.com/envoyproxy/go-control-plane/envoy/type/ai/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
)

const (
	// observerCloseTimeout is how long an observer's exchange outlives its response. With Envoy's
	// default of 5 s, Sluice would learn of an aborted response 5 s late.
	observerCloseTimeout = 100 * time.Millisecond
	// maxUsageBody and maxUsageEvent are the sizes in bytes of the largest JSON response and of the
	// largest event whose usage is read. Larger ones pass unchanged, and their usage is unknown.
	// The last event of the responses API contains the whole response.
	maxUsageBody  = 8 << 20
	maxUsageEvent = 1 << 20
	// maxUsageEvents is how many events of one stream are read. Each is a token or a few.
	maxUsageEvents = 1 << 20
)

// onDemandFilter creates the filters that only some requests need, if ext_proc asks for them by a
// header. For other requests it costs the comparison of two headers. A route could not do this, see
// httpFilterChain.
func onDemandFilter() *composite.Composite {
	observe := extension(extProcName, observer())
	return &composite.Composite{Matcher: byHeader(headers.Observe,
		values{"1": nestedMatcher(byHeader(headers.Usage, usageReaders(observe), createFilters(observe)))},
		nestedMatcher(byHeader(headers.Usage, usageReaders(), nil)))}
}

// usageReaders returns the filters for each value of headers.Usage, after the given ones.
func usageReaders(before ...*core.TypedExtensionConfig) values {
	read := extension("envoy.filters.http.lua", streamReader())
	all := values{}
	for value, protocol := range map[string]ai.LLMProtocol{
		headers.UsageOfOpenAI: ai.LLMProtocol_OPENAI_CHAT_COMPLETIONS, headers.UsageOfMessages: ai.LLMProtocol_ANTHROPIC_MESSAGES,
	} {
		filters := append(slices.Clone(before), extension("envoy.filters.http.ai_protocol_manager", usageReader(protocol)))
		all[value] = createFilters(filters...)
		all[value+headers.UsageAndStream] = createFilters(append(slices.Clone(filters), read)...)
	}
	return all
}

// nestedMatcher continues with another matcher.
func nestedMatcher(m *match.Matcher) *match.Matcher_OnMatch {
	return &match.Matcher_OnMatch{OnMatch: &match.Matcher_OnMatch_Matcher{Matcher: m}}
}

// createFilters creates filters for the request.
func createFilters(filters ...*core.TypedExtensionConfig) *match.Matcher_OnMatch {
	action := &composite.ExecuteFilterAction{FilterChain: &composite.FilterChainConfiguration{TypedConfig: filters}}
	return act("composite-action", action)
}

// observer is a second ext_proc. It reports the first bytes of a response's body and does not delay
// the response, because Envoy does not wait for an answer. Sluice ends the exchange after the first
// message, or when it has the id of a response, so that Envoy sends no later chunk. A failure of
// the exchange has no effect on the request.
//
// If Sluice hangs without dying when a first token arrives, the response continues until Envoy's
// buffer for the exchange is full, which is after 64 KiB or more. It then stalls until Sluice
// continues or dies.
func observer() *extproc.ExternalProcessor {
	service := controlService(0)
	service.InitialMetadata = []*core.HeaderValue{{Key: headers.Role, Value: headers.RoleObserver}}
	return &extproc.ExternalProcessor{
		GrpcService:       service,
		StatPrefix:        "observer",
		FailureModeAllow:  true,
		ObservabilityMode: true,
		ProcessingMode: &extproc.ProcessingMode{
			RequestHeaderMode:   extproc.ProcessingMode_SKIP,
			RequestBodyMode:     extproc.ProcessingMode_NONE,
			RequestTrailerMode:  extproc.ProcessingMode_SKIP,
			ResponseHeaderMode:  extproc.ProcessingMode_SKIP,
			ResponseBodyMode:    extproc.ProcessingMode_STREAMED,
			ResponseTrailerMode: extproc.ProcessingMode_SKIP,
		},
		// The filter changes nothing, so the length remains true. By default Envoy removes the
		// header.
		AllowContentLengthHeader: true,
		// The message with the body is the only one, so it must name its request.
		ResponseAttributes:   []string{headers.AttributeRequestID},
		DeferredCloseTimeout: durationpb.New(observerCloseTimeout),
	}
}

// usageReader reads the token usage that a response reports. It reads the response while it passes,
// and neither changes nor delays it. At the end of a complete response it stores the usage as typed
// metadata. The access log carries typed metadata only together with untyped metadata, which
// ext_proc always sets. OpenAI's protocol for chats fits all endpoints but those of the Messages
// API, since its reader knows both prompt_tokens and input_tokens. Compressed responses, errors,
// and JSON of more than 2^18 values are not read.
//
// Envoy calls this filter work in progress. Sluice works without it; the usage is then unknown.
func usageReader(protocol ai.LLMProtocol) *aimanager.AiProtocolManager {
	return &aimanager.AiProtocolManager{ResponseHandling: &aimanager.ResponseHandling{
		TokenUsage: &aimanager.TokenUsageExtraction{
			IncludeUnconfiguredRoutes: true,
			DefaultLlmProtocol:        protocol,
			MetadataNamespace:         headers.MetadataUsage,
			Limits: &aimanager.TokenUsageExtractionLimits{
				MaxSseEventSize:    wrapperspb.UInt32(maxUsageEvent),
				MaxJsonBodySize:    wrapperspb.UInt32(maxUsageBody),
				MaxParsedSseEvents: wrapperspb.UInt32(maxUsageEvents),
			},
		},
	}}
}
