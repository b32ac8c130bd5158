package xds

import (
	"time"

	xdscore "github.com/cncf/xds/go/xds/core/v3"
	match "github.com/cncf/xds/go/xds/type/matcher/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	aimanager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ai_protocol_manager/v3"
	composite "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/composite/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	ai "github.com/envoyproxy/go-control-plane/envoy/type/ai/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
)

const (
	// observerClose is how long an observer's exchange outlives its response. Envoy's default of 5 s is how late an abort would be learnt.
	observerClose = 100 * time.Millisecond
	// usageBody and usageEvent are the largest JSON response and the largest event of a stream that are read for their usage. What is
	// larger passes as it is, and its usage is not known. An event of the responses API has the whole response in it.
	usageBody  = 8 << 20
	usageEvent = 1 << 20
	// usageEvents is how many events of one stream are read; each is a token, or a few.
	usageEvents = 1 << 20
)

// onDemand makes the filters that only some requests need, when ext_proc has asked for them by a header. For all others it costs a look
// for each header. A route could not do that, see httpFilters.
func onDemand() *composite.Composite {
	observe := extension(extProcName, observer())
	usage := extension("envoy.filters.http.ai_protocol_manager", usageReader())
	return &composite.Composite{Matcher: asked(headers.Observe,
		further(asked(headers.Usage, making(observe, usage), making(observe))),
		further(asked(headers.Usage, making(usage), nil)),
	)}
}

// asked looks whether a header is "1". nil is nothing to do.
func asked(header string, yes, no *match.Matcher_OnMatch) *match.Matcher {
	return &match.Matcher{
		OnNoMatch: no,
		MatcherType: &match.Matcher_MatcherTree_{MatcherTree: &match.Matcher_MatcherTree{
			Input: &xdscore.TypedExtensionConfig{
				Name: "envoy.matching.inputs.request_headers", TypedConfig: mustPack(&matcher.HttpRequestHeaderMatchInput{HeaderName: header}),
			},
			TreeType: &match.Matcher_MatcherTree_ExactMatchMap{ExactMatchMap: &match.Matcher_MatcherTree_MatchMap{
				Map: map[string]*match.Matcher_OnMatch{"1": yes},
			}},
		}},
	}
}

func further(m *match.Matcher) *match.Matcher_OnMatch {
	return &match.Matcher_OnMatch{OnMatch: &match.Matcher_OnMatch_Matcher{Matcher: m}}
}

func making(filters ...*core.TypedExtensionConfig) *match.Matcher_OnMatch {
	action := &composite.ExecuteFilterAction{FilterChain: &composite.FilterChainConfiguration{TypedConfig: filters}}
	return &match.Matcher_OnMatch{OnMatch: &match.Matcher_OnMatch_Action{
		Action: &xdscore.TypedExtensionConfig{Name: "composite-action", TypedConfig: mustPack(action)},
	}}
}

// observer is a second ext_proc that tells of the first bytes of a response's body and holds nothing up: Envoy sends and goes on.
// Sluice ends the exchange at the first message, so that no later chunk is sent. Nobody waits for it and its failure is nobody's.
//
// If Sluice hangs, without dying, when a first token comes, that response stalls when what Envoy keeps for the exchange is full, which is
// after some 64 KiB at least, and goes on when Sluice does or has died.
func observer() *extproc.ExternalProcessor {
	service := control(0)
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
		// It changes nothing, so the length stays true. By default Envoy takes the header off.
		AllowContentLengthHeader: true,
		// The body's message is the only one, so it has to say whose it is.
		ResponseAttributes:   []string{headers.AttributeRequestID},
		DeferredCloseTimeout: durationpb.New(observerClose),
	}
}

// usageReader reads how many tokens a response says that it has cost. It looks on while the response passes, changes nothing and holds
// nothing back. What it has found at the end of a whole response is typed metadata, which the access log carries with the untyped kind and
// not without: ext_proc's notes are always there. The protocol is that of all of OpenAI's endpoints, since its reader knows both spellings,
// prompt_tokens and input_tokens. Not read are compressed responses, errors, and JSON of more than 2^18 values.
//
// Envoy calls this filter work in progress, so everything works without it: usage is then not known.
func usageReader() *aimanager.AiProtocolManager {
	return &aimanager.AiProtocolManager{ResponseHandling: &aimanager.ResponseHandling{
		TokenUsage: &aimanager.TokenUsageExtraction{
			IncludeUnconfiguredRoutes: true,
			DefaultLlmProtocol:        ai.LLMProtocol_OPENAI_CHAT_COMPLETIONS,
			MetadataNamespace:         headers.MetadataUsage,
			Limits: &aimanager.TokenUsageExtractionLimits{
				MaxSseEventSize:    wrapperspb.UInt32(usageEvent),
				MaxJsonBodySize:    wrapperspb.UInt32(usageBody),
				MaxParsedSseEvents: wrapperspb.UInt32(usageEvents),
			},
		},
	}}
}
