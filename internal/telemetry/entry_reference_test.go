package telemetry

import (
	"cmp"
	"math"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	aiv3 "github.com/envoyproxy/go-control-plane/envoy/data/ai/v3"
	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// FuzzEntry compares the reader of records with the protobuf library. A record in the form in which
// the library writes it must be understood alike. Other bytes must not make the reader fail.
func FuzzEntry(f *testing.F) {
	usage, err := anypb.New(&aiv3.TokenUsage{InputTokens: tokens(7), OutputTokens: tokens(11), ExtractionStatus: aiv3.TokenUsage_COMPLETE,
		InputTokenDetails: &aiv3.InputTokenDetails{CachedTokens: tokens(0)}})
	if err != nil {
		f.Fatal(err)
	}
	whole := served()
	whole.CommonProperties.Metadata.TypedFilterMetadata = map[string]*anypb.Any{headers.MetadataUsage: usage}
	whole.CommonProperties.Metadata.FilterMetadata[headers.MetadataStream] = &structpb.Struct{Fields: map[string]*structpb.Value{
		headers.MetadataRead: structpb.NewStringValue("5 900 1000000 2000000 1 stop 3:4")}}
	whole.CommonProperties.ResponseFlags = &datav3.ResponseFlags{UpstreamRemoteReset: true, UnauthorizedDetails: &datav3.ResponseFlags_Unauthorized{}}
	attempt := served()
	attempt.CommonProperties.AccessLogType = datav3.AccessLogType_UpstreamEnd
	attempt.Response.ResponseHeaders = map[string]string{"retry-after": "7", "content-length": "3"}
	attempt.Request.OriginalPath, attempt.CommonProperties.RouteName = "/v1/streams/mine?x", routes.Streams
	attempt.CommonProperties.CustomTags["sluice_replica"] = "-"
	attempt.CommonProperties.Duration.Seconds = math.MaxInt64
	for _, in := range []*datav3.HTTPAccessLogEntry{whole, attempt, {Response: &datav3.HTTPResponseProperties{ResponseCode: wrapperspb.UInt32(0)}}} {
		f.Add(marshal(f, in))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = newEntry(headers.LogRequests, b, nil)
		in := new(datav3.HTTPAccessLogEntry)
		if proto.Unmarshal(b, in) != nil {
			return
		}
		canonicalUsage(t, in)
		canonical := marshal(t, in)
		for _, log := range []string{headers.LogRequests, headers.LogAttempts} {
			got, err := newEntry(log, canonical, &request.Words{})
			if diff := gocmp.Diff(reference(log, in), got); err != nil || diff != "" {
				t.Errorf("%s: %v (-library +own)\n%s", log, err, diff)
			}
		}
	})
}

// canonicalUsage brings the usage of a record, which the library keeps as bytes, into the form in
// which the library writes it. A usage that the library cannot read is dropped, because the reader
// does not look for faults in the parts that it skips.
func canonicalUsage(t *testing.T, in *datav3.HTTPAccessLogEntry) {
	all := in.GetCommonProperties().GetMetadata().GetTypedFilterMetadata()
	packed, found := all[headers.MetadataUsage], new(aiv3.TokenUsage)
	switch {
	case packed == nil || !packed.MessageIs(found):
	case proto.Unmarshal(packed.GetValue(), found) != nil:
		delete(all, headers.MetadataUsage)
	default:
		packed.Value = marshal(t, found)
	}
}

// flagsByLibrary is flags, with the numbers of the fields by the protobuf library.
func flagsByLibrary(f *datav3.ResponseFlags) string {
	var all []string
	for _, flag := range responseFlags {
		if field := f.ProtoReflect().Descriptor().Fields().ByNumber(flag.field); f.ProtoReflect().Has(field) {
			all = append(all, flag.short)
		}
	}
	return strings.Join(all, ",")
}

// idByLibrary returns the id that Envoy gave to the request, or to its answer.
func idByLibrary(in *datav3.HTTPAccessLogEntry) string {
	id := in.GetRequest().GetRequestId()
	switch {
	case id == "":
		return in.GetResponse().GetResponseHeaders()[headers.RequestID]
	case in.GetCommonProperties().GetRouteName() == "":
		return ""
	}
	return id
}

// reference is newEntry by the protobuf library.
func reference(log string, in *datav3.HTTPAccessLogEntry) request.Entry {
	common, asked, response := in.GetCommonProperties(), in.GetRequest(), in.GetResponse()
	e := request.Entry{
		Log:       log,
		Interim:   interim(common.GetAccessLogType()),
		RequestID: idByLibrary(in),
		Method:    method(asked.GetRequestMethod()),
		Path:      request.CleanPath(cmp.Or(asked.GetOriginalPath(), asked.GetPath())), // what the client asked for
		Route:     common.GetRouteName(),
		Status:    int(response.GetResponseCode().GetValue()),
		Details:   response.GetResponseCodeDetails(),
		Flags:     flagsByLibrary(common.GetResponseFlags()),
		Upstream:  addressByLibrary(common.GetUpstreamRemoteAddress()),
		Cluster:   common.GetUpstreamCluster(),
		Replica:   tagByLibrary(common, headers.TagReplica),
		Attempts:  int(common.GetUpstreamRequestAttemptCount()),
		Streamed:  routes.IsStreamed(common.GetRouteName()),
		Metadata:  valuesByLibrary(common.GetMetadata().GetFilterMetadata()[headers.Metadata]),
		BytesIn:   int64(asked.GetRequestBodyBytes()),
		BytesOut:  int64(response.GetResponseBodyBytes()),
		Duration:  common.GetDuration().AsDuration(),
	}
	if model, ok := headers.ClusterModel(e.Cluster); ok {
		e.Model = model
	}
	if told := valuesByLibrary(common.GetMetadata().GetFilterMetadata()[headers.MetadataAuthz]); told[headers.MetadataCode] != "" {
		e.Details = headers.DetailsPrefix + told[headers.MetadataCode]
	} else if e.Metadata == nil {
		e.Metadata = told
	}
	if e.Route == routes.Streams {
		path, _, _ := strings.Cut(cmp.Or(asked.GetOriginalPath(), asked.GetPath()), "?")
		e.ClientID, _, _ = routes.StreamID(path)
	}
	if log == headers.LogRequests && !e.Interim {
		e.Usage = usageByLibrary(common.GetMetadata())
		e.Reading = ReadingOf(common.GetMetadata().GetFilterMetadata()[headers.MetadataStream].GetFields()[headers.MetadataRead].GetStringValue())
	}
	if log == headers.LogAttempts && !e.Interim {
		told := response.GetResponseHeaders()
		e.RetryAfter = openai.ParseRetryAfter(told["retry-after"], time.Now())
		_, hasLength := told["content-length"]
		_, isEncoded := told["transfer-encoding"]
		e.CloseDelimited = isCloseDelimited(e.Status, hasLength || isEncoded)
	}
	if start := common.GetStartTime(); start != nil {
		e.Start = start.AsTime()
	}
	if us, err := strconv.ParseInt(tagByLibrary(common, headers.TagFirstByte), 10, 64); err == nil && us > 0 {
		e.FirstByte = time.Duration(us) * time.Microsecond
	}
	if end := common.GetTimeToLastUpstreamRxByte(); end != nil {
		e.LastByte = end.AsDuration()
	}
	if e.LastByte > 0 { // else nothing came, whatever a time before the request's start says
		e.UpstreamDuration = max(0, e.LastByte-common.GetTimeToFirstUpstreamTxByte().AsDuration())
	}
	return e
}

func tagByLibrary(c *datav3.AccessLogCommon, name string) string {
	if v := c.GetCustomTags()[name]; v != "-" {
		return v
	}
	return ""
}

func valuesByLibrary(s *structpb.Struct) map[string]string {
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

func usageByLibrary(m *corev3.Metadata) request.Usage {
	packed := m.GetTypedFilterMetadata()[headers.MetadataUsage]
	var found aiv3.TokenUsage
	if packed == nil || !packed.MessageIs(&found) || proto.Unmarshal(packed.GetValue(), &found) != nil {
		return request.Usage{}
	}
	if found.GetExtractionStatus() != aiv3.TokenUsage_COMPLETE || found.GetInputTokens() == nil {
		return request.Usage{}
	}
	prompt, completion := found.GetInputTokens().GetValue(), found.GetOutputTokens().GetValue()
	if prompt > request.MaxTokens || completion > request.MaxTokens {
		return request.Usage{}
	}
	u := request.Usage{Prompt: int64(prompt), Completion: int64(completion), Known: true}
	if cached := found.GetInputTokenDetails().GetCachedTokens(); cached != nil && cached.GetValue() <= prompt {
		u.Cached, u.CachedKnown = int64(cached.GetValue()), true
	}
	return u
}

func addressByLibrary(a *corev3.Address) string {
	s := a.GetSocketAddress()
	if s.GetAddress() == "" {
		return ""
	}
	return net.JoinHostPort(s.GetAddress(), strconv.FormatUint(uint64(s.GetPortValue()), 10))
}
