package extproc

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// describe tells what a message says, as far as this package reads it.
func describe(b []byte) (string, error) {
	m, err := parse(b)
	if err != nil {
		return "", err
	}
	var all strings.Builder
	fmt.Fprintf(&all, "%v %t body=%q id=%q", m.kind, m.ended, m.body, m.requestID())
	err = eachHeader(m.headers, func(name string, value []byte) { fmt.Fprintf(&all, " %q=%q", name, value) })
	return all.String(), err
}

// describeByLibrary tells the same of a message that the protobuf library has parsed.
func describeByLibrary(m *pb.ProcessingRequest) string {
	var k kind
	var h *pb.HttpHeaders
	var body *pb.HttpBody
	switch r := m.Request.(type) {
	case *pb.ProcessingRequest_RequestHeaders:
		k, h = requestHeaders, r.RequestHeaders
	case *pb.ProcessingRequest_ResponseHeaders:
		k, h = responseHeaders, r.ResponseHeaders
	case *pb.ProcessingRequest_RequestBody:
		k, body = requestBody, r.RequestBody
	case *pb.ProcessingRequest_ResponseBody:
		k, body = responseBody, r.ResponseBody
	case *pb.ProcessingRequest_RequestTrailers:
		k = requestTrailers
	case *pb.ProcessingRequest_ResponseTrailers:
		k = responseTrailers
	}
	id := ""
	for _, attributes := range m.GetAttributes() {
		id = attributes.GetFields()[headers.AttributeRequestID].GetStringValue()
	}
	var all strings.Builder
	fmt.Fprintf(&all, "%v %t body=%q id=%q", k, h.GetEndOfStream() || body.GetEndOfStream(), body.GetBody(), id)
	for _, one := range h.GetHeaders().GetHeaders() {
		value := one.GetRawValue()
		if len(value) == 0 {
			value = []byte(one.GetValue())
		}
		fmt.Fprintf(&all, " %q=%q", one.GetKey(), value)
	}
	return all.String()
}

// FuzzParse compares the parser with the protobuf library. A message in the form in which the
// library writes it must be understood alike. Other bytes must not make the parser fail.
func FuzzParse(f *testing.F) {
	for _, m := range append(exchangeMessages(), seen("e-1", "data: 1\n\n"), &pb.ProcessingRequest{
		Request: &pb.ProcessingRequest_ResponseHeaders{ResponseHeaders: &pb.HttpHeaders{EndOfStream: true, Headers: &core.HeaderMap{
			Headers: []*core.HeaderValue{{Key: "a", Value: "text"}, {}}}}},
		MetadataContext: &core.Metadata{}, ProtocolConfig: &pb.ProtocolConfiguration{SendBodyWithoutWaitingForHeaderResponse: true},
	}) {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = describe(b)
		m := new(pb.ProcessingRequest)
		if proto.Unmarshal(b, m) != nil || len(m.GetAttributes()) > 1 {
			return
		}
		canonical, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := describe(canonical)
		if want := describeByLibrary(m); err != nil || got != want {
			t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
		}
	})
}

// The answers are what the protobuf library would write for the same messages.
func TestB12_AnswersAreTheProtocols(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 70_000)
	set := []decide.Header{{Name: "a", Value: ""}, {Name: "b", Value: long}, {Name: strings.Repeat("n", 127), Value: "\xff"}}
	var options []*core.HeaderValueOption
	for _, h := range set {
		options = append(options, &core.HeaderValueOption{Header: &core.HeaderValue{Key: h.Name, RawValue: []byte(h.Value)},
			AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD})
	}
	mutation := &pb.HeaderMutation{SetHeaders: options}
	metadata := func(values map[string]any) *structpb.Struct {
		s, err := structpb.NewStruct(map[string]any{headers.Metadata: values})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	body := func(content []byte) *pb.ProcessingResponse {
		common := &pb.CommonResponse{ClearRouteCache: true, HeaderMutation: mutation}
		if content != nil {
			common.BodyMutation = &pb.BodyMutation{Mutation: &pb.BodyMutation_Body{Body: content}}
		}
		return &pb.ProcessingResponse{DynamicMetadata: metadata(map[string]any{"tenant": "acme", "x-sluice-budget": long}),
			Response: &pb.ProcessingResponse_RequestBody{RequestBody: &pb.BodyResponse{Response: common}}}
	}
	answer := decide.Answer{Kind: decide.Go, Set: set, Metadata: decide.Metadata{Tenant: "acme", Budget: long}}
	changed, emptied := answer, answer
	changed.Body, emptied.Body = []byte(long), []byte{}
	for name, c := range map[string]struct {
		got  []byte
		want *pb.ProcessingResponse
	}{
		"continue": {appendContinue(nil, nil), &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestHeaders{RequestHeaders: &pb.HeadersResponse{}}}},
		"remove": {appendContinue(nil, []string{"a", long}), &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestHeaders{
			RequestHeaders: &pb.HeadersResponse{Response: &pb.CommonResponse{HeaderMutation: &pb.HeaderMutation{RemoveHeaders: []string{"a", long}}}}}}},
		"go":             {appendGo(nil, &answer), body(nil)},
		"go with a body": {appendGo(nil, &changed), body([]byte(long))},
		"go without one": {appendGo(nil, &emptied), body([]byte{})},
		"sent trailers":  {[]byte(requestTrailersAnswer), &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestTrailers{RequestTrailers: &pb.TrailersResponse{}}}},
		"trailers":       {[]byte(responseTrailersAnswer), &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseTrailers{ResponseTrailers: &pb.TrailersResponse{}}}},
		"wait":           {appendWait(nil, 90*time.Second+5), &pb.ProcessingResponse{OverrideMessageTimeout: durationpb.New(90*time.Second + 5)}},
		"reply": {appendReply([]byte{}, &decide.Answer{Kind: decide.Reply, Status: 429, Set: set, Body: []byte(long), Details: "sluice_x"}),
			&pb.ProcessingResponse{Response: &pb.ProcessingResponse_ImmediateResponse{ImmediateResponse: &pb.ImmediateResponse{
				Status: &typev3.HttpStatus{Code: 429}, Headers: mutation, Body: []byte(long), Details: "sluice_x"}}}},
	} {
		got := new(pb.ProcessingResponse)
		if err := proto.Unmarshal(c.got, got); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	if !bytes.HasPrefix(appendContinue([]byte("before"), nil), []byte("before")) {
		t.Error("what was there before is changed")
	}
}

// Envoy fills one kind of a message once. Anything else ends the exchange.
func TestB12_MalformedMessages(t *testing.T) {
	t.Parallel()
	headersOnly, err := proto.Marshal(exchangeMessages()[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"cut off":        headersOnly[:len(headersOnly)-1],
		"twice":          append(bytes.Clone(headersOnly), headersOnly...),
		"no field":       {0},
		"headers at all": appendBytes(nil, 2, []byte{0xff}),
	} {
		if _, err := parse(b); err == nil {
			t.Errorf("%s: no fault", name)
		}
	}
}
