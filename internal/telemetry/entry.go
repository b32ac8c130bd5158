package telemetry

import (
	"cmp"
	"net"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	aiv3 "github.com/envoyproxy/go-control-plane/envoy/data/ai/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// newEntry converts a record of the named log to plain types.
func newEntry(log string, in *datav3.HTTPAccessLogEntry) request.Entry {
	common, asked, response := in.GetCommonProperties(), in.GetRequest(), in.GetResponse()
	e := request.Entry{
		Log:       log,
		Interim:   interim(common.GetAccessLogType()),
		RequestID: asked.GetRequestId(),
		Method:    method(asked.GetRequestMethod()),
		Path:      request.CleanPath(cmp.Or(asked.GetOriginalPath(), asked.GetPath())), // what the client asked for
		Protocol:  protocol(in.GetProtocolVersion()),
		Route:     common.GetRouteName(),
		Status:    int(response.GetResponseCode().GetValue()),
		Details:   response.GetResponseCodeDetails(),
		Flags:     flags(common.GetResponseFlags()),
		Upstream:  address(common.GetUpstreamRemoteAddress()),
		Cluster:   common.GetUpstreamCluster(),
		Replica:   tag(common, headers.TagReplica),
		Attempts:  int(common.GetUpstreamRequestAttemptCount()),
		Streamed:  routes.IsStreamed(common.GetRouteName()),
		Metadata:  plainValues(common.GetMetadata().GetFilterMetadata()[headers.Metadata]),
		BytesIn:   int64(asked.GetRequestBodyBytes()),
		BytesOut:  int64(response.GetResponseBodyBytes()),
		Duration:  common.GetDuration().AsDuration(),
	}
	if model, ok := headers.ClusterModel(e.Cluster); ok {
		e.Model = model
	}
	if e.Route == routes.Streams {
		path, _, _ := strings.Cut(cmp.Or(asked.GetOriginalPath(), asked.GetPath()), "?")
		e.ClientID, _, _ = routes.StreamID(path)
	}
	if log == headers.LogRequests && !e.Interim {
		e.Usage = usage(common.GetMetadata())
		e.Reading = reading(common.GetMetadata().GetFilterMetadata())
	}
	if log == headers.LogAttempts && !e.Interim {
		told := response.GetResponseHeaders()
		e.RetryAfter = openai.ParseRetryAfter(told["retry-after"], time.Now())
		e.CloseDelimited = isCloseDelimited(e.Status, told)
	}
	if start := common.GetStartTime(); start != nil {
		e.Start = start.AsTime()
	}
	if us, err := strconv.ParseInt(tag(common, headers.TagFirstByte), 10, 64); err == nil && us > 0 {
		e.FirstByte = time.Duration(us) * time.Microsecond
	}
	if end := common.GetTimeToLastUpstreamRxByte(); end != nil {
		e.LastByte = end.AsDuration()
		e.UpstreamDuration = max(0, e.LastByte-common.GetTimeToFirstUpstreamTxByte().AsDuration())
	}
	return e
}

// isCloseDelimited reports whether only the end of the connection ends a response with this status
// and these headers (RFC 9112, section 6.3). Responses to HEAD do not come here.
func isCloseDelimited(status int, told map[string]string) bool {
	_, hasLength := told["content-length"]
	_, isEncoded := told["transfer-encoding"]
	return status >= 200 && status != 204 && status != 304 && !hasLength && !isEncoded
}

// tag reads a custom tag. Envoy writes a dash for what it does not know.
func tag(c *datav3.AccessLogCommon, name string) string {
	if v := c.GetCustomTags()[name]; v != "-" {
		return v
	}
	return ""
}

// plainValues returns the strings, numbers and booleans of a metadata struct, as text.
func plainValues(s *structpb.Struct) map[string]string {
	if len(s.GetFields()) == 0 {
		return nil
	}
	m := make(map[string]string, len(s.GetFields()))
	for name, value := range s.GetFields() {
		switch v := value.GetKind().(type) {
		case *structpb.Value_StringValue:
			m[name] = v.StringValue
		case *structpb.Value_NumberValue:
			m[name] = strconv.FormatFloat(v.NumberValue, 'f', -1, 64)
		case *structpb.Value_BoolValue:
			m[name] = strconv.FormatBool(v.BoolValue)
		}
	}
	return m
}

// usage returns the token usage that Envoy has extracted from the response. It ignores an
// incomplete extraction, whose counts may be from the middle of a stream.
func usage(m *corev3.Metadata) request.Usage {
	packed := m.GetTypedFilterMetadata()[headers.MetadataUsage]
	if packed == nil || !packed.MessageIs((*aiv3.TokenUsage)(nil)) {
		return request.Usage{}
	}
	return UsageOf(packed.GetValue())
}

// UsageOf returns the token usage in a serialized envoy.data.ai.v3.TokenUsage. It is the zero value
// if there is none.
func UsageOf(serialized []byte) request.Usage {
	var found aiv3.TokenUsage
	if proto.Unmarshal(serialized, &found) != nil {
		return request.Usage{}
	}
	if found.GetExtractionStatus() != aiv3.TokenUsage_COMPLETE || found.GetInputTokens() == nil {
		return request.Usage{}
	}
	prompt, completion := found.GetInputTokens().GetValue(), found.GetOutputTokens().GetValue()
	if prompt > maxTokens || completion > maxTokens {
		return request.Usage{}
	}
	u := request.Usage{Prompt: int64(prompt), Completion: int64(completion), Known: true}
	if cached := found.GetInputTokenDetails().GetCachedTokens(); cached != nil && cached.GetValue() <= prompt {
		u.Cached, u.CachedKnown = int64(cached.GetValue()), true
	}
	return u
}

func interim(t datav3.AccessLogType) bool {
	switch t {
	case datav3.AccessLogType_DownstreamStart, datav3.AccessLogType_DownstreamPeriodic,
		datav3.AccessLogType_UpstreamPoolReady, datav3.AccessLogType_UpstreamPeriodic:
		return true
	}
	return false
}

func method(m corev3.RequestMethod) string {
	if m == corev3.RequestMethod_METHOD_UNSPECIFIED {
		return ""
	}
	return corev3.RequestMethod_name[int32(m)]
}

// maxTokens is more than any response can have; a greater count of an engine is ignored.
const maxTokens = 1 << 40

func protocol(v datav3.HTTPAccessLogEntry_HTTPVersion) string {
	switch v {
	case datav3.HTTPAccessLogEntry_HTTP10:
		return "HTTP/1.0"
	case datav3.HTTPAccessLogEntry_HTTP11:
		return "HTTP/1.1"
	case datav3.HTTPAccessLogEntry_HTTP2:
		return "HTTP/2"
	case datav3.HTTPAccessLogEntry_HTTP3:
		return "HTTP/3"
	}
	return ""
}

// address renders an address like netip.AddrPort does; empty for anything but ip and port.
func address(a *corev3.Address) string {
	s := a.GetSocketAddress()
	if s.GetAddress() == "" {
		return ""
	}
	return net.JoinHostPort(s.GetAddress(), strconv.FormatUint(uint64(s.GetPortValue()), 10))
}
