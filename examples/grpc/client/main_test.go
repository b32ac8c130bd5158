package main

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
)

// parrot is a server that answers with the prompt if the caller has the key.
type parrot struct {
	llmv1.UnimplementedInferenceServer
}

func (parrot) Stream(start *llmv1.StartRequest, out grpc.ServerStreamingServer[llmv1.StreamChunk]) error {
	md, _ := metadata.FromIncomingContext(out.Context())
	if got := md.Get("authorization"); len(got) != 1 || got[0] != "Bearer secret" {
		return (&llmv1.Error{Code: 429, Message: "Not now.", Retryable: true, RetryAfterMs: 1500}).Status().Err()
	}
	for word := range strings.FieldsSeq(start.GetMessages()[0]) {
		d := &llmv1.TokenDelta{Text: word}
		if err := out.Send(&llmv1.StreamChunk{Payload: &llmv1.StreamChunk_Delta{Delta: d}}); err != nil {
			return err
		}
	}
	f := &llmv1.FinalResult{Model: start.GetModel(), FinishReason: "stop", InputTokens: 2, OutputTokens: 3}
	return out.Send(&llmv1.StreamChunk{Payload: &llmv1.StreamChunk_Final{Final: f}})
}

func TestRun(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	llmv1.RegisterInferenceServer(server, parrot{})
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(server.Stop)
	o := options{address: ln.Addr().String(), model: "m", timeout: time.Minute, prompt: "a b c"}
	var out bytes.Buffer
	t.Setenv("SLUICE_API_KEY", "")
	if err := run(t.Context(), o, &out); err == nil || explain(err) != "Not now. (429); retry in 1500 ms" {
		t.Error(err)
	}
	t.Setenv("SLUICE_API_KEY", "secret")
	if err := run(t.Context(), o, &out); err != nil || out.String() != "abc\n[m: stop, 2 tokens in, 3 out]\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
