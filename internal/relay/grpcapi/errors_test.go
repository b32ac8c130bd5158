package grpcapi_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
)

func TestRefusedRequests(t *testing.T) {
	c := client(t, func(context.Context, *relay.Call, relay.Sink) { t.Error("was generated") })
	for name, x := range map[string]struct {
		ctx   context.Context
		start *pb.StartRequest
		want  codes.Code
	}{
		"no tenant":        {t.Context(), hello, codes.Unauthenticated},
		"no messages":      {as(t.Context()), &pb.StartRequest{Model: "m"}, codes.InvalidArgument},
		"two ways":         {as(t.Context()), &pb.StartRequest{Messages: []string{"a"}, Request: []byte(`{"model":"m"}`)}, codes.InvalidArgument},
		"twice":            {as(t.Context()), &pb.StartRequest{Model: "m", Request: []byte(`{"model":"m","messages":[]}`)}, codes.InvalidArgument},
		"twice, disguised": {as(t.Context()), &pb.StartRequest{Request: []byte(`{"model":"m","str\u0065am":false}`)}, codes.InvalidArgument},
		"no object":        {as(t.Context()), &pb.StartRequest{Model: "m", Request: []byte(`[]`)}, codes.InvalidArgument},
		"no JSON":          {as(t.Context()), &pb.StartRequest{Model: "m", Request: []byte(`{"a":1`)}, codes.InvalidArgument},
		"more than JSON":   {as(t.Context()), &pb.StartRequest{Model: "m", Request: []byte(`{"a":1}}`)}, codes.InvalidArgument},
		"negative tokens":  {as(t.Context()), &pb.StartRequest{Model: "m", Messages: []string{"a"}, MaxTokens: -2}, codes.InvalidArgument},
		"negative time":    {as(t.Context()), &pb.StartRequest{Model: "m", Messages: []string{"a"}, TimeoutMs: -1}, codes.InvalidArgument},
		"unknown priority": {as(t.Context(), "x-sluice-priority", "urgent"), hello, codes.InvalidArgument},
		"request id too long": {as(t.Context()), &pb.StartRequest{Model: "m", Messages: []string{"a"}, RequestId: strings.Repeat("r", 300)},
			codes.InvalidArgument},
	} {
		list, _, err := listen(x.ctx, c, x.start)
		e, told := pb.ErrorOf(err)
		if status.Code(err) != x.want || len(list) > 0 || !told || e.GetName() == "" || e.GetRetryable() {
			t.Errorf("%s: %v, then %v, details %v", name, list, err, e)
		}
	}
}

func TestFaults(t *testing.T) {
	statuses := map[openai.Code]codes.Code{
		openai.CodeInvalidRequest: codes.InvalidArgument, openai.CodeModelNotCapable: codes.InvalidArgument,
		openai.CodeInvalidAPIKey:  codes.Unauthenticated,
		openai.CodeExpiredAPIKey:  codes.Unauthenticated,
		openai.CodeContentFilter:  codes.PermissionDenied,
		openai.CodeModelNotFound:  codes.NotFound,
		openai.CodeRequestTimeout: codes.DeadlineExceeded, openai.CodeClientTooSlow: codes.DeadlineExceeded,
		openai.CodeRequestIDConflict: codes.AlreadyExists, openai.CodeRequestTooLarge: codes.ResourceExhausted,
		openai.CodeInsufficientQuota: codes.ResourceExhausted,
		openai.CodeRateLimited:       codes.ResourceExhausted, openai.CodeQueueFull: codes.ResourceExhausted,
		openai.CodeUpstreamError: codes.Unavailable, openai.CodeUpstreamTruncated: codes.Unavailable,
		openai.CodeQueueTimeout: codes.Unavailable, openai.CodeNoReplica: codes.Unavailable,
		openai.CodeColdStartTimeout: codes.Unavailable, openai.CodeReplicaFailed: codes.Unavailable, openai.CodeGatewayUnavailable: codes.Unavailable,
		openai.CodeUpstreamTimeout: codes.DeadlineExceeded, openai.CodeCancelled: codes.Canceled,
		openai.CodeStreamNotFound: codes.NotFound, openai.CodeResponseNotFound: codes.NotFound, openai.CodeHeadersTooLarge: codes.InvalidArgument,
	}
	for _, row := range openai.Codes() {
		if _, ok := statuses[row.Code]; !ok {
			t.Errorf("the code %s has no gRPC status here", row.Code)
		}
		if got := pb.CodeOf(int32(row.Status)); got == codes.Internal {
			t.Errorf("the code %s has status %d, which llm.v1 does not map", row.Code, row.Status)
		}
	}
	for code, want := range statuses {
		fault := &openai.Error{Code: code, Message: "why", RetryAfter: 3 * time.Second, Header: map[string]string{"x-ratelimit-limit-requests": "5"}}
		for _, events := range [][][]byte{nil, {chunk(`{"index":0,"delta":{"content":"a"}}`)}} {
			c := client(t, tell(relay.Result{Fault: fault}, events...))
			list, trailer, err := listen(as(t.Context()), c, hello)
			want2 := &pb.Error{Code: int32(code.Status()), Message: "why", Type: fault.Type(), Name: string(code), Retryable: fault.Retryable(),
				RetryAfterMs: fault.RetryAfterMillis()}
			e, _ := pb.ErrorOf(err)
			if diff := cmp.Diff(want2, e, protocmp.Transform()); diff != "" || status.Code(err) != want {
				t.Errorf("%s: %v: %s", code, err, diff)
			}
			// The status alone before anything was sent, a chunk as well later.
			if len(events) == 0 && len(list) != 0 || len(events) == 1 && (len(list) != 2 || !proto.Equal(list[1].GetError(), want2)) {
				t.Errorf("%s after %d events: %v", code, len(events), list)
			}
			if len(trailer.Get("x-ratelimit-limit-requests")) != 1 {
				t.Errorf("%s: trailers %v", code, trailer)
			}
		}
	}
}

func TestEngineAnswers(t *testing.T) {
	answer := func(code int, body string) generator {
		return func(_ context.Context, _ *relay.Call, to relay.Sink) {
			a := &relay.Answer{Status: code, Header: http.Header{"Retry-After": {"2"}}, Body: []byte(body)}
			if err := to.Answer(a); err == nil {
				_ = to.Finish(relay.Result{Replica: "m-0", Finish: "stop", Usage: relay.Usage{Completion: 3, Known: true}})
			}
		}
	}
	const invalid = "invalid_request_error"
	for body, want := range map[string]*pb.Error{
		`{"error":{"message":"too long","type":"BadRequestError","param":"messages","code":400}}`: {
			Message: "too long", Type: "BadRequestError", Param: "messages"},
		`{"error":{"message":"m","code":"context_length_exceeded"}}`: {Message: "m", Type: invalid, Name: "context_length_exceeded"},
		`{"error":"Unauthorized"}`:                                   {Message: "Unauthorized", Type: invalid},
		`{"object":"error","message":"old","type":"t"}`:              {Message: "old", Type: "t"},
		`{"detail":"Not Found"}`:                                     {Message: "Not Found", Type: invalid},
		`{"detail":[{"msg":"x"}]}`:                                   {Message: `[{"msg":"x"}]`, Type: invalid},
		`<html>`:                                                     {Message: "The engine answered with status 422: <html>", Type: invalid},
	} {
		if want.Name == "" {
			want.Name = "invalid_request" // an error without a code gets one
		}
		list, trailer, err := listen(as(t.Context()), client(t, answer(422, body)), hello)
		e, _ := pb.ErrorOf(err)
		want.Code = 422
		if diff := cmp.Diff(want, e, protocmp.Transform()); diff != "" || status.Code(err) != codes.InvalidArgument || len(list) > 0 {
			t.Errorf("%s: %v\n%s", body, err, diff)
		}
		if trailer.Get("x-sluice-source")[0] != "engine" || len(trailer.Get("x-sluice-replica")) != 1 {
			t.Errorf("trailers %v", trailer)
		}
	}
	long := strings.Repeat("ü", 100_000)
	_, _, err := listen(as(t.Context()), client(t, answer(400, `{"error":{"message":"`+long+`","type":"`+long+`","code":"`+long+`","param":"`+long+`"}}`)), hello)
	if e, _ := pb.ErrorOf(err); e.GetCode() != 400 || proto.Size(e) > 20<<10 || !strings.HasPrefix(long, e.GetMessage()) {
		t.Errorf("an error of %d bytes: %.200v", proto.Size(e), err)
	}
	_, _, err = listen(as(t.Context()), client(t, answer(503, "")), hello)
	if e, _ := pb.ErrorOf(err); !e.GetRetryable() || e.GetRetryAfterMs() != 2000 || status.Code(err) != codes.Unavailable {
		t.Errorf("%v, details %v", err, e)
	}
	list, _, err := listen(as(t.Context()), client(t, answer(200, `{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"hi","refusal":null,
		"reasoning_content":"hm","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}}]}`)), hello)
	if err != nil || len(list) != 4 || list[0].GetDelta().GetText() != "hm" || list[1].GetDelta().GetText() != "hi" ||
		list[2].GetDelta().GetToolCall().GetArguments() != "{}" || list[3].GetFinal().GetOutputTokens() != 3 {
		t.Errorf("%v, then %v", list, err)
	}
	list, _, err = listen(as(t.Context()), client(t, answer(200, `{"choices":[{"finish_reason":"stop","message":{"content":[{"type":"text","text":"hi"}],
		"reasoning":"hm","tool_calls":[{"id":"c","function":{"name":"f","arguments":{"a":1}}}]}}]}`)), hello)
	if err != nil || len(list) != 4 || list[0].GetDelta().GetText() != "hm" || list[1].GetDelta().GetText() != "hi" ||
		list[2].GetDelta().GetToolCall().GetArguments() != `{"a":1}` {
		t.Errorf("an answer as other engines write it: %v, then %v", list, err)
	}
	if _, _, err = listen(as(t.Context()), client(t, answer(200, "?")), hello); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}

// TestErrorOfAnEvent: an engine may report an error in its stream. The client gets its words, and
// learns whether to try again.
func TestErrorOfAnEvent(t *testing.T) {
	end := relay.Result{Fault: openai.Errorf(openai.CodeUpstreamError, "It could not finish."), Told: true}
	for event, want := range map[string]*pb.Error{
		`{"error":{"message":"too long","type":"BadRequestError","param":"messages","code":400}}`: {
			Code: 400, Message: "too long", Type: "BadRequestError", Param: "messages", Name: "invalid_request"},
		`{"error":{"message":"out of memory","type":"InternalServerError","code":500}}`: {
			Code: 502, Message: "out of memory", Type: "InternalServerError", Name: "upstream_error", Retryable: true, RetryAfterMs: 1000},
		`{"error":{"message":"late","code":"request_timeout"}}`: {
			Code: 408, Message: "late", Type: "invalid_request_error", Name: "request_timeout", Retryable: true, RetryAfterMs: 1000},
		`{"error":{}}`: {
			Code: 502, Message: "The engine could not finish its answer.", Type: "server_error", Name: "upstream_error", Retryable: true, RetryAfterMs: 1000},
	} {
		_, _, err := listen(as(t.Context()), client(t, tell(end, []byte("data: "+event+"\n\n"))), hello)
		e, _ := pb.ErrorOf(err)
		if diff := cmp.Diff(want, e, protocmp.Transform()); diff != "" {
			t.Errorf("%s: %v\n%s", event, err, diff)
		}
	}
}
