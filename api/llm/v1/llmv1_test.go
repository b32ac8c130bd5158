package llmv1_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
)

// The digests are of the proto and of the code at the time when the one was made from the other.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	sums, err := os.ReadFile("inference.sha256")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for lines := bufio.NewScanner(bytes.NewReader(sums)); lines.Scan(); files++ {
		want, path, _ := strings.Cut(lines.Text(), "  ")
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s has changed since the code was generated: run scripts/proto.sh", path)
		}
	}
	if files != 3 {
		t.Errorf("%d files have digests, want the proto and two of code", files)
	}
}

// What the world may have been built against already: names, numbers and types must never change.
func TestContract(t *testing.T) {
	want := map[string]string{
		"StartRequest": "1 request_id string, 2 messages [string], 3 temperature float, 4 max_tokens int32, 5 timeout_ms int32, " +
			"6 model string, 7 request bytes",
		"StreamChunk": "1 request_id string, 2 delta TokenDelta, 3 final FinalResult, 4 error Error, 5 hb Heartbeat",
		"TokenDelta":  "1 text string, 2 choice int32, 3 kind Kind, 4 tool_call ToolCall",
		"ToolCall":    "1 index int32, 2 id string, 3 name string, 4 arguments string",
		"FinalResult": "1 finish_reason string, 2 output_tokens int32, 3 input_tokens int32, 4 cached_tokens int32, " +
			"5 finish_reasons [string], 6 estimated bool, 7 model string",
		"Error":     "1 code int32, 2 message string, 3 type string, 4 retryable bool, 5 retry_after_ms int64, 6 name string, 7 param string",
		"Heartbeat": "1 ts_unix_ms int64, 2 phase string, 3 position int32, 4 waited_ms int64, 5 note string",
	}
	got := map[string]string{}
	file := llmv1.File_llm_v1_inference_proto
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		got[string(m.Name())] = fields(m)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if llmv1.Inference_Stream_FullMethodName != "/llm.v1.Inference/Stream" {
		t.Error(llmv1.Inference_Stream_FullMethodName)
	}
}

func fields(m protoreflect.MessageDescriptor) string {
	var list []string
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		kind := f.Kind().String()
		switch {
		case f.Message() != nil:
			kind = string(f.Message().Name())
		case f.Enum() != nil:
			kind = string(f.Enum().Name())
		}
		if f.IsList() {
			kind = "[" + kind + "]"
		}
		list = append(list, fmt.Sprintf("%d %s %s", f.Number(), f.Name(), kind))
	}
	return strings.Join(list, ", ")
}

func TestStatus(t *testing.T) {
	for http, want := range map[int32]codes.Code{
		400: codes.InvalidArgument, 422: codes.InvalidArgument, 415: codes.InvalidArgument, 401: codes.Unauthenticated,
		403: codes.PermissionDenied, 404: codes.NotFound, 408: codes.DeadlineExceeded, 504: codes.DeadlineExceeded,
		409: codes.AlreadyExists, 413: codes.ResourceExhausted, 429: codes.ResourceExhausted, 499: codes.Canceled,
		502: codes.Unavailable, 503: codes.Unavailable, 500: codes.Internal, 501: codes.Internal, 0: codes.Internal,
	} {
		e := &llmv1.Error{Code: http, Message: "m", Name: "n", Type: "t", Param: "p"}
		if got := e.Status().Code(); got != want {
			t.Errorf("HTTP %d is %v, want %v", http, got, want)
		}
		back, told := llmv1.ErrorOf(fmt.Errorf("call: %w", e.Status().Err()))
		if diff := cmp.Diff(e, back, protocmp.Transform()); diff != "" || !told {
			t.Errorf("HTTP %d: told %v\n%s", http, told, diff)
		}
	}
}

func TestStatusTellsWhenToRetry(t *testing.T) {
	e := &llmv1.Error{Code: 429, Message: "full", Retryable: true, RetryAfterMs: 1500}
	var delay time.Duration
	for _, detail := range e.Status().Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			delay = info.GetRetryDelay().AsDuration()
		}
	}
	if delay != 1500*time.Millisecond {
		t.Errorf("a retry is advised after %v", delay)
	}
}

func TestErrorOfForeignStatus(t *testing.T) {
	for code, want := range map[codes.Code]int32{
		codes.InvalidArgument: 400, codes.Unauthenticated: 401, codes.PermissionDenied: 403, codes.NotFound: 404, codes.AlreadyExists: 409,
		codes.ResourceExhausted: 429, codes.Canceled: 499, codes.Unavailable: 503, codes.DeadlineExceeded: 504, codes.Unknown: 500,
	} {
		if e, told := llmv1.ErrorOf(status.Error(code, "why")); e.GetCode() != want || e.GetMessage() != "why" || told {
			t.Errorf("%v is %v, told %v; want %d", code, e, told, want)
		}
	}
	retry, err := status.New(codes.Unavailable, "later").WithDetails(&errdetails.RetryInfo{})
	if err != nil {
		t.Fatal(err)
	}
	if e, _ := llmv1.ErrorOf(retry.Err()); !proto.Equal(e, &llmv1.Error{Code: 503, Message: "later", Retryable: true}) {
		t.Error(e)
	}
	for _, err := range []error{nil, errors.New("no status")} {
		if e, told := llmv1.ErrorOf(err); e != nil || told {
			t.Errorf("of %v: %v", err, e)
		}
	}
}
