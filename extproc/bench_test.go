package extproc

import (
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-gateway/sluice/internal/dispatch"
)

// BenchmarkExchange measures one request over gRPC on a Unix socket, with the work of both ends.
func BenchmarkExchange(b *testing.B) {
	b.Run("native", func(b *testing.B) {
		s, _ := newServer(b)
		benchmarkExchange(b, s)
	})
	b.Run("auto", func(b *testing.B) {
		s, _ := newRelayed(b, dispatch.WayPolicy{})
		benchmarkExchange(b, s)
	})
}

func benchmarkExchange(b *testing.B, s *Server) {
	conn := serveMethod(b, s.Open)
	messages := exchangeMessages()
	client := pb.NewExternalProcessorClient(conn)
	b.ReportAllocs()
	for b.Loop() {
		stream, err := client.Process(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range messages {
			if err := stream.Send(m); err != nil {
				b.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				b.Fatal(err)
			}
		}
		if err := stream.CloseSend(); err != nil {
			b.Fatal(err)
		}
		stream.Recv() // io.EOF
	}
}

func exchangeMessages() []*pb.ProcessingRequest {
	h := &core.HeaderMap{}
	for _, p := range [][2]string{
		{":authority", "127.0.0.1:8080"}, {":path", "/v1/chat/completions"}, {":method", "POST"}, {":scheme", "http"},
		{"user-agent", "OpenAI/Python 3.52.0"}, {"content-length", "140"}, {"content-type", "application/json"}, {"accept", "application/json"},
		{"authorization", "Bearer key"}, {"x-stainless-lang", "python"}, {"x-stainless-os", "Linux"}, {"x-stainless-arch", "x64"},
		{"x-stainless-runtime", "CPython"}, {"x-request-id", "2f0c5f0e-8f0f-4d9d-9d5c-0a4c1b5e7f11"}, {"x-forwarded-for", "127.0.0.1"},
	} {
		h.Headers = append(h.Headers, &core.HeaderValue{Key: p[0], RawValue: []byte(p[1])})
	}
	body := []byte(`{"model":"m","stream":true,"max_tokens":64,"messages":[{"role":"system","content":"You help."},{"role":"user","content":"Hello"}]}`)
	return []*pb.ProcessingRequest{
		{Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: h}}},
		{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: body, EndOfStream: true}}},
		{Request: &pb.ProcessingRequest_ResponseTrailers{ResponseTrailers: &pb.HttpTrailers{}}},
	}
}
