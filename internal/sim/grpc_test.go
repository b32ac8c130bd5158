package sim

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// runEngine serves an engine with Run until the end of the test.
func runEngine(t *testing.T, c Config) (e *Engine, address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e = New(c)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return e, ln.Addr().String()
}

// newClient serves an engine with Run and returns it with a client of grpc-go.
func newClient(t *testing.T, c Config) (*Engine, llmv1.InferenceClient) {
	t.Helper()
	e, address := runEngine(t, c)
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return e, llmv1.NewInferenceClient(conn)
}

// readChunks makes a call and reads its stream to the end. err is the status that ended the stream;
// nil for OK.
func readChunks(ctx context.Context, client llmv1.InferenceClient, start *llmv1.StartRequest) (list []*llmv1.StreamChunk, err error) {
	stream, err := client.Stream(ctx, start)
	if err != nil {
		return nil, err
	}
	for {
		chunk, err := stream.Recv()
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		list = append(list, chunk)
	}
}

func withFault(ctx context.Context, fault string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, FaultHeader, fault)
}

func choiceText(list []*llmv1.StreamChunk, choice int32) string {
	var b strings.Builder
	for _, c := range list {
		if d := c.GetDelta(); d != nil && d.GetChoice() == choice {
			b.WriteString(d.GetText())
		}
	}
	return b.String()
}

func TestGRPCSaysWhatHTTPSays(t *testing.T) {
	e, client := newClient(t, Config{Name: "the sim"})
	web := newServer(t, Config{Name: "the sim"})
	events, err := web.events("/v1/chat/completions", `{"model":"sim","stream":true,"stream_options":{"include_usage":true},"messages":[
		{"role":"system","content":"Be brief."},{"role":"user","content":"Tell me about waves"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := readChunks(t.Context(), client, &llmv1.StartRequest{
		RequestId: "r1", Model: "sim", Messages: []string{`{"role":"system","content":"Be brief."}`, "Tell me about waves"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := choiceText(list, 0), joinDeltas(t, events, 0); got != want || got == "" {
		t.Errorf("gRPC says %q, HTTP %q", got, want)
	}
	usage := lookup(decode(t, events[len(events)-2]), "usage")
	want := &llmv1.StreamChunk{RequestId: "r1", Payload: &llmv1.StreamChunk_Final{Final: &llmv1.FinalResult{
		FinishReason: "stop", Model: "sim", OutputTokens: int32(lookup(usage, "completion_tokens").(float64)),
		InputTokens: int32(lookup(usage, "prompt_tokens").(float64)),
	}}}
	if diff := cmp.Diff(want, list[len(list)-1], protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if seen, _ := e.requestLog.all(); len(seen) != 1 || seen[0].Outcome != "ok" || seen[0].Path != llmv1.Inference_Stream_FullMethodName {
		t.Errorf("the engine has seen %+v", seen)
	}
}

func TestGRPCRequestAsJSON(t *testing.T) {
	_, client := newClient(t, Config{})
	list, err := readChunks(t.Context(), client, &llmv1.StartRequest{Model: "sim", Request: []byte(
		`{"messages":[{"role":"user","content":"use the tool"}],"n":2,
		"tools":[{"type":"function","function":{"name":"tide","parameters":{"type":"object","properties":{"port":{"type":"string"}}}}}]}`)})
	if err != nil {
		t.Fatal(err)
	}
	arguments := map[int32]string{}
	for _, c := range list[:len(list)-1] {
		d := c.GetDelta()
		if d.GetKind() != llmv1.TokenDelta_TOOL_CALL || c.GetRequestId() == "" {
			t.Fatalf("not of a tool call: %v", c)
		}
		if call := d.GetToolCall(); arguments[d.GetChoice()] == "" && call.GetArguments() == "" && (call.GetId() == "" || call.GetName() != "tide") {
			t.Errorf("a call begins with %v", call)
		}
		arguments[d.GetChoice()] += d.GetToolCall().GetArguments()
	}
	if diff := cmp.Diff(map[int32]string{0: `{"port": "tool"}`, 1: `{"port": "tool"}`}, arguments); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"tool_calls", "tool_calls"}, list[len(list)-1].GetFinal().GetFinishReasons()); diff != "" {
		t.Error(diff)
	}
}

func TestGRPCLimits(t *testing.T) {
	_, client := newClient(t, Config{})
	list, err := readChunks(t.Context(), client, &llmv1.StartRequest{Messages: []string{"hello"}, MaxTokens: 3})
	if err != nil {
		t.Fatal(err)
	}
	if f := list[len(list)-1].GetFinal(); len(list) != 4 || f.GetFinishReason() != "length" || f.GetOutputTokens() != 3 {
		t.Errorf("%d chunks, the last %v", len(list), f)
	}
}

func TestGRPCRefuses(t *testing.T) {
	_, client := newClient(t, Config{APIKey: "secret"})
	withKey := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer secret")
	for name, c := range map[string]struct {
		ctx   context.Context
		start *llmv1.StartRequest
		want  codes.Code
	}{
		"no key":         {t.Context(), &llmv1.StartRequest{Messages: []string{"a"}}, codes.Unauthenticated},
		"no messages":    {withKey, &llmv1.StartRequest{}, codes.InvalidArgument},
		"unknown model":  {withKey, &llmv1.StartRequest{Messages: []string{"a"}, Model: "m"}, codes.NotFound},
		"two ways":       {withKey, &llmv1.StartRequest{Messages: []string{"a"}, Request: []byte("{}")}, codes.InvalidArgument},
		"no JSON":        {withKey, &llmv1.StartRequest{Request: []byte("{")}, codes.InvalidArgument},
		"status fault":   {withFault(withKey, "status=429"), &llmv1.StartRequest{Messages: []string{"a"}}, codes.ResourceExhausted},
		"fault for HTTP": {withFault(withKey, "gzip"), &llmv1.StartRequest{Messages: []string{"a"}}, codes.InvalidArgument},
	} {
		list, err := readChunks(c.ctx, client, c.start)
		e, told := llmv1.ErrorOf(err)
		if status.Code(err) != c.want || len(list) > 0 || !told || e.GetMessage() != status.Convert(err).Message() {
			t.Errorf("%s: %d chunks, then %v; details %v", name, len(list), err, e)
		}
	}
}

func TestGRPCFaults(t *testing.T) {
	_, client := newClient(t, Config{})
	for fault, c := range map[string]struct {
		want   codes.Code
		deltas int
	}{
		"cut=2":                {codes.Internal, 2}, // RST_STREAM
		"eof=2":                {codes.Internal, 2}, // no trailers
		"error=2":              {codes.Internal, 2},
		"reset-before-headers": {codes.Internal, 0},
		"slow=1ms":             {codes.OK, 3},
		"stall=1:1ms":          {codes.OK, 3},
		"none":                 {codes.OK, 3},
	} {
		list, err := readChunks(withFault(t.Context(), fault), client, &llmv1.StartRequest{Messages: []string{"hello"}, MaxTokens: 3})
		n, told := 0, false
		for _, chunk := range list {
			if chunk.GetDelta() != nil {
				n++
			}
			told = told || chunk.GetError() != nil
		}
		if status.Code(err) != c.want || n != c.deltas || told != (fault == "error=2") {
			t.Errorf("%s: %d deltas, told %v, then %v; want %d, %v", fault, n, told, err, c.deltas, c.want)
		}
	}
}

// tokenPerHour decodes one token per hour, so every stream that ends within a test was ended by
// something else.
var tokenPerHour = Config{TokenInterval: time.Hour}

func TestGRPCCancelFreesTheSlot(t *testing.T) {
	e, client := newClient(t, tokenPerHour)
	for _, fault := range []string{"none", "hang", "stall=0"} {
		ctx, cancel := context.WithCancel(withFault(t.Context(), fault))
		stream, err := client.Stream(ctx, &llmv1.StartRequest{Messages: []string{"hello"}})
		if err != nil {
			t.Fatal(err)
		}
		testutil.Eventually(t, "the engine has the request", func() bool {
			seen, _ := e.requestLog.all()
			return len(seen) > 0 && seen[len(seen)-1].Outcome == "running" && (fault == "hang" || e.State().Running == 1)
		})
		cancel()
		for err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.Canceled {
			t.Error(err)
		}
		testutil.Eventually(t, "the slot is free", func() bool {
			seen, _ := e.requestLog.all()
			return e.State().Running == 0 && seen[len(seen)-1].Outcome == "client left"
		})
	}
}

func TestGRPCMalformed(t *testing.T) {
	_, client := newClient(t, Config{})
	list, err := readChunks(withFault(t.Context(), "malformed=1"), client, &llmv1.StartRequest{Messages: []string{"hello"}, MaxTokens: 3})
	if err == nil || len(list) > 2 { // which error, and what of the half message is read, depends on its length
		t.Errorf("%d chunks, then %v", len(list), err)
	}
}

func TestGRPCCutFreesTheSlot(t *testing.T) {
	e, client := newClient(t, tokenPerHour)
	if _, err := readChunks(withFault(t.Context(), "cut=0"), client, &llmv1.StartRequest{Messages: []string{"hello"}}); status.Code(err) != codes.Internal {
		t.Error(err)
	}
	testutil.Eventually(t, "the slot is free", func() bool { return e.State().Running == 0 })
}

func TestGRPCDeadline(t *testing.T) {
	e, client := newClient(t, tokenPerHour)
	within := 50 * time.Millisecond
	testutil.EventuallyNil(t, "a token comes before the deadline, and nothing more", func() error {
		within *= 2 // a busy machine needs longer
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		list, err := readChunks(ctx, client, &llmv1.StartRequest{Messages: []string{"hello"}})
		if status.Code(err) != codes.DeadlineExceeded || len(list) > 1 {
			t.Fatalf("%d chunks, then %v", len(list), err)
		}
		if len(list) == 0 {
			return err
		}
		return nil
	})
	testutil.Eventually(t, "the slot is free", func() bool { return e.State().Running == 0 })
}

// TestGRPCDeadlineOfTheEngine checks that the engine ends a call at its deadline, with a client
// that does not.
func TestGRPCDeadlineOfTheEngine(t *testing.T) {
	e, address := runEngine(t, tokenPerHour)
	message, err := frame(&llmv1.StartRequest{Messages: []string{"hello"}})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+llmv1.Inference_Stream_FullMethodName, bytes.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Grpc-Timeout", "50m")
	transport := &http.Transport{Protocols: protocols()}
	transport.Protocols.SetHTTP1(false)
	defer transport.CloseIdleConnections()
	r, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil || r.Trailer.Get("Grpc-Status") != "4" {
		t.Errorf("%v, trailers %v", err, r.Trailer)
	}
	testutil.Eventually(t, "the slot is free", func() bool { return e.State().Running == 0 })
}

func TestGRPCTimeoutMillis(t *testing.T) {
	e, client := newClient(t, tokenPerHour)
	list, err := readChunks(t.Context(), client, &llmv1.StartRequest{Messages: []string{"hello"}, TimeoutMs: 50})
	if err != nil || list[len(list)-1].GetFinal().GetFinishReason() != "length" {
		t.Errorf("%v, then %v", list, err)
	}
	e2, client := newClient(t, Config{PrefillRate: 1e-3})
	_, err = readChunks(t.Context(), client, &llmv1.StartRequest{Messages: []string{"hello"}, TimeoutMs: 50})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	testutil.Eventually(t, "the slots are free", func() bool { return e.State().Running+e2.State().Running == 0 })
}

func TestGRPCTimeoutHeader(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1H": time.Hour, "2M": 2 * time.Minute, "3S": 3 * time.Second, "4m": 4 * time.Millisecond, "5u": 5000, "6n": 6,
		"99999999H": 1 << 20 * time.Hour, "": 0, "5": 0, "m": 0, "-1m": 0, "123456789S": 0, "1x": 0,
	} {
		d, ok := grpcTimeout(text)
		if d != want || ok != (want > 0) {
			t.Errorf("%q is %v, %v; want %v", text, d, ok, want)
		}
	}
}

func TestGRPCPathIsForGRPC(t *testing.T) {
	web := newServer(t, Config{})
	if r := web.post(llmv1.Inference_Stream_FullMethodName, "{}"); r.StatusCode != 415 {
		t.Errorf("status %d", r.StatusCode)
	}
}
