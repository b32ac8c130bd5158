package grpcapi_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/testing/protocmp"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/grpcapi"
	"github.com/sluice-gateway/sluice/internal/sim"
)

// simulated is an engine, and the URL of its chats.
func simulated(t *testing.T, c sim.Config) (e *sim.Engine, url string) {
	t.Helper()
	ln := listener(t)
	e = sim.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return e, "http://" + ln.Addr().String() + "/v1/chat/completions"
}

func listener(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// scripted is a worker that does what it is told.
type scripted struct {
	pb.UnimplementedInferenceServer
	do func(start *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error
}

func (s scripted) Stream(start *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
	return s.do(start, out)
}

func script(t *testing.T, do func(*pb.StartRequest, grpc.ServerStreamingServer[pb.StreamChunk]) error) (url string) {
	t.Helper()
	ln, server := listener(t), grpc.NewServer()
	pb.RegisterInferenceServer(server, scripted{do: do})
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(server.Stop)
	return "http://" + ln.Addr().String() + "/v1/chat/completions"
}

func workers(t *testing.T) *grpcapi.Workers {
	t.Helper()
	w := new(grpcapi.Workers)
	t.Cleanup(w.Close)
	return w
}

func post(ctx context.Context, w *grpcapi.Workers, url, body string, header ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return w.RoundTrip(r)
}

// must is a response that is to have a status, and all of its body.
func must(t *testing.T, w *grpcapi.Workers, url, body string, want int, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := post(t.Context(), w, url, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != want {
		t.Fatalf("status %d, %v: %s", r.StatusCode, err, b)
	}
	return r, string(b)
}

// data are the events of a stream.
func data(t *testing.T, body string) (list []string) {
	t.Helper()
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		if d, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			list = append(list, d)
		}
	}
	return list
}

// delta is what matters of a chunk in these tests.
type event struct {
	ID, Object, Model string
	Choices           []struct {
		Index int
		Delta struct {
			Role, Content string
			ToolCalls     []struct {
				Index    int
				ID, Type string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Finish string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
}

func readEvent(t *testing.T, text string) (e event) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return e
}

const asked = `"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Tell me about \"waves\""}]}`

// viaHTTP is what the engine itself says to the same request.
func viaHTTP(t *testing.T, url, body string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %s", r.StatusCode, err, b)
	}
	return string(b)
}

func TestWorkerStreamsLikeAnEngine(t *testing.T) {
	_, url := simulated(t, sim.Config{Name: "the sim", CacheTokens: -1})
	const tools = `"tools":[{"type":"function","function":{"name":"tide","parameters":{"type":"object","properties":{"port":{"type":"string"}}}}}],`
	for name, body := range map[string]string{
		"plain":   `{"model":"sim","stream":true,"stream_options":{"include_usage":true},"temperature":0.7,` + asked,
		"no more": `{"model":"sim","stream":true,"max_tokens":3,` + asked,
		"choices": `{"model":"sim","stream":true,"n":3,"seed":4,` + asked,
		"tools":   `{"model":"sim","stream":true,"tool_choice":"required",` + tools + asked,
	} {
		r, text := must(t, workers(t), url, body, http.StatusOK, "X-Request-Id", "abc")
		if r.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%s: %v", name, r.Header)
		}
		got, want := data(t, text), data(t, viaHTTP(t, url, body))
		if got[len(got)-1] != "[DONE]" || r.ContentLength != -1 {
			t.Errorf("%s ends with %s", name, got[len(got)-1])
		}
		if diff := cmp.Diff(summary(t, want), summary(t, got)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if e := readEvent(t, got[0]); e.ID != "chatcmpl-abc" || e.Object != "chat.completion.chunk" || e.Model != "sim" || e.Choices[0].Delta.Role != "assistant" {
			t.Errorf("%s begins with %s", name, got[0])
		}
		tracker := sse.Tracker{}
		var scanner sse.Scanner
		for scanner.Feed([]byte(text)); scanner.Next(); {
			tracker.See(scanner.Event())
		}
		if tracker.Outcome() != sse.Complete {
			t.Errorf("%s: the stream is %v", name, tracker.Outcome())
		}
	}
}

// summary is what a stream says in all, without how it was cut into events.
func summary(t *testing.T, events []string) (s struct {
	Text, Tools map[int]string
	Finish      map[int]string
	Usage       any
}) {
	t.Helper()
	s.Text, s.Tools, s.Finish = map[int]string{}, map[int]string{}, map[int]string{}
	for _, text := range events {
		if text == "[DONE]" {
			continue
		}
		e := readEvent(t, text)
		for _, c := range e.Choices {
			s.Text[c.Index] += c.Delta.Role + c.Delta.Content
			s.Finish[c.Index] += c.Finish
			for _, call := range c.Delta.ToolCalls {
				s.Tools[call.Index] += call.ID + call.Type + call.Function.Name + call.Function.Arguments
			}
		}
		if e.Usage != nil {
			s.Usage = *e.Usage
		}
	}
	return s
}

func TestWorkerAnswersAtOnce(t *testing.T) {
	_, url := simulated(t, sim.Config{Name: "the sim", CacheTokens: -1})
	for _, body := range []string{
		`{"model":"sim",` + asked,
		`{"model":"sim","n":2,"tool_choice":"required","tools":[{"type":"function","function":{"name":"tide"}}],` + asked,
	} {
		r, text := must(t, workers(t), url, body, http.StatusOK)
		if r.Header.Get("Content-Type") != "application/json" {
			t.Error(r.Header)
		}
		var got, want map[string]any
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(viaHTTP(t, url, body)), &want); err != nil {
			t.Fatal(err)
		}
		own := cmp.FilterPath(func(p cmp.Path) bool { // what differs between any two answers, and what vLLM alone has
			key, ok := p.Last().(cmp.MapIndex)
			if !ok {
				return false
			}
			switch key.Key().String() {
			case "id", "created", "logprobs", "stop_reason", "system_fingerprint":
				return true
			}
			return false
		}, cmp.Ignore())
		if diff := cmp.Diff(want, got, own); diff != "" {
			t.Error(diff)
		}
	}
}

func TestWhatTheWorkerIsAsked(t *testing.T) {
	var got *pb.StartRequest
	url := script(t, func(start *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
		got = start
		return out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Final{Final: &pb.FinalResult{FinishReason: "stop"}}})
	})
	temperature := float32(0.7)
	for body, want := range map[string]*pb.StartRequest{
		`{"model":"m","stream":true,"temperature":0.7,"max_tokens":5,"messages":[{"role":"user","content":"a\nb"},{"role":"assistant","content":"c"}]}`: {
			Model: "m", Temperature: &temperature, MaxTokens: 5, Messages: []string{"a\nb", `{"role":"assistant","content":"c"}`}},
		`{"messages":[{"role":"user","content":"{\"role\":\"system\",\"content\":\"\"}"}]}`: {
			Messages: []string{`{"role":"user","content":"{\"role\":\"system\",\"content\":\"\"}"}`}},
		`{"messages":[{"role":"user","content":"a","name":"b"}]}`:      {Messages: []string{`{"role":"user","content":"a","name":"b"}`}},
		`{"messages":[{"role":"user","content":[]}]}`:                  {Messages: []string{`{"role":"user","content":[]}`}},
		`{"messages":[{"role":"assistant","tool_calls":[]}]}`:          {Request: []byte(`{"messages":[{"role":"assistant","tool_calls":[]}]}`)},
		`{"model":"m","stream":false,"top_p":1,"messages":[]}`:         {Model: "m", Request: []byte(`{"top_p":1,"messages":[]}`)},
		`{"temperature":0.123456789,"messages":[]}`:                    {Request: []byte(`{"temperature":0.123456789,"messages":[]}`)},
		`{"temperature":null,"messages":[{"role":"a","content":"b"}]}`: {Request: []byte(`{"temperature":null,"messages":[{"role":"a","content":"b"}]}`)},
		`{"max_tokens":0,"messages":[{"role":"a","content":"b"}]}`:     {Request: []byte(`{"max_tokens":0,"messages":[{"role":"a","content":"b"}]}`)},
	} {
		must(t, workers(t), url, body, http.StatusOK)
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
	must(t, workers(t), url, "{", http.StatusBadRequest)
	must(t, workers(t), strings.Replace(url, "chat/", "", 1), "{}", http.StatusNotFound)
}

// scriptHeaders returns the URL of a worker that stores the headers of its last call.
func scriptHeaders(t *testing.T, got *metadata.MD) string {
	return script(t, func(_ *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
		*got, _ = metadata.FromIncomingContext(out.Context())
		return out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Final{Final: &pb.FinalResult{}}})
	})
}

func TestHeadersForTheWorker(t *testing.T) {
	var got metadata.MD
	url := scriptHeaders(t, &got)
	must(t, workers(t), url, `{}`, 200, "Authorization", "Bearer replica", "Traceparent", "00-1", "X-Latin", "caf\xe9", "X-Bin-Bin", "a",
		"Content-Type", "application/json", "Accept-Encoding", "identity", "Grpc-Timeout", "1n")
	for _, name := range []string{":authority", "user-agent", "content-type", "grpc-accept-encoding"} {
		delete(got, name) // gRPC's own
	}
	if diff := cmp.Diff(metadata.MD{"authorization": {"Bearer replica"}, "traceparent": {"00-1"}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestTimeLeftIsPassedOn(t *testing.T) {
	var ms int32
	var deadline bool
	url := script(t, func(start *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
		ms = start.GetTimeoutMs()
		_, deadline = out.Context().Deadline()
		return out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Final{Final: &pb.FinalResult{}}})
	})
	w, body := workers(t), `{"messages":[{"role":"user","content":"a"}]}`
	if must(t, w, url, body, 200); ms != 0 || deadline {
		t.Errorf("%d ms, deadline %v", ms, deadline)
	}
	if must(t, w, url, body, 200, "x-sluice-timeout-ms", "1234"); ms != 1234 {
		t.Errorf("%d ms", ms)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	r, err := post(ctx, w, url, body)
	if err != nil || ms < 3_000_000 || ms > 3_600_000 || !deadline {
		t.Errorf("%d ms, deadline %v, %v", ms, deadline, err)
	}
	r.Body.Close()
}

func TestHeartbeatsOfWorkers(t *testing.T) {
	url := script(t, func(_ *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
		_ = out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Hb{Hb: &pb.Heartbeat{Phase: "prefill"}}})
		return out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Final{Final: &pb.FinalResult{FinishReason: "stop"}}})
	})
	_, text := must(t, workers(t), url, `{"stream":true}`, 200)
	if !strings.HasPrefix(text, ": prefill\n\n") || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Error(text)
	}
}

func TestWorkersBehindTLS(t *testing.T) {
	web := httptest.NewUnstartedServer(nil) // for its certificate
	web.StartTLS()
	defer web.Close()
	ln, server := listener(t), grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&web.TLS.Certificates[0])))
	pb.RegisterInferenceServer(server, scripted{do: func(_ *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
		return out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Final{Final: &pb.FinalResult{}}})
	}})
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(server.Stop)
	url := "https://" + ln.Addr().String() + "/v1/chat/completions"
	if r, err := post(t.Context(), workers(t), url, `{}`); err == nil {
		t.Errorf("status %d of a server that nobody vouches for", r.StatusCode)
	}
	cas := x509.NewCertPool()
	cas.AddCert(web.Certificate())
	w := &grpcapi.Workers{TLS: &tls.Config{RootCAs: cas, MinVersion: tls.VersionTLS12}}
	t.Cleanup(w.Close)
	must(t, w, url, `{}`, 200)
}

// A header of the client whose name gRPC does not accept is left out. It must not fail the call,
// for which the worker would be blamed.
func TestHeaderNamesThatGRPCRefuses(t *testing.T) {
	var got metadata.MD
	url := scriptHeaders(t, &got)
	w := workers(t)
	for _, name := range []string{"X!Odd", "X~Odd", "X%Odd", "X'Odd"} {
		must(t, w, url, `{"messages":[]}`, 200, name, "a", "X-Even_1.b", "b")
		if got.Get("x-even_1.b") == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A worker that refuses a request because of its size is not at fault.
func TestRequestTooLargeForTheWorker(t *testing.T) {
	url := script(t, func(*pb.StartRequest, grpc.ServerStreamingServer[pb.StreamChunk]) error { return nil })
	large := strings.Repeat("x", 5<<20) // gRPC's default is 4 MiB
	for _, field := range []string{"", `"seed":1,`} {
		_, text := must(t, workers(t), url, `{`+field+`"messages":[{"role":"user","content":"`+large+`"}]}`, http.StatusRequestEntityTooLarge)
		if !strings.Contains(text, `"code":"request_too_large"`) {
			t.Error(text)
		}
	}
}
