package grpcapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/relay"
	"github.com/sluice-gateway/sluice/internal/relay/grpcapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// generator is a Generator that is a function.
type generator func(ctx context.Context, c *relay.Call, to relay.Sink)

func (g generator) Generate(ctx context.Context, c *relay.Call, to relay.Sink) { g(ctx, c, to) }

// client calls a Server with that generator, over loopback.
func client(t *testing.T, g generator) pb.InferenceClient {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	acme := &authz.Tenant{Name: "acme", Models: []string{"*"}, Priority: authz.Interactive}
	server := grpc.NewServer()
	(&grpcapi.Server{Generator: g, Tenants: func(name, _ string) (*authz.Tenant, bool) { return acme, name == acme.Name }}).Register(server)
	go func() { _ = server.Serve(ln) }()
	conn, err := grpc.NewClient("passthrough:///"+ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
	})
	return pb.NewInferenceClient(conn)
}

// as is metadata as Envoy sends it for the tenant.
func as(ctx context.Context, more ...string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, append([]string{"x-sluice-tenant", "acme", "x-request-id", "envoy-1"}, more...)...)
}

// listen calls and reads the stream to its end. err is nil for the status OK.
func listen(ctx context.Context, c pb.InferenceClient, start *pb.StartRequest) (list []*pb.StreamChunk, trailer metadata.MD, err error) {
	s, err := c.Stream(ctx, start)
	if err != nil {
		return nil, nil, err
	}
	for {
		chunk, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return list, s.Trailer(), nil
		}
		if err != nil {
			return list, s.Trailer(), err
		}
		list = append(list, chunk)
	}
}

var hello = &pb.StartRequest{Model: "m", Messages: []string{"hello"}}

func chunk(choice string) []byte {
	return []byte(`data: {"id":"x","object":"chat.completion.chunk","model":"m","choices":[` + choice + "]}\n\n")
}

// tell has a generator tell these events and end so.
func tell(end relay.Result, events ...[]byte) generator {
	return func(_ context.Context, _ *relay.Call, to relay.Sink) {
		for i, raw := range events {
			if to.Event(raw, uint64(i)) != nil || to.Flush() != nil {
				return
			}
		}
		_ = to.Finish(end)
	}
}

func TestStream(t *testing.T) {
	c := client(t, tell(
		relay.Result{Model: "m-1", Replica: "m-1-0", Finish: "stop", Usage: relay.Usage{Prompt: 7, Completion: 4, Cached: 2, Known: true}},
		chunk(`{"index":0,"delta":{"role":"assistant","content":""}}`),
		chunk(`{"index":0,"delta":{"reasoning_content":"hm"}}`),
		[]byte(": a comment\n\n"),
		chunk(`{"index":0,"delta":{"content":"caf\u00e9 \"x\""}}`),
		chunk(`{"index":1,"delta":{"refusal":"no"}}`),
		chunk(`{"index":0,"delta":{"tool_calls":[{"index":1,"id":"c1","type":"function","function":{"name":"f","arguments":""}}]}}`),
		chunk(`{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\"a\""}}]}}`),
		chunk(`{"index":1,"delta":{},"finish_reason":"length"}`),
		chunk(`{"index":0,"delta":{},"finish_reason":"stop"}`),
		[]byte("data: no JSON\n\n"),
		[]byte("data: [DONE]\n\n"),
	))
	got, trailer, err := listen(as(t.Context()), c, &pb.StartRequest{RequestId: "r", Model: "m", Messages: []string{"hello"}})
	if err != nil {
		t.Fatal(err)
	}
	delta := func(d *pb.TokenDelta) *pb.StreamChunk {
		return &pb.StreamChunk{RequestId: "r", Payload: &pb.StreamChunk_Delta{Delta: d}}
	}
	tool := pb.TokenDelta_TOOL_CALL
	want := []*pb.StreamChunk{
		delta(&pb.TokenDelta{Text: "hm", Kind: pb.TokenDelta_REASONING}),
		delta(&pb.TokenDelta{Text: `café "x"`}),
		delta(&pb.TokenDelta{Text: "no", Choice: 1, Kind: pb.TokenDelta_REFUSAL}),
		delta(&pb.TokenDelta{Kind: tool, ToolCall: &pb.ToolCall{Index: 1, Id: "c1", Name: "f"}}),
		delta(&pb.TokenDelta{Kind: tool, ToolCall: &pb.ToolCall{Index: 1, Arguments: `{"a"`}}),
		{RequestId: "r", Payload: &pb.StreamChunk_Final{Final: &pb.FinalResult{
			FinishReason: "stop", Model: "m-1", OutputTokens: 4, InputTokens: 7, CachedTokens: 2, FinishReasons: []string{"stop", "length"},
		}}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if trailer.Get("x-sluice-source")[0] != "engine" || trailer.Get("x-sluice-replica")[0] != "m-1-0" {
		t.Errorf("trailers %v", trailer)
	}
}

// TestCallsOfOneIndex: some engines give all tool calls of an answer the index 0, or name a call in
// each of its pieces. A client knows a call by its index, and gets its id and name once.
func TestCallsOfOneIndex(t *testing.T) {
	piece := func(id, name, arguments string) []byte {
		return chunk(fmt.Sprintf(`{"index":0,"delta":{"tool_calls":[{"index":0,"id":%q,"function":{"name":%q,"arguments":%q}}]}}`, id, name, arguments))
	}
	c := client(t, tell(relay.Result{Finish: "tool_calls"}, piece("a", "f", "{"), piece("a", "f", "}"), piece("a", "f", ""), piece("b", "g", "{}")))
	got, _, err := listen(as(t.Context()), c, hello)
	if err != nil {
		t.Fatal(err)
	}
	var calls []*pb.ToolCall
	for _, chunk := range got {
		if call := chunk.GetDelta().GetToolCall(); call != nil {
			calls = append(calls, call)
		}
	}
	want := []*pb.ToolCall{{Id: "a", Name: "f", Arguments: "{"}, {Arguments: "}"}, {Index: 1, Id: "b", Name: "g", Arguments: "{}"}}
	if diff := cmp.Diff(want, calls, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// Engines cut between the bytes of a character, protobuf takes whole ones only.
func TestCharactersInPieces(t *testing.T) {
	c := client(t, tell(relay.Result{},
		chunk("{\"index\":0,\"delta\":{\"content\":\"a\xf0\x9f\"}}"), chunk(`{"index":1,"delta":{"content":"b"}}`),
		chunk("{\"index\":0,\"delta\":{\"content\":\"\x8c\"}}"), chunk("{\"index\":0,\"delta\":{\"content\":\"\x8ac\xff\"}}"),
	))
	got, _, err := listen(as(t.Context()), c, hello)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, chunk := range got {
		if chunk.GetDelta().GetChoice() == 0 {
			text.WriteString(chunk.GetDelta().GetText())
		}
	}
	if text.String() != "a🌊c\uFFFD" {
		t.Errorf("%q", text.String())
	}
}

func TestCallThatIsMade(t *testing.T) {
	var made *relay.Call
	c := client(t, func(_ context.Context, c *relay.Call, to relay.Sink) {
		made = c
		_ = to.Finish(relay.Result{})
	})
	ctx := as(t.Context(), "traceparent", "00-1", "authorization", "Bearer secret", "x-sluice-priority", "batch", "x-sluice-task-id", "t1", "x-own", "1",
		"x-envoy-retry-on", "5xx", headers.Endpoint, "192.0.2.1:1", "x-blob-bin", "b")
	for name, c2 := range map[string]struct {
		start *pb.StartRequest
		body  string
	}{
		"fields": {&pb.StartRequest{
			Model: "m", RequestId: "r", Temperature: proto.Float32(0.7), MaxTokens: 9, TimeoutMs: 50,
			Messages: []string{`{"role":"system","content":"<b>"}`, `{"role":"user"}`, "a\n\"b\"", `{"role":1,"content":""}`},
		}, `{"stream":true,"stream_options":{"include_usage":true},"model":"m","request_id":"r","temperature":0.7,"max_tokens":9,"timeout_ms":50,` +
			`"messages":[{"role":"system","content":"<b>"},{"role":"user","content":"{\"role\":\"user\"}"},{"role":"user","content":"a\n\"b\""},` +
			`{"role":"user","content":"{\"role\":1,\"content\":\"\"}"}]}`},
		"no chance": {&pb.StartRequest{Model: "m", Temperature: proto.Float32(0), Messages: []string{"a"}},
			`{"stream":true,"stream_options":{"include_usage":true},"model":"m","temperature":0,"messages":[{"role":"user","content":"a"}]}`},
		"JSON": {&pb.StartRequest{Request: []byte(` { "model" : "m", "stream":false, "top_p": 0.10, "stream_options":null, "messages":[] } `)},
			`{"stream":true,"stream_options":{"include_usage":true},"model":"m","top_p":0.10,"messages":[]}`},
	} {
		if _, _, err := listen(ctx, c, c2.start); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(c2.body, string(made.Body)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if !made.Scan.Stream || !made.Scan.IncludeUsage || !made.Patient || made.Tenant.Name != "acme" || made.RequestID != "envoy-1" ||
			made.Task != "t1" || made.Path != "/v1/chat/completions" || made.Scan.RequestID != c2.start.GetRequestId() {
			t.Errorf("%s: %+v", name, made)
		}
		want := http.Header{"Traceparent": {"00-1"}, "X-Own": {"1"}, "X-Request-Id": {"envoy-1"}}
		if diff := cmp.Diff(want, made.Header); diff != "" {
			t.Errorf("%s: headers for the engine: %s", name, diff)
		}
	}
}

func TestDeadlineIsTheTimeout(t *testing.T) {
	var timeout time.Duration
	c := client(t, func(_ context.Context, c *relay.Call, to relay.Sink) {
		timeout = c.Scan.Timeout
		_ = to.Finish(relay.Result{})
	})
	hour := time.Hour.Milliseconds()
	for _, x := range []struct {
		deadline    time.Duration
		ms          int64
		least, most time.Duration
	}{
		{0, 0, 0, 0},
		{0, hour, time.Hour, time.Hour},
		{10 * time.Hour, 0, 9 * time.Hour, 10 * time.Hour},
		{10 * time.Hour, hour, time.Hour, time.Hour},
		{time.Hour, 2 * hour, 30 * time.Minute, time.Hour},
		{100 * time.Hour, 0, 24 * time.Hour, 24 * time.Hour},
	} {
		ctx, cancel := as(t.Context()), func() {}
		if x.deadline > 0 {
			ctx, cancel = context.WithTimeout(ctx, x.deadline)
		}
		_, _, err := listen(ctx, c, &pb.StartRequest{Model: "m", Messages: []string{"a"}, TimeoutMs: int32(x.ms)})
		cancel()
		if err != nil || timeout < x.least || timeout > x.most {
			t.Errorf("deadline %v and %d ms become %v, %v", x.deadline, x.ms, timeout, err)
		}
	}
}

func TestHeartbeats(t *testing.T) {
	before := time.Now().UnixMilli()
	c := client(t, func(_ context.Context, _ *relay.Call, to relay.Sink) {
		_ = to.Heartbeat(relay.Progress{Phase: relay.Queued, Position: 3, Waited: 1500 * time.Millisecond})
		_ = to.Heartbeat(relay.Progress{Phase: relay.Starting, Note: "loading"})
		_ = to.Finish(relay.Result{Finish: "stop"})
	})
	got, _, err := listen(as(t.Context()), c, hello)
	if err != nil || len(got) != 3 {
		t.Fatal(got, err)
	}
	for i, want := range []*pb.Heartbeat{{Phase: "queued", Position: 3, WaitedMs: 1500}, {Phase: "starting", Note: "loading"}} {
		hb := got[i].GetHb()
		if hb.GetTsUnixMs() < before || hb.GetTsUnixMs() > time.Now().UnixMilli() || got[i].GetRequestId() != "envoy-1" {
			t.Errorf("heartbeat %v", got[i])
		}
		if diff := cmp.Diff(want, hb, protocmp.Transform(), protocmp.IgnoreFields(&pb.Heartbeat{}, "ts_unix_ms")); diff != "" {
			t.Error(diff)
		}
	}
	if f := got[2].GetFinal(); !f.GetEstimated() || f.GetFinishReasons() != nil {
		t.Errorf("result %v", f)
	}
}

func TestClientLeaves(t *testing.T) {
	entered, left := make(chan struct{}), make(chan struct{})
	c := client(t, func(ctx context.Context, _ *relay.Call, to relay.Sink) {
		_ = to.Heartbeat(relay.Progress{Phase: relay.Prefill})
		close(entered)
		<-ctx.Done()
		close(left)
	})
	ctx, cancel := context.WithCancel(as(t.Context()))
	s, err := c.Stream(ctx, hello)
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	cancel()
	<-left
	for err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

// A client that does not read holds the generator up, after what flow control lets go: nothing is
// gathered here.
func TestClientThatDoesNotRead(t *testing.T) {
	const enough = 4 << 20
	sent := make(chan int, 1)
	c := client(t, func(ctx context.Context, _ *relay.Call, to relay.Sink) {
		raw, n := chunk(`{"index":0,"delta":{"content":"`+strings.Repeat("x", 1000)+`"}}`), 0
		time.AfterFunc(300*time.Millisecond, func() { sent <- 0 })
		for ; n < enough && to.Event(raw, 0) == nil; n += 1000 {
			_ = ctx
		}
		sent <- n
	})
	ctx, cancel := context.WithCancel(as(t.Context()))
	defer cancel()
	if _, err := c.Stream(ctx, hello); err != nil {
		t.Fatal(err)
	}
	if n := <-sent; n != 0 {
		t.Fatalf("%d bytes were taken though nobody reads", n)
	}
	cancel()
	if n := <-sent; n >= enough {
		t.Errorf("all %d bytes were taken", n)
	}
}

func TestGeneratorWithoutAnEnd(t *testing.T) {
	c := client(t, func(context.Context, *relay.Call, relay.Sink) {})
	if _, _, err := listen(as(t.Context()), c, hello); status.Code(err) != codes.Internal {
		t.Error(err)
	}
}

// An event of which the client gets nothing takes the place of no heartbeat.
func TestS2_EventsOfWhichTheClientGetsNothing(t *testing.T) {
	var passed []int64
	c := client(t, func(_ context.Context, _ *relay.Call, to relay.Sink) {
		for _, raw := range [][]byte{
			[]byte(": a comment\n\n"),
			chunk(`{"index":0,"delta":{"role":"assistant","content":""}}`),
			chunk(`{"index":0,"delta":{"content":"a"}}`),
			chunk(`{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}}`),
		} {
			_ = to.Event(raw, 0)
			passed = append(passed, to.(relay.SelectiveSink).Passed())
		}
		_ = to.Finish(relay.Result{Finish: "stop"})
	})
	if _, _, err := listen(as(t.Context()), c, hello); err != nil {
		t.Fatal(err)
	}
	if want := []int64{0, 0, 1, 2}; !slices.Equal(passed, want) {
		t.Errorf("%v, not %v", passed, want)
	}
}
