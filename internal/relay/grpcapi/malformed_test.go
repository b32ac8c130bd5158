package grpcapi_test

import (
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// rawCodec sends bytes as they are and reads nothing.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (rawCodec) Unmarshal([]byte, any) error   { return nil }
func (rawCodec) Name() string                  { return "proto" }

// A chunk that is no chunk is a broken connection. So another replica is tried, and the client
// hears nothing of the library's words, whether the worker's own status has come by then or not.
func TestR9_MalformedChunks(t *testing.T) {
	for name, chunk := range map[string][]byte{"no protobuf": {0xff, 0xff, 0xff}, "too large": make([]byte, sse.DefaultLimit+1)} {
		for range 20 {
			ln := listener(t)
			server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
				return stream.SendMsg(chunk)
			}))
			go server.Serve(ln) //nolint:errcheck // it ends when it is stopped
			t.Cleanup(server.Stop)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+ln.Addr().String()+"/v1/chat/completions",
				strings.NewReader(`{"stream":true,"messages":[{"role":"user","content":"a"}]}`))
			if err != nil {
				t.Fatal(err)
			}
			if r, err := workers(t).RoundTrip(request); err == nil {
				r.Body.Close()
				t.Fatalf("%s: answered %d", name, r.StatusCode)
			}
			server.Stop()
		}
	}
}

// An error of a worker that has no name gets the code of its status, before the stream and in it.
func TestR9_ErrorsOfWorkersHaveACode(t *testing.T) {
	const body = `{"stream":true,"messages":[{"role":"user","content":"a"}]}`
	refuse := func(code codes.Code) string {
		return script(t, func(*pb.StartRequest, grpc.ServerStreamingServer[pb.StreamChunk]) error {
			return status.Error(code, "why")
		})
	}
	for code, want := range map[codes.Code]string{codes.ResourceExhausted: "rate_limited", codes.Unavailable: "upstream_error",
		codes.InvalidArgument: "invalid_request", codes.DeadlineExceeded: "upstream_timeout", codes.PermissionDenied: "upstream_error"} {
		_, text := must(t, workers(t), refuse(code), body, int(pb.HTTPStatusOf(code)))
		if !strings.Contains(text, `"code":"`+want+`"`) || !strings.Contains(text, `"message":"why"`) {
			t.Errorf("%s: %s", code, text)
		}
	}
	url := script(t, func(_ *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
		if err := out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Delta{Delta: &pb.TokenDelta{Text: "a"}}}); err != nil {
			return err
		}
		return out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Error{Error: &pb.Error{Code: 503, Message: "late"}}})
	})
	if _, text := must(t, workers(t), url, body, http.StatusOK); !strings.Contains(text, `"code":"upstream_error"`) {
		t.Error(text)
	}
}

// A worker that has not counted the tokens says so. Its 0 tokens of the prompt are no usage.
func TestB3_EstimatedUsageOfWorkersIsNone(t *testing.T) {
	for _, estimated := range []bool{false, true} {
		url := script(t, func(_ *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
			if err := out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Delta{Delta: &pb.TokenDelta{Text: "a"}}}); err != nil {
				return err
			}
			return out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Final{Final: &pb.FinalResult{OutputTokens: 1, Estimated: estimated}}})
		})
		const asked = `"messages":[{"role":"user","content":"a"}]}`
		_, stream := must(t, workers(t), url, `{"stream":true,"stream_options":{"include_usage":true},`+asked, http.StatusOK)
		_, whole := must(t, workers(t), url, `{`+asked, http.StatusOK)
		events := data(t, stream)
		for _, text := range []string{events[len(events)-2], whole} {
			var chunk sse.Chunk
			if !chunk.Read([]byte(text)) || !chunk.HasUsage || chunk.Told == estimated {
				t.Errorf("estimated %v: told %v by %s", estimated, chunk.Told, text)
			}
		}
	}
}
