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
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// Entry is one record of Envoy's access log in plain types. What Envoy did not send is zero. It is a value, to be kept as long
// as one likes.
type Entry struct {
	// Log is LogRequests or LogAttempts.
	Log string
	// Interim marks a record of what is not over yet. In LogRequests it is a periodic one, with the figures so far and
	// no Duration. In LogAttempts it says that a replica has taken over a request from one that failed: see Moved.
	Interim bool

	// RequestID is Envoy's x-request-id; empty for requests that were too broken to have one.
	RequestID string
	// Method and Path as the client sent them; the path without its query, and at most 200 bytes of it.
	Method, Path string
	// Protocol is HTTP/1.0, HTTP/1.1, HTTP/2 or HTTP/3, the client's side.
	Protocol string
	// Route is the name of Envoy's route; empty when none was looked up.
	Route string

	// Status is the HTTP status sent to the client; 0 when the client left before there was one. In LogAttempts it is 0 when
	// the attempt failed before its response headers.
	Status int
	// Details are Envoy's response code details, such as via_upstream; a machine's words, not a client's.
	Details string
	// Flags are Envoy's response flags in short form, separated by commas: "UF,URX"; empty when nothing was out of the
	// ordinary. Ask with HasFlag.
	Flags string

	// Upstream is the ip:port that served, after retries; empty when none was reached.
	Upstream string
	// Cluster is the Envoy cluster of Upstream.
	Cluster string
	// Model is the model whose cluster it was; empty for clusters that belong to no model.
	Model string
	// Replica is the id of the replica that served, or that was tried last.
	Replica string
	// Attempts is how often the request was tried upstream; 0 when it never was, and always in LogAttempts.
	Attempts int
	// Streamed is true when the client had asked for a streamed response.
	Streamed bool
	// Notes are what ext_proc attached to the request as dynamic metadata in the namespace "sluice"; nil when nothing.
	Notes map[string]string

	// Usage is what the response has cost; known at the end only.
	Usage Usage

	// BytesIn and BytesOut are the bytes of the request's and the response's body. In LogAttempts they mean nothing.
	BytesIn, BytesOut int64
	// Start is when Envoy received the first byte of the request, or when the attempt began.
	Start time.Time
	// Duration is from Start to the end.
	Duration time.Duration
	// FirstByte is from Start to the first byte of the upstream's response body; 0 when there was none. An engine may send
	// headers long before it has a token, so header times would not do.
	FirstByte time.Duration
	// LastByte is from Start to the last byte received from the upstream; 0 when the response did not end.
	LastByte time.Duration
	// UpstreamDuration is from the first byte sent to the upstream that served to the last byte received from it; 0 when
	// the response did not end.
	UpstreamDuration time.Duration
}

// Usage is what a response has cost, as the engine counted it.
type Usage struct {
	// Prompt and Completion count tokens. A response without a completion, an embedding say, has 0 of those.
	Prompt, Completion int64
	// Known is false, and all counts are 0, when the response did not say, was not read for it, or did not end as it should.
	Known bool
	// Cached counts those of Prompt that the engine had in its cache; 0 unless CachedKnown, because not every engine says.
	Cached      int64
	CachedKnown bool
}

// Moved says that a replica has taken over the request from one that failed: Replica and Upstream are the new ones.
func (e *Entry) Moved() bool { return e.Log == headers.LogAttempts && e.Interim }

// FailedAttempt says why an attempt failed before the response began, so that Envoy could try another replica: ReasonConnect
// and so on. It is empty for every other record.
func (e *Entry) FailedAttempt() string {
	switch {
	case e.Log != headers.LogAttempts || e.Interim:
		return ""
	case e.Status >= 500:
		return Reason5xx
	case e.Status != 0:
		return ""
	case e.HasFlag("UF"):
		return ReasonConnect
	case anyFlag(e.Flags, "UC", "UR", "UPE"):
		return ReasonReset
	case e.HasFlag("UT"):
		return ReasonTTFTTimeout
	}
	return ""
}

// HasFlag says whether the response flag, in short form, is among the entry's Flags.
func (e *Entry) HasFlag(short string) bool { return hasFlag(e.Flags, short) }

func hasFlag(flags, short string) bool {
	for f := range strings.SplitSeq(flags, ",") {
		if f == short {
			return true
		}
	}
	return false
}

func newEntry(log string, in *datav3.HTTPAccessLogEntry) Entry {
	common, request, response := in.GetCommonProperties(), in.GetRequest(), in.GetResponse()
	e := Entry{
		Log:       log,
		Interim:   interim(common.GetAccessLogType()),
		RequestID: request.GetRequestId(),
		Method:    method(request.GetRequestMethod()),
		Path:      cleanPath(cmp.Or(request.GetOriginalPath(), request.GetPath())), // what the client asked for
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
		Notes:     notes(common.GetMetadata().GetFilterMetadata()[headers.Metadata]),
		BytesIn:   int64(request.GetRequestBodyBytes()),
		BytesOut:  int64(response.GetResponseBodyBytes()),
		Duration:  common.GetDuration().AsDuration(),
	}
	if model, ok := headers.ClusterModel(e.Cluster); ok {
		e.Model = model
	}
	if log == headers.LogRequests && !e.Interim {
		e.Usage = usage(common.GetMetadata())
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

// tag reads a custom tag. Envoy writes a dash for what it does not know.
func tag(c *datav3.AccessLogCommon, name string) string {
	if v := c.GetCustomTags()[name]; v != "-" {
		return v
	}
	return ""
}

// notes are the plain values of a metadata struct.
func notes(s *structpb.Struct) map[string]string {
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

// usage reads what Envoy has found in the response. Counts of which it says that something was lost are not taken: they may be those of the
// middle of a stream.
func usage(m *corev3.Metadata) Usage {
	var found aiv3.TokenUsage
	packed := m.GetTypedFilterMetadata()[headers.MetadataUsage]
	if packed == nil || packed.UnmarshalTo(&found) != nil {
		return Usage{}
	}
	if found.GetExtractionStatus() != aiv3.TokenUsage_COMPLETE || found.GetInputTokens() == nil {
		return Usage{}
	}
	prompt, completion := found.GetInputTokens().GetValue(), found.GetOutputTokens().GetValue()
	if prompt > maxTokens || completion > maxTokens {
		return Usage{}
	}
	u := Usage{Prompt: int64(prompt), Completion: int64(completion), Known: true}
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

const (
	maxPath = 200
	// maxTokens is more than any response can have; an engine that says more counts wrongly.
	maxTokens = 1 << 40
)

// cleanPath takes off what may be secret (a key in a query) and what may be huge.
func cleanPath(path string) string {
	if i := strings.IndexAny(path, "?#"); i >= 0 {
		path = path[:i]
	}
	if len(path) > maxPath {
		path = path[:maxPath]
	}
	return strings.ToValidUTF8(path, "?")
}

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
