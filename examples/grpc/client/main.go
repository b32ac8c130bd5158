// Command client sends a prompt to a model by gRPC and prints the answer as it arrives. Users run
// it to try the protocol llm.v1:
//
//	go run ./examples/grpc/client -model chat "Tell me about the sea"
//
// If the gateway requires a key, set the environment variable SLUICE_API_KEY.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
)

// options are the flags and the prompt of the command line.
type options struct {
	address, model string
	secure         bool
	timeout        time.Duration
	prompt         string
}

func main() {
	var o options
	flag.StringVar(&o.address, "address", "127.0.0.1:8080", "host:port of the gateway, or of an engine that speaks llm.v1")
	flag.StringVar(&o.model, "model", "", "model, pool or alias")
	flag.BoolVar(&o.secure, "tls", false, "use TLS")
	flag.DurationVar(&o.timeout, "timeout", time.Minute, "time limit of the whole answer")
	flag.Parse()
	o.prompt = strings.Join(flag.Args(), " ")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, explain(err))
		os.Exit(1)
	}
}

// run sends the prompt and prints the answer. If it returns early, the call is cancelled and the
// engine stops.
func run(ctx context.Context, o options, out io.Writer) error {
	creds := insecure.NewCredentials()
	if o.secure {
		creds = credentials.NewTLS(nil)
	}
	conn, err := grpc.NewClient(o.address, grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the call has ended
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if key := os.Getenv("SLUICE_API_KEY"); key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	}
	stream, err := llmv1.NewInferenceClient(conn).Stream(ctx, &llmv1.StartRequest{Model: o.model, Messages: []string{o.prompt}})
	if err != nil {
		return err
	}
	return printStream(stream, out)
}

// printStream prints the stream until it ends.
func printStream(stream grpc.ServerStreamingClient[llmv1.StreamChunk], out io.Writer) error {
	for {
		chunk, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		switch p := chunk.GetPayload().(type) {
		case *llmv1.StreamChunk_Delta:
			fmt.Fprint(out, p.Delta.GetText())
		case *llmv1.StreamChunk_Final:
			fmt.Fprintf(out, "\n[%s: %s, %d tokens in, %d out]\n", p.Final.GetModel(), p.Final.GetFinishReason(), p.Final.GetInputTokens(),
				p.Final.GetOutputTokens())
		case *llmv1.StreamChunk_Hb:
			fmt.Fprintf(os.Stderr, "[%s for %d ms]\n", p.Hb.GetPhase(), p.Hb.GetWaitedMs())
		}
	}
}

// explain returns the message of the server's error, and the delay if a retry makes sense.
func explain(err error) string {
	e, _ := llmv1.ErrorOf(err)
	switch {
	case e == nil:
		return err.Error()
	case e.GetRetryable():
		return fmt.Sprintf("%s (%d); retry in %d ms", e.GetMessage(), e.GetCode(), e.GetRetryAfterMs())
	}
	return fmt.Sprintf("%s (%d)", e.GetMessage(), e.GetCode())
}
